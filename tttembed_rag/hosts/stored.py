"""Document vectors from the client of a store, for ``TextVectors(stored=...)``: nothing is embedded twice.

Each function below gives a function from ids to the vectors that the store has under them. Ids that it lacks are left
out. A store that normalises gives unit vectors, which rank the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from tttembed_rag.errors import InputError, require

__all__ = ["VectorsById", "from_chroma", "from_pgvector", "from_qdrant"]

VectorsById: TypeAlias = Callable[[list[str]], Mapping[str, Any]]


def from_qdrant(client: Any, collection: str, *, vector: str | None = None) -> VectorsById:
    """The vectors of a Qdrant *collection*.

    Args:
        client: A ``QdrantClient``.

        collection: Its name.

        vector: The name of the vector, where points have several.
    """

    def stored(ids: list[str]) -> Mapping[str, Any]:
        points = client.retrieve(collection, ids=[_point(key) for key in ids], with_payload=False, with_vectors=True)
        found = {str(one.id): one.vector for one in points}
        return {
            key: value.get(vector or "") if isinstance(value, dict) else value
            for key in ids
            if (value := found.get(str(_point(key)))) is not None
            and not (isinstance(value, dict) and (vector or "") not in value)
        }

    return stored


def _point(key: str) -> int | str:
    """The id of a point: Qdrant knows numbers and UUIDs."""
    if key.isdigit():
        return int(key)
    try:
        return str(UUID(key))
    except ValueError:
        return key


def from_pgvector(connection: Any, table: str, *, key: str = "id", column: str = "embedding") -> VectorsById:
    """The vectors of a PostgreSQL table with pgvector.

    Args:
        connection: A ``psycopg.Connection``, or a function that gives one: a connection is for one thread at a time.

        table: The table; ``schema.table`` too.

        key: The column of ids.

        column: The column of vectors.
    """
    sql = require("psycopg.sql", "postgres")
    statement = sql.SQL("SELECT {key}::text, {column}::text FROM {table} WHERE {key}::text = ANY(%s)").format(
        key=sql.Identifier(key), column=sql.Identifier(column), table=sql.Identifier(*table.split("."))
    )

    def stored(ids: list[str]) -> Mapping[str, Any]:
        opened = connection() if callable(connection) else connection
        rows = opened.execute(statement, [ids]).fetchall()
        return {name: _parsed(text) for name, text in rows if text is not None}

    return stored


def _parsed(text: str) -> list[float]:
    """The numbers of a vector as pgvector prints it."""
    if not (text.startswith("[") and text.endswith("]")):
        raise InputError(f"column: expected vectors of pgvector, got {text[:40]!r}")
    return [float(number) for number in text[1:-1].split(",")]


def from_chroma(collection: Any) -> VectorsById:
    """The vectors of a Chroma *collection*."""

    def stored(ids: list[str]) -> Mapping[str, Any]:
        found = collection.get(ids=ids, include=["embeddings"])
        return dict(zip(found["ids"], found["embeddings"], strict=True))

    return stored
