"""Embedding objects of LangChain and LlamaIndex, recognised by their methods (neither is imported), and functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tttembed_rag.embedders.contract import Embedder, unit_vectors
from tttembed_rag.errors import InputError
from tttembed_rag.models.fingerprints import fingerprint_of
from tttembed_rag.vectors.asked import vectors_from
from tttembed_rag.vectors.checks import FloatArray

# The methods by which the objects of a framework are recognised.
_LANGCHAIN = ("embed_query", "embed_documents")
_LLAMA_INDEX = ("get_query_embedding", "get_text_embedding_batch")
# Attributes in which embedding classes keep the name of their model.
_NAMES = ("model_name", "model", "model_id", "deployment", "repo_id")


class FrameworkEmbedder:
    """The vectors of a LangChain ``Embeddings`` or a LlamaIndex ``BaseEmbedding``, at unit length.

    Args:
        model: The object.

        fingerprint: A text of everything that decides its vectors; None takes its class and the name of its
            model, which say nothing of prompts: give a fingerprint where you change them.
    """

    def __init__(self, model: Any, *, fingerprint: str | None = None) -> None:
        if _has(model, *_LANGCHAIN):
            self._one_query, self._documents = model.embed_query, model.embed_documents
        elif _has(model, *_LLAMA_INDEX):
            self._one_query, self._documents = model.get_query_embedding, model.get_text_embedding_batch
        else:
            raise InputError(
                f"embedder: expected an object with {' and '.join(_LANGCHAIN)} (LangChain), or with "
                f"{' and '.join(_LLAMA_INDEX)} (LlamaIndex), got {type(model).__name__}"
            )
        kind = type(model).__name__
        name = next((value for name in _NAMES if isinstance(value := getattr(model, name, None), str)), "unnamed")
        self.fingerprint = fingerprint or fingerprint_of(kind, name, dimensions=getattr(model, "dimensions", None))

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether *model* has the methods of one of the frameworks."""
        return _has(model, *_LANGCHAIN) or _has(model, *_LLAMA_INDEX)

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries, asked for one by one."""
        vectors = [vectors_from(_name_of(self._one_query), self._one_query, text) for text in texts]
        return unit_vectors(self.fingerprint, vectors, len(texts))

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents."""
        return _of_batch(self.fingerprint, _name_of(self._documents), self._documents, texts)


class OwnEmbedder:
    """The vectors of an `Embedder` that a user wrote, each answer checked, at unit length.

    Args:
        model: Has a fingerprint, embed_queries and embed_documents.
    """

    def __init__(self, model: Embedder) -> None:
        self._model = model
        self.fingerprint = model.fingerprint

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries."""
        return self._asked(self._model.embed_queries, texts)

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents."""
        return self._asked(self._model.embed_documents, texts)

    def _asked(self, embed: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> FloatArray:
        return _of_batch(self.fingerprint, _name_of(embed), embed, texts)


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


def _has(model: Any, *names: str) -> bool:
    return all(callable(getattr(model, name, None)) for name in names)
