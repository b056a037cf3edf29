"""Embedding objects of LangChain and LlamaIndex, recognised by their methods (neither is imported), and functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tttembed_rag.embedders.contract import unit_vectors
from tttembed_rag.errors import InputError
from tttembed_rag.models.fingerprints import fingerprint_of
from tttembed_rag.vectors.asked import vectors_from
from tttembed_rag.vectors.checks import FloatArray

# The methods for queries and for documents by which objects are recognised; those of a framework take one query.
_OWN = ("embed_queries", "embed_documents")
_LANGCHAIN = ("embed_query", "embed_documents")
_LLAMA_INDEX = ("get_query_embedding", "get_text_embedding_batch")
# Attributes in which embedding classes keep the name of their model.
_NAMES = ("model_name", "model", "model_id", "deployment", "repo_id")


class FrameworkEmbedder:
    """The vectors of a LangChain ``Embeddings``, a LlamaIndex ``BaseEmbedding`` or a user's `Embedder`, at unit length.

    Args:
        model: The object.
        fingerprint: A text of everything that decides its vectors; None takes that of an `Embedder`, else its class and
            the name of its model, which say nothing of prompts: give a fingerprint where you change them.
    """

    def __init__(self, model: Any, *, fingerprint: str | None = None) -> None:
        methods = _methods_of(model)
        if methods is None:
            raise InputError(
                f"embedder: expected an object with {' and '.join(_LANGCHAIN)} (LangChain), or with "
                f"{' and '.join(_LLAMA_INDEX)} (LlamaIndex), got {type(model).__name__}"
            )
        self._queries, self._documents = (getattr(model, name) for name in methods)
        self._one_by_one = methods != _OWN
        kind = type(model).__name__
        name = next((value for name in _NAMES if isinstance(value := getattr(model, name, None), str)), "unnamed")
        said = fingerprint_of(kind, name, dimensions=getattr(model, "dimensions", None))
        self.fingerprint = fingerprint or (said if self._one_by_one else model.fingerprint)

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether *model* has the methods of one of the frameworks, or of an `Embedder`."""
        return _methods_of(model) is not None

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries; a framework is asked for them one by one."""
        name = _name_of(self._queries)
        if not self._one_by_one:
            return _of_batch(self.fingerprint, name, self._queries, texts)
        vectors = [vectors_from(name, self._queries, text) for text in texts]
        return unit_vectors(self.fingerprint, vectors, len(texts))

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents."""
        return _of_batch(self.fingerprint, _name_of(self._documents), self._documents, texts)


class FunctionEmbedder:
    """The vectors of a function from texts to vectors, the same for queries and documents, at unit length.

    Args:
        embed: Texts to vectors (len(texts), d).
        name: Its name; the fingerprint says nothing else of it.
    """

    def __init__(self, embed: Callable[[list[str]], Any], *, name: str) -> None:
        self._embed = embed
        self.fingerprint = f"python:{name}"

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries."""
        return self.embed_documents(texts)

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents."""
        return _of_batch(self.fingerprint, self.fingerprint, self._embed, texts)


def _of_batch(model: str, name: str, embed: Callable[[list[str]], Any], texts: Sequence[str]) -> FloatArray:
    return unit_vectors(model, vectors_from(name, embed, list(texts)) if texts else (), len(texts))


def _name_of(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", type(method).__name__)


def _methods_of(model: Any) -> tuple[str, str] | None:
    known = (_OWN, _LANGCHAIN, _LLAMA_INDEX) if hasattr(model, "fingerprint") else (_LANGCHAIN, _LLAMA_INDEX)
    return next((names for names in known if all(callable(getattr(model, name, None)) for name in names)), None)
