"""Vectors for texts that are stored without: of served queries that came without them, or of a new embedding model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, Select, Table, and_, func, select

from tttembed_rag.embedders import Embedder
from tttembed_rag.rewards.names import checked_name
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.records import checked_vector, checksum
from tttembed_rag.stores.rows import embedder_id, id_of, in_parts, insert_all
from tttembed_rag.vectors.checks import FloatArray

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
        with self._database.read() as connection:
            number = None if embedder is None else id_of(connection, schema.embedders, embedder)
            counts = [
                int(connection.execute(select(func.count()).select_from(statement.subquery())).scalar_one())
                for statement in (
                    _without(schema.queries, schema.query_vectors, number, any_model=embedder is None),
                    _without(schema.documents, schema.document_vectors, number, any_model=embedder is None),
                    select(schema.queries.c.id),
                    select(schema.documents.c.id),
                )
            ]
        return Lacking(*counts)

    def fill(
        self,
        model: Embedder,
        embedder: str,
        *,
        only_without_any: bool = False,
        watch: Callable[[int], None] | None = None,
    ) -> Lacking:
        """Embed stored texts that lack a vector of *embedder*; gives what lacks one still, as its text is not kept.

        Vectors that are there stay beside. Each part is written as soon as it is embedded, so a run that was stopped
        goes on where it was; *watch* is told how many texts it had. With *only_without_any*, texts with a vector of
        another model are left out.
        """
        checked_name("embedder", embedder)
        for table, of, embed in (
            (schema.queries, schema.query_vectors, model.embed_queries),
            (schema.documents, schema.document_vectors, model.embed_documents),
        ):
            after = 0
            while texts := self._texts(table, of, embedder, after, any_model=only_without_any):
                rows = np.asarray(embed(list(texts.values())))
                self._write(table, of, embedder, dict(zip(texts, rows, strict=True)))
                after = max(texts)
                if watch is not None:
                    watch(len(texts))
        return self.lacking(None if only_without_any else embedder)

    def _texts(self, table: Table, of: Table, embedder: str, after: int, *, any_model: bool) -> dict[int, str]:
        """The next texts without a vector, by the ids of their rows."""
        with self._database.read() as connection:
            number = id_of(connection, schema.embedders, embedder)
            lacking = _without(table, of, number, any_model=any_model).add_columns(table.c.text)
            chosen = lacking.where(table.c.text.is_not(None), table.c.text != "", table.c.id > after)
            return {row.id: row.text for row in connection.execute(chosen.order_by(table.c.id).limit(_AT_ONCE))}

    def _write(self, table: Table, of: Table, embedder: str, vectors: Mapping[int, FloatArray]) -> None:
        packed = {row: checked_vector("vector", vector) for row, vector in vectors.items()}
        with self._database.write("observing") as connection:
            number = embedder_id(connection, embedder, len(next(iter(packed.values()))) // 4)
            there = _locked(connection, table, list(packed))  # some may have been forgotten meanwhile
            key = "query" if table is schema.queries else "document"
            rows = [
                {key: row, "embedder": number, "vector": packed[row], "checksum": checksum(packed[row])}
                for row in there
            ]
            insert_all(connection, of, rows)
            if table is schema.queries:
                unnamed = table.update().where(table.c.id.in_(there), table.c.embedder.is_(None))
                connection.execute(unnamed.values(embedder=number))


def _without(table: Table, of: Table, embedder: int | None, *, any_model: bool) -> Select[tuple[int]]:
    """The ids of rows of *table* without a vector in *of*, of one embedder or of any."""
    (key,) = [column for column in of.c if column.name in ("query", "document")]
    on = key == table.c.id if any_model else and_(key == table.c.id, of.c.embedder == embedder)
    return select(table.c.id).outerjoin(of, on).where(key.is_(None))


def _locked(connection: Connection, table: Table, numbers: Sequence[int]) -> list[int]:
    """Those of the ids that are still there, locked until the transaction ends, in order."""
    return [
        number
        for part in in_parts(sorted(numbers))
        for number in connection.execute(
            select(table.c.id).where(table.c.id.in_(part)).order_by(table.c.id).with_for_update()
        ).scalars()
    ]
