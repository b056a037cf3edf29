"""LanceDB: an embedding function, registered as ``tttembed``, around any other; searches are steered, rows are not.

    function = get_registry().get("tttembed").create(inner="openai", options={"name": "text-embedding-3-small"},
                                                     store="sqlite:///ttt.db", task="billing")

A table keeps the function's configuration: the inner function, the store's name and the task, never a vector. A process
that opens the table imports this module first. A function that was given to a table stays with it: the documents of a
table that was made with another function are embedded again only if you rebuild it.
"""

from __future__ import annotations

from typing import Any

from tttembed_hosts.extras import require
from tttembed_rag import InputError, Steering, context
from tttembed_rag.adapting import checked_store, steering_of

require("lancedb.embeddings", "lancedb")
from lancedb.embeddings import EmbeddingFunction, get_registry, register  # noqa: E402
from pydantic import Field, PrivateAttr  # noqa: E402 - LanceDB brings it

__all__ = ["LanceEmbeddingFunction"]

NAME = "tttembed"


@register(NAME)  # type: ignore[no-untyped-call]
class LanceEmbeddingFunction(EmbeddingFunction):
    """Another embedding function of the registry, with an offset added to the vectors of queries.

    Attributes:
        inner: The name of the function in LanceDB's registry.
        options: What that function is created with.
        store: Where offsets come from: the URL of a store, ``env:NAME`` for a URL in a variable, or an offsets file.
        task: The task of every query; None is the caller's ``with context(...)``.
        tenant: Whose offsets are served; None is the caller's.
        embedder: Fingerprint of the inner model; offsets for another one are not served. Empty does not look.
    """

    inner: str
    options: dict[str, Any] = Field(default_factory=dict)
    store: str
    task: str | None = None
    tenant: str | None = None
    embedder: str = ""

    _function: Any = PrivateAttr()
    _steering: Steering | None = PrivateAttr(default=None)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        checked_store(self.store)
        if self.inner == NAME:
            raise InputError(f"inner: expected a function without offsets, got {NAME!r}")
        self._function = get_registry().get(self.inner).create(**self.options)  # type: ignore[no-untyped-call]

    def ndims(self) -> int:
        """Width of the vectors."""
        width: int = self._function.ndims()
        return width

    def compute_source_embeddings(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Vectors of documents, exactly as the inner function gives them."""
        vectors: list[Any] = self._function.compute_source_embeddings(*args, **kwargs)
        return vectors

    def compute_query_embeddings(self, query: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Vectors of queries with their offset."""
        if self._steering is None:
            self._steering = steering_of(
                self.store, task=self.task, tenant=self.tenant, embedder=self.embedder, or_base=True
            )
        vectors = self._function.compute_query_embeddings(query, *args, **kwargs)
        text = query if isinstance(query, str) else ""
        with context(tenant=self.tenant):
            return self._steering.apply_each(vectors, [text] * len(vectors))
