"""Vectors from a function of the user's own: the error says what was called, what was expected and what came."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tttembed_rag.errors import EmbedderError, TTTEmbedError, raised
from tttembed_rag.vectors.checks import FloatArray, as_floats


def vectors_from(name: str, function: Callable[[Any], Any], given: str | list[str]) -> FloatArray:
    """The vectors that *function* gives: (d,) for one text, (len(given), d) for a list of texts.

    Raises:
        EmbedderError: It fails, or gives something else; the line calls it by its *name*.
    """
    count = None if isinstance(given, str) else len(given)
    asked = "one vector (d,) for a text" if count is None else f"vectors ({count}, d) for a list of {count} texts"
    try:
        came = function(given)
    except TTTEmbedError:
        raise
    except Exception as exc:
        said = str(exc).strip().partition("\n")[0]
        raise EmbedderError(f"{name}: expected {asked}, got {raised(exc)}:", said) from exc
    if inspect.iscoroutine(came):
        came.close()
        raise EmbedderError(f"{name}: expected {asked}, got a coroutine (an async function is not awaited here)")
    if came is None or isinstance(came, str):
        raise EmbedderError(f"{name}: expected {asked}, got {'a text' if isinstance(came, str) else None}")
    try:
        vectors = as_floats(name, list(came) if isinstance(came, Iterator) else came)
    except TTTEmbedError as exc:
        reason = exc.brief.rpartition(", got ")[2].replace("dtype object", type(came).__name__)
        raise EmbedderError(f"{name}: expected {asked}, got {reason}") from exc
    except Exception as exc:  # of a generator of the user's own
        raise EmbedderError(f"{name}: expected {asked}, got {raised(exc)}:", f"{exc}".partition("\n")[0]) from exc
    if vectors.shape[:-1] != (() if count is None else (count,)) or not vectors.size:
        raise EmbedderError(f"{name}: expected {asked}, got shape {vectors.shape}")
    return vectors
