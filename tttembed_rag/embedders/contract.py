"""The contract of every embedding model, unit vectors of queries and of documents, and how a service is held to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import EmbedderError, JudgeError
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms

# Characters in a request, as many as every service takes: about 20,000 tokens of 3.
_CHARACTERS = 60_000


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

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries, as float32."""
        return self._embed(texts, 0)

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents, as float32."""
        return self._embed(texts, 1)

    @abstractmethod
    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        """The vectors of queries where *place* is 0, of documents where it is 1."""


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


def embedded(
    name: str, texts: Sequence[str], ask: Callable[[list[str]], ArrayLike], *, at_once: int, dimensions: int | None
) -> FloatArray:
    """Unit vectors (len(texts), d) of what *ask* gives for each group of at most *at_once* of the *texts*.

    Their width is *dimensions*, or that of the first ones.

    Raises:
        EmbedderError: The service refused a request, stayed busy or answered something else; it has the model's *name*.
    """
    groups: list[list[str]] = []
    for text in texts:
        if not groups or len(groups[-1]) == at_once or sum(map(len, groups[-1])) + len(text) > _CHARACTERS:
            groups.append([])
        groups[-1].append(text)
    parts: list[FloatArray] = []
    try:
        for group in groups:
            parts.append(unit_vectors(name, ask(group), len(group)))
            check_width(name, parts[-1], dimensions or parts[0].shape[1])
    except JudgeError as exc:
        raise EmbedderError(exc.brief, exc.said) from exc
    return np.concatenate(parts) if parts else unit_vectors(name, [], 0)


def check_width(name: str, vectors: FloatArray, width: int) -> None:
    """Refuse *vectors* (n, d) or (d,) of the model *name* that have another *width*."""
    if vectors.shape[-1] != width:
        raise EmbedderError(f"{name}: expected vectors of width {width}, got {vectors.shape[-1]}")
