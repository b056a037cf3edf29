"""Vectors from a function of the user's own: the error says what was called, what was expected and what came."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tttembed_rag.errors import EmbedderError, TTTEmbedError, raised
from tttembed_rag.vectors.checks import FloatArray, as_floats


def vectors_from(name: str, function: Callable[[Any], Any], texts: str | list[str]) -> FloatArray:
    """The vectors that *function* gives: (d,) for one text, (len(texts), d) for a list of texts.

    Raises:
        EmbedderError: It fails, or gives something else; the line calls it by its *name*.
    """
    count = None if isinstance(texts, str) else len(texts)
    expected = "one vector (d,) for a text" if count is None else f"vectors ({count}, d) for a list of {count} texts"
    try:
        answer = function(texts)
    except TTTEmbedError:
        raise
    except Exception as exc:
        message = str(exc).strip().partition("\n")[0]
        raise EmbedderError(f"{name}: expected {expected}, got {raised(exc)}:", message) from exc
    if inspect.iscoroutine(answer):
        answer.close()
        raise EmbedderError(f"{name}: expected {expected}, got a coroutine (an async function is not awaited here)")
    if answer is None or isinstance(answer, str):
        raise EmbedderError(f"{name}: expected {expected}, got {'a text' if isinstance(answer, str) else None}")
    try:
        vectors = as_floats(name, list(answer) if isinstance(answer, Iterator) else answer)
    except TTTEmbedError as exc:
        reason = exc.brief.rpartition(", got ")[2].replace("dtype object", type(answer).__name__)
        raise EmbedderError(f"{name}: expected {expected}, got {reason}") from exc
    except Exception as exc:  # of a generator of the user's own
        raise EmbedderError(f"{name}: expected {expected}, got {raised(exc)}:", f"{exc}".partition("\n")[0]) from exc
    if vectors.shape[:-1] != (() if count is None else (count,)) or not vectors.size:
        raise EmbedderError(f"{name}: expected {expected}, got shape {vectors.shape}")
    return vectors
