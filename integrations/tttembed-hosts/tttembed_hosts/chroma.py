"""Chroma: an embedding function, registered as ``tttembed``, around any other; queries are steered, documents are not.

    function = ChromaEmbeddingFunction(OpenAIEmbeddingFunction(...), store="sqlite:///ttt.db", task="billing")
    collection = client.create_collection("manuals", embedding_function=function)

A collection keeps the function's configuration: that of the inner function, the store's name and the task, never a
vector. A process that opens the collection imports this module first. Chroma hands a query to ``embed_query`` and a
document to the function itself; ``collection.query(query_embeddings=...)`` and functions that run in Chroma's own
server bypass both.
"""

from __future__ import annotations

from typing import Any

from tttembed_hosts.extras import require
from tttembed_rag import InputError, Steering, context
from tttembed_rag.adapting import checked_store, steering_of

require("chromadb", "chroma")
import numpy as np  # noqa: E402
from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space  # noqa: E402
from chromadb.utils.embedding_functions import known_embedding_functions, register_embedding_function  # noqa: E402

__all__ = ["ChromaEmbeddingFunction"]


@register_embedding_function
class ChromaEmbeddingFunction(EmbeddingFunction[Documents]):
    """Another embedding function, with an offset added to the vectors of queries.

    Args:
        inner: The function; one that Chroma can save, for collections that are opened by name.
        store: Where offsets come from: the URL of a store, ``env:NAME`` for a URL in a variable, or an offsets file.
        task: The task of every query; None is the caller's ``with context(...)``.
        tenant: Whose offsets are served; None is the caller's.
        embedder: Fingerprint of the inner model; offsets for another one are not served. Empty does not look.

    Raises:
        InputError: *inner* has offsets already, or *store* may not be saved.
    """

    def __init__(
        self,
        inner: EmbeddingFunction[Documents],
        *,
        store: str,
        task: str | None = None,
        tenant: str | None = None,
        embedder: str = "",
    ) -> None:
        if isinstance(inner, ChromaEmbeddingFunction):
            raise InputError("inner: expected a function without offsets, got ChromaEmbeddingFunction; pass its .inner")
        self.inner = inner
        self._saved = {"store": checked_store(store), "task": task, "tenant": tenant, "embedder": embedder}
        self._steering: Steering | None = None

    def __call__(self, input: Documents) -> Embeddings:  # noqa: A002 - Chroma's name
        """Vectors of documents, exactly as the inner function gives them."""
        return self.inner(input)

    def embed_query(self, input: Documents) -> Embeddings:  # noqa: A002 - Chroma's name
        """Vectors of queries with their offset."""
        vectors = self.inner.embed_query(input)
        if self._steering is None:
            self._steering = steering_of(**self._saved, or_base=True)  # type: ignore[arg-type]  # by its own names
        with context(tenant=self._saved["tenant"]):
            turned = self._steering.apply_each(vectors, [text if isinstance(text, str) else "" for text in input])
        return [
            base if vector == list(base) else np.asarray(vector, dtype=np.float32)
            for base, vector in zip(vectors, turned, strict=True)
        ]

    @staticmethod
    def name() -> str:
        """Its name in Chroma's registry."""
        return "tttembed"

    def get_config(self) -> dict[str, Any]:
        """What a collection keeps of it."""
        return {"inner": self.inner.name(), "inner_config": self.inner.get_config(), **self._saved}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> ChromaEmbeddingFunction:
        """The function that `get_config` described."""
        inner = known_embedding_functions[config["inner"]].build_from_config(config["inner_config"])
        rest = {name: config.get(name) for name in ("task", "tenant")}
        return ChromaEmbeddingFunction(inner, store=config["store"], embedder=config.get("embedder") or "", **rest)

    def default_space(self) -> Space:
        """The inner function's."""
        return self.inner.default_space()

    def supported_spaces(self) -> list[Space]:
        """The inner function's."""
        return self.inner.supported_spaces()
