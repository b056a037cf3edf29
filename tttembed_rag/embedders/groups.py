"""Texts for an embedding service: asked about in groups that a request may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.embedders.contract import Width, unit_vectors
from tttembed_rag.errors import EmbedderError, JudgeError
from tttembed_rag.vectors.checks import FloatArray

# Characters in a request: about 20,000 tokens of 3.
_CHARACTERS = 60_000


def embedded(
    name: str, texts: Sequence[str], ask: Callable[[list[str]], ArrayLike], *, at_once: int, dimensions: int | None
) -> FloatArray:
    """Unit vectors (len(texts), d) of what *ask* gives for each group of at most *at_once* of the *texts*.

    Their width is *dimensions*, or that of the first ones.

    Raises:
        EmbedderError: The service refused a request, stayed busy or answered something else; it has the model's *name*.
    """
    width = Width(name, dimensions)
    try:
        parts = [width.checked(unit_vectors(name, ask(group), len(group))) for group in _groups(texts, at_once)]
    except JudgeError as exc:
        raise EmbedderError(exc.brief, exc.said) from exc
    return np.concatenate(parts) if parts else unit_vectors(name, [], 0)


def _groups(texts: Sequence[str], at_once: int) -> Iterator[list[str]]:
    """*texts* in groups of at most *at_once*, and of so many characters as every service takes."""
    group: list[str] = []
    size = 0
    for text in texts:
        if group and (len(group) == at_once or size + len(text) > _CHARACTERS):
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield group
