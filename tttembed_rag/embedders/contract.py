"""The contract of every embedding model: unit vectors of queries and of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import EmbedderError
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


def unit_vectors(name: str, vectors: ArrayLike, count: int) -> FloatArray:
    """The *vectors* (count, d) of a model for so many texts, of any norm, checked, at unit length, as float32.

    Raises:
        EmbedderError: There are more or fewer vectors than texts, or vectors of several widths.
        VectorError: A vector is NaN, infinite or zero.
    """
    if not count:
        return np.empty((0, 0), dtype=np.float32)
    try:
        given = np.asarray(vectors)
    except ValueError as exc:
        raise EmbedderError(f"{name}: expected vectors of one width, got several") from exc
    with np.errstate(over="ignore"):  # becomes infinite, and is refused below
        floats = as_floats(name, given).astype(np.float32)
    if floats.ndim != 2 or len(floats) != count or not floats.shape[1]:
        raise EmbedderError(f"{name}: expected one vector for each of {count} texts, got shape {floats.shape}")
    return floats / checked_norms(name, floats)[:, None]


class Width:
    """The width of the vectors of the model *name*: the *expected* one, or that of the first ones."""

    def __init__(self, name: str, expected: int | None = None) -> None:
        self._name, self._expected = name, expected

    def checked(self, vectors: FloatArray) -> FloatArray:
        """The vectors (n, d) as they are.

        Raises:
            EmbedderError: They have another width than those before.
        """
        width = vectors.shape[1]
        if self._expected is None:
            self._expected = width
        if width != self._expected:
            raise EmbedderError(f"{self._name}: expected vectors of width {self._expected}, got {width}")
        return vectors
