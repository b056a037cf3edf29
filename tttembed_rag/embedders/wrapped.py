"""Embedders made of objects of LangChain and LlamaIndex (neither is imported), of functions and of other embedders."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.embedders.bridge import Bridge, bridge_for
from tttembed_rag.embedders.contract import Embedder, RoleEmbedder, in_role, unit_vectors
from tttembed_rag.errors import InputError, check_count
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.functions import vectors_from

# The methods for queries and for documents by which objects are recognised; those of a framework take one query.
_OWN = ("embed_queries", "embed_documents")
_LANGCHAIN = ("embed_query", "embed_documents")
_LLAMA_INDEX = ("get_query_embedding", "get_text_embedding_batch")
# Attributes in which embedding classes keep the name of their model.
_NAMES = ("model_name", "model", "model_id", "deployment", "repo_id")


class FrameworkEmbedder(RoleEmbedder):
    """The vectors of a LangChain ``Embeddings``, a LlamaIndex ``BaseEmbedding`` or a user's `Embedder`, at unit length.

    A *fingerprint* of None is that of an `Embedder`, else the class of *model* and the name of the model in it, which
    say nothing of prompts.
    """

    def __init__(self, model: Any, *, fingerprint: str | None = None) -> None:
        methods = _methods_of(model)
        if methods is None:
            raise InputError(
                f"embedder: expected an object with {' and '.join(_LANGCHAIN)} (LangChain), or with "
                f"{' and '.join(_LLAMA_INDEX)} (LlamaIndex), got {type(model).__name__}"
            )
        self._methods = [getattr(model, name) for name in methods]
        self._names = [getattr(method, "__qualname__", type(method).__name__) for method in self._methods]
        self._query_by_query = methods != _OWN
        if self._query_by_query and not fingerprint:
            named = (getattr(model, name, None) for name in _NAMES)
            name = next((name for name in named if isinstance(name, str)), "unnamed")
            fingerprint = fingerprint_of(type(model).__name__, name, dimensions=getattr(model, "dimensions", None))
        self.fingerprint = fingerprint or model.fingerprint

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether *model* has the methods of one of the frameworks, or of an `Embedder`."""
        return _methods_of(model) is not None

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        method, name = self._methods[place], self._names[place]
        if self._query_by_query and not place:
            return unit_vectors(self.fingerprint, [vectors_from(name, method, text) for text in texts], texts)
        return unit_vectors(self.fingerprint, vectors_from(name, method, list(texts)) if texts else (), texts)


class FunctionEmbedder(FrameworkEmbedder):
    """The vectors of a function *embed* from texts to vectors (len(texts), d), for queries and documents alike.

    The fingerprint says no more of it than its *name*.
    """

    def __init__(self, embed: Callable[[list[str]], Any], *, name: str) -> None:
        self.fingerprint = f"python:{name}"
        self._methods, self._names, self._query_by_query = [embed] * 2, [self.fingerprint] * 2, False


def _methods_of(model: Any) -> tuple[str, str] | None:
    known = (_OWN, _LANGCHAIN, _LLAMA_INDEX) if hasattr(model, "fingerprint") else (_LANGCHAIN, _LLAMA_INDEX)
    return next((names for names in known if all(callable(getattr(model, name, None)) for name in names)), None)


class Truncated(RoleEmbedder):
    """The first *dimensions* of another embedder's vectors, at unit length again."""

    def __init__(self, embedder: Embedder, dimensions: int) -> None:
        check_count("dimensions", dimensions)
        self._embedder = embedder
        self._dimensions = dimensions
        self.fingerprint = f"{embedder.fingerprint}[:{dimensions}]"

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        vectors = in_role(self._embedder, texts, place)
        if len(vectors) and vectors.shape[1] < self._dimensions:
            raise InputError(f"dimensions: expected at most {vectors.shape[1]}, got {self._dimensions}")
        return unit_vectors(self.fingerprint, vectors[:, : self._dimensions], texts)


class Bridged(RoleEmbedder):
    """A new model as an embedder of an old index: its vectors across a `Bridge`.

    Args:
        model: An `Embedder`, or an embedding object of LangChain or LlamaIndex.
        bridge: The bridge, or the path of its file.

    Raises:
        InputError: The bridge was learned for another model.
        DataError: The file is no bridge.
    """

    def __init__(self, model: Any, bridge: Bridge | str | os.PathLike[str]) -> None:
        self._embedder = model if isinstance(model, Embedder) else FrameworkEmbedder(model)
        self.bridge = bridge_for(lambda text: self._embedder.embed_queries([text])[0], bridge)
        self.fingerprint = self.bridge.name_of(self._embedder.fingerprint)

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        vectors = in_role(self._embedder, texts, place)
        return self.bridge.apply(vectors, documents=bool(place)) if len(vectors) else vectors
