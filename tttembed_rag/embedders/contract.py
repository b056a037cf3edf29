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
    """The vectors of a model for *count* texts, checked, at unit length, as float32.

    Args:
        name: The model's name, for errors.

        vectors: (count, d) numbers of any norm.

        count: Number of texts that the model was given.

    Raises:
        EmbedderError: There are more or fewer vectors than texts.
        VectorError: A vector is NaN, infinite or zero.
    """
    if not count:
        return np.empty((0, 0), dtype=np.float32)
    floats = as_floats(name, np.asarray(vectors)).astype(np.float32)
    if floats.ndim != 2 or len(floats) != count:
        raise EmbedderError(f"{name}: expected one vector for each of {count} texts, got shape {floats.shape}")
    return floats / checked_norms(name, floats)[:, None]
