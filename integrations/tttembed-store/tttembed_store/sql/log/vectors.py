"""Vectors for texts that are stored without: of served queries that came without them, or of a new embedding model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, Select, Table, and_, func, select

from tttembed_rag.embedders import Embedder
from tttembed_rag.rewards.names import checked_name
from tttembed_rag.vectors.checks import FloatArray
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.records import checked_vector, checksum
from tttembed_store.sql.rows import embedder_id, id_of, insert_all

# Texts that are embedded and written together: the most that a run that was stopped does again.
_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Lacking:
    """How many stored queries and documents lack a vector, and how many there are in all."""

    queries: int
    documents: int
    all_queries: int
    all_documents: int

    @property
    def texts(self) -> int:
        """Texts without a vector."""
        return self.queries + self.documents

    def __str__(self) -> str:
        return (
            f"{self.queries} of {self.all_queries} queries and {self.documents} of {self.all_documents} documents "
            "have no vector"
        )


class StoredVectors:
    """The vectors of a store: which are missing, and making them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lacking(self, embedder: str | None = None) -> Lacking:
        """How many queries and documents lack a vector of *embedder*; None is of any."""
        queries, documents = schema.queries, schema.documents
        with self._database.read() as connection:
            counts = [
                int(connection.execute(select(func.count()).select_from(statement.subquery())).scalar_one())
                for statement in (
                    _without(connection, queries, schema.query_vectors, embedder),
                    _without(connection, documents, schema.document_vectors, embedder),
                    select(queries.c.id),
                    select(documents.c.id),
                )
            ]
        return Lacking(*counts)

    def fill(
        self,
        model: Embedder,
        embedder: str,
        *,
        only_without_any: bool = False,
        watch: Callable[[int], object] = lambda _: None,
    ) -> Lacking:
        """Give vectors of *model* to texts that lack one of *embedder*; gives what lacks one still, without a text.

        Vectors that are there stay beside. Each part is written as soon as it is embedded, so a run that was stopped
        goes on where it was; *watch* is told how many texts it had. With *only_without_any*, texts with a vector of
        another model are left out.
        """
        checked_name("embedder", embedder)
        lacking = None if only_without_any else embedder
        for table, of, embed in (
            (schema.queries, schema.query_vectors, model.embed_queries),
            (schema.documents, schema.document_vectors, model.embed_documents),
        ):
            after = 0
            while texts := self._texts(table, of, lacking, after):
                rows = np.asarray(embed(list(texts.values())))
                self._write(table, of, embedder, texts, dict(zip(texts, rows, strict=True)))
                after = max(texts)
                watch(len(texts))
        return self.lacking(lacking)

    def _texts(self, table: Table, of: Table, embedder: str | None, after: int) -> dict[int, str]:
        """The next texts without a vector, by the ids of their rows."""
        with self._database.read() as connection:
            lacking = _without(connection, table, of, embedder).add_columns(table.c.text)
            chosen = lacking.where(table.c.text.is_not(None), table.c.text != "", table.c.id > after)
            return {row.id: row.text for row in connection.execute(chosen.order_by(table.c.id).limit(_AT_ONCE))}

    def _write(
        self, table: Table, of: Table, embedder: str, texts: Mapping[int, str], vectors: Mapping[int, FloatArray]
    ) -> None:
        packed = {row: checked_vector("vector", vector) for row, vector in vectors.items()}
        with self._database.write("observing") as connection:
            number = embedder_id(connection, embedder, len(next(iter(packed.values()))) // 4)
            # Some may have been forgotten meanwhile, or have another text; the others stay locked until it ends.
            locked = select(table.c.id, table.c.text).where(table.c.id.in_(packed)).order_by(table.c.id)
            there = [row for row, text in connection.execute(locked.with_for_update()) if text == texts[row]]
            key = "query" if table is schema.queries else "document"
            rows = [
                {key: row, "embedder": number, "vector": packed[row], "checksum": checksum(packed[row])}
                for row in there
            ]
            insert_all(connection, of, rows)
            if table is schema.queries:
                unnamed = table.update().where(table.c.id.in_(there), table.c.embedder.is_(None))
                connection.execute(unnamed.values(embedder=number))


def _without(connection: Connection, table: Table, of: Table, embedder: str | None) -> Select[tuple[int]]:
    """The ids of rows of *table* without a vector in *of*, of *embedder* or (None) of any."""
    (key,) = [column for column in of.c if column.name in ("query", "document")]
    on = key == table.c.id
    if embedder is not None:
        on = and_(on, of.c.embedder == id_of(connection, schema.embedders, embedder))
    return select(table.c.id).outerjoin(of, on).where(key.is_(None))
