"""The contract of every embedding model: unit vectors of queries and of documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tttembed_rag.errors import EmbedderError, VectorError
from tttembed_rag.rewards.names import whole
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms


@runtime_checkable
class Embedder(Protocol):
    """A frozen embedding model: texts in, unit vectors out."""

    @property
    def fingerprint(self) -> str:
        """A text of everything that decides its vectors: model, revision, prompts, pooling, width. No secrets."""

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries, as float32."""

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents, as float32."""


class RoleEmbedder(ABC):
    """A base class of embedders that ask for queries and for documents alike, but for what they choose by *place*."""

    fingerprint: str

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries, as float32."""
        return self._embed(list(map(whole, texts)), 0)

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents, as float32."""
        return self._embed(list(map(whole, texts)), 1)

    @abstractmethod
    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        """The vectors of queries where *place* is 0, of documents where it is 1."""


def in_role(embedder: Embedder, texts: Sequence[str], place: int) -> FloatArray:
    """The vectors of *texts* as queries where *place* is 0, as documents where it is 1."""
    return (embedder.embed_documents if place else embedder.embed_queries)(texts)


def unit_vectors(name: str, vectors: Any, texts: Sequence[str], *, first: int = 0) -> FloatArray:
    """The *vectors* (n, d) of a model for n *texts*, of any norm, checked, at unit length, as float32.

    Raises:
        EmbedderError: There are more or fewer vectors than texts.
        VectorError: A vector is NaN, infinite or zero, or of another width; the message has its row, counted from
            *first*, and its text.
    """
    if not len(texts):
        return np.empty((0, 0), dtype=np.float32)
    try:
        with np.errstate(over="ignore"):  # becomes infinite, and is refused below
            floats = as_floats(name, vectors).astype(np.float32)
        if floats.ndim != 2 or len(floats) != len(texts) or not floats.shape[1]:
            raise EmbedderError(f"{name}: expected one vector for each of {len(texts)} texts, got shape {floats.shape}")
        return floats / checked_norms(name, floats, first=first)[:, None]
    except (EmbedderError, VectorError) as exc:
        if len(vectors) != len(texts):
            raise
        widths = [_width(vector) for vector in vectors]
        usual = max(widths, key=widths.count)
        row = next((row for row, width in enumerate(widths) if width != usual or not width), 0)
        raise type(exc)(f"{exc.brief}; see row {first + row}:", f"{texts[row]!r:.80}") from exc


def _width(vector: Any) -> int:
    """The width of a *vector*; 0 where it is none that can be served."""
    try:
        floats = as_floats("", vector)
        if floats.ndim != 1 or not floats.size:
            return 0
        with np.errstate(over="ignore"):
            checked_norms("", floats.astype(np.float32))
    except VectorError:
        return 0
    return floats.size


def check_width(name: str, vectors: FloatArray, width: int) -> None:
    """Refuse *vectors* (n, d) or (d,) of the model *name* that have another *width*."""
    if vectors.shape[-1] != width:
        raise EmbedderError(f"{name}: expected vectors of width {width}, got {vectors.shape[-1]}")
