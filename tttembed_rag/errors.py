"""Exceptions, one tree.

TTTEmbedError
├── InputError (also ValueError)      an argument is not what was expected
│   ├── UnknownKey (also KeyError)    a mapping has no such key
│   ├── VectorError                   NaN, infinite, zero or wrong-width vectors
│   └── RewardError                   rewards outside their scale, mixed judges, nothing judged
├── DataError (also ValueError)       a data set on disk lacks a part or is malformed
├── OffsetFileError (also ValueError) not an offsets file, damaged, or from a newer format
├── JudgeError (also RuntimeError)    a reward model cannot be asked, or cannot judge
├── EmbedderError (also RuntimeError) an embedding model cannot be loaded or asked
├── StoreError (also RuntimeError)    a store cannot be opened, or cannot do what was asked
│   ├── StoreUnavailable              not now: locked, full or out of reach; try again later
│   │   └── StoreTooSlow              a statement took longer than the database lets it
│   ├── LeaseLost                     somebody else took the lease over; nothing was changed
│   └── Superseded                    another version went live meanwhile; nothing was changed
└── MissingExtraError (also ImportError)  an optional library is not installed
"""

from __future__ import annotations

import math
import traceback
from importlib import import_module
from numbers import Integral, Real
from types import ModuleType

__all__ = [
    "DataError",
    "EmbedderError",
    "InputError",
    "JudgeError",
    "LeaseLost",
    "MissingExtraError",
    "OffsetFileError",
    "RewardError",
    "StoreError",
    "StoreReplaced",
    "StoreTooSlow",
    "StoreUnavailable",
    "Superseded",
    "TTTEmbedError",
    "UnknownKey",
    "VectorError",
    "check_count",
    "check_share",
    "in_brief",
    "raised",
    "require",
]


class TTTEmbedError(Exception):
    """Root of every exception this package raises on purpose.

    Args:
        brief: What went wrong; logs have this and no more.
        answer: What a model or a service answered, which may repeat a text of a user.
    """

    def __init__(self, brief: str = "", answer: str = "") -> None:
        super().__init__(f"{brief} {answer}" if answer else brief)
        self.brief, self.answer = brief, answer


class InputError(TTTEmbedError, ValueError):
    """An argument is not what was expected; the message names it."""


class UnknownKey(InputError, KeyError):  # noqa: N818 (a mapping's own error)
    """There is no such key; the message names some that there are."""

    __str__ = Exception.__str__  # KeyError would put the message in quotes


class VectorError(InputError):
    """A vector is NaN, infinite, zero or of the wrong width."""


class RewardError(InputError):
    """Rewards lie outside their declared scale, mix judges, or are missing."""


class DataError(TTTEmbedError, ValueError):
    """A data set on disk lacks a part or is malformed; the message names the file."""


class OffsetFileError(TTTEmbedError, ValueError):
    """The file is not an offsets file, is damaged, or comes from a newer format."""


class JudgeError(TTTEmbedError, RuntimeError):
    """A reward model cannot be asked, answers nonsense, or cannot tell good from bad."""


class EmbedderError(TTTEmbedError, RuntimeError):
    """An embedding model cannot be loaded or asked, or answers nonsense."""


class StoreError(TTTEmbedError, RuntimeError):
    """A store cannot be opened, or cannot do what was asked."""


class StoreUnavailable(StoreError):  # noqa: N818 (a state of the store, not a mistake)
    """The store cannot be used now (locked, full, out of reach); the same call may succeed later."""


class StoreReplaced(StoreUnavailable):
    """Where the store was that was opened is none or another one: it has to be opened anew."""


class StoreTooSlow(StoreUnavailable):
    """A statement took, or waited for a lock, longer than the database lets it; others may be quick."""


class LeaseLost(StoreError):  # noqa: N818 (the same)
    """Somebody else took the lease over; nothing was changed."""


class Superseded(StoreError):  # noqa: N818 (the same)
    """Another version went live since the caller looked; nothing was changed."""


class MissingExtraError(TTTEmbedError, ImportError):
    """An optional library is not installed; the message carries the install command."""


def raised(error: BaseException) -> str:
    """The kind of an *error* and the line of code that raised it, without its words, which may repeat a text."""
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__ + (f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else "")


def in_brief(error: BaseException) -> str:
    """What logs have of an *error*: its kind and first line; of one that is not ours, where it was raised instead."""
    words = error.brief if isinstance(error, TTTEmbedError) else f"{error}" if isinstance(error, OSError) else ""
    return f"{type(error).__name__}: {words}".partition("\n")[0] if words else raised(error)


def check_text(name: str, value: object) -> None:
    """Refuse a *value* of the argument *name* that is neither a text nor None."""
    if not isinstance(value, str | None):
        raise InputError(f"{name}: expected a text or None, got {type(value).__name__}")


def check_count(name: str, value: object) -> None:
    """Refuse a *value* of the argument *name* that is no whole number from 1 on."""
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name}: expected at least 1, got {value!r}")


def check_above_zero(name: str, value: object, most: float = math.inf) -> None:
    """Refuse a *value* of the argument *name* that is no number above 0, or above *most*."""
    if not isinstance(value, Real) or not 0 < float(value) <= most:
        upper = "" if most == math.inf else f" and <= {most:g}"
        raise InputError(f"{name}: expected a number > 0{upper}, got {value!r}")


def check_share(name: str, value: object) -> None:
    """Refuse a *value* of the argument *name* that is no number above 0 and below 1."""
    if not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"{name}: expected a number > 0 and < 1, got {value!r}")


def require(module: str, extra: str, *, of: str = "tttembed-rag") -> ModuleType:
    """Import an optional *module*, or say which *extra* of the distribution *of* brings it."""
    try:
        return import_module(module)
    except ImportError as exc:
        msg = f"{module.partition('.')[0]} is not installed; run: pip install '{of}[{extra}]'"
        raise MissingExtraError(msg) from exc
