"""Document vectors from the client of a store, for ``TextVectors(stored=...)``: nothing is embedded twice.

Each function below gives a function from ids to the vectors that the store has under them. Ids that it lacks are left
out. A store that normalises gives unit vectors, which rank the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import NAMESPACE_DNS, UUID, uuid5

from tttembed_rag.errors import InputError, require

__all__ = ["VectorsById", "from_chroma", "from_elasticsearch", "from_pgvector", "from_qdrant", "from_weaviate"]

VectorsById: TypeAlias = Callable[[list[str]], Mapping[str, Any]]

# Ids that a server is asked for at once: both refuse or cut a longer answer.
_AT_ONCE = 500


def from_qdrant(client: Any, collection: str, *, vector: str | None = None) -> VectorsById:
    """The vectors of a Qdrant *collection*.

    Args:
        client: A ``QdrantClient``.
        collection: Its name.
        vector: The name of the vector, where points have several.
    """

    def stored(ids: list[str]) -> Mapping[str, Any]:
        points = {key: point for key in ids if (point := _point(key)) is not None}
        records = client.retrieve(collection, ids=list(points.values()), with_payload=False, with_vectors=True)
        vectors = {
            str(record.id): record.vector.get(vector or "") if isinstance(record.vector, dict) else record.vector
            for record in records
        }
        return {key: value for key, point in points.items() if (value := vectors.get(str(point))) is not None}

    return stored


def _point(key: str) -> int | str | None:
    """The id of a point: Qdrant knows numbers of 64 bits and UUIDs, and refuses a request with anything else."""
    if key.isdecimal():
        return int(key) if len(key) <= 20 and str(int(key)) == key and int(key) < 2**64 else None
    try:
        return str(UUID(key))
    except ValueError:
        return None


def from_pgvector(connection: Any, table: str, *, key: str = "id", column: str = "embedding") -> VectorsById:
    """The vectors of a PostgreSQL table with pgvector.

    Args:
        connection: A ``psycopg.Connection``, or a function that gives one: a connection is for one thread at a time. It
            is left as it was found, outside of a transaction or within one.
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
        with opened.transaction():  # one that nobody ends would hold up the cleaning of the tables
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
        columns = collection.get(ids=ids, include=["embeddings"])
        return dict(zip(columns["ids"], columns["embeddings"], strict=True))

    return stored


def from_elasticsearch(client: Any, index: str, *, field: str = "embedding") -> VectorsById:
    """The vectors of an Elasticsearch *index*, by the ``_id`` of its documents.

    They are asked for as fields: since Elasticsearch 9.2 the source of a document lacks its vectors.

    Args:
        client: An ``Elasticsearch`` client, version 8 or later.
        index: Its name, or an alias.
        field: The ``dense_vector`` field.
    """

    def stored(ids: list[str]) -> Mapping[str, Any]:
        hits = [
            hit
            for part in _parts(ids)
            for hit in client.search(
                index=index, query={"ids": {"values": part}}, fields=[field], source=False, size=len(part)
            )["hits"]["hits"]
        ]
        return {hit["_id"]: hit["fields"][field] for hit in hits if field in hit.get("fields", {})}

    return stored


def from_weaviate(collection: Any, *, vector: str = "default") -> VectorsById:
    """The vectors of a Weaviate *collection*, by the UUIDs of its objects.

    An id that is no UUID stands for the UUID that ``weaviate.util.generate_uuid5`` makes of it.

    Args:
        collection: A collection of the client of version 4, such as ``client.collections.get("Manuals")``; with
            ``.with_tenant(...)`` where it has tenants.
        vector: The name of the vector, where objects have several.
    """

    def stored(ids: list[str]) -> Mapping[str, Any]:
        uuids = {key: _uuid(key) for key in ids}
        objects = [
            stored_object
            for part in _parts(list(set(uuids.values())))
            # Without a limit the server gives its default number of objects, most often ten.
            for stored_object in collection.query.fetch_objects_by_ids(
                part, limit=len(part), include_vector=True, return_properties=False
            ).objects
        ]
        vectors = {each.uuid: each.vector[vector] for each in objects if vector in each.vector}
        return {key: vectors[uuid] for key, uuid in uuids.items() if uuid in vectors}

    return stored


def _uuid(key: str) -> UUID:
    try:
        return UUID(key)
    except ValueError:
        return uuid5(NAMESPACE_DNS, key)


def _parts(keys: list[Any]) -> list[list[Any]]:
    return [keys[first : first + _AT_ONCE] for first in range(0, len(keys), _AT_ONCE)]
