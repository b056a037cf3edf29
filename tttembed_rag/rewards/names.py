"""Names and texts that every store can hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tttembed_rag.errors import InputError

# Bytes of UTF-8 that a name (of a tenant, task, query, document) has at most: two names fit into an index entry.
MAX_NAME = 512
# Characters that a database cannot hold.
_UNKEPT = re.compile("[\0\ud800-\udfff]")


def checked_name(argument: str, value: Any, *, empty: bool = False) -> str:
    """*value* as a name that every database can hold and compare."""
    if not isinstance(value, str) or not (value or empty):
        raise InputError(f"{argument}: expected a {'' if empty else 'non-empty '}text, got {value!r:.40}")
    if value != cleaned(value):
        raise InputError(f"{argument}: expected text without NUL and lone surrogates, got {value!r:.40}")
    if (size := len(value.encode())) > MAX_NAME:
        raise InputError(f"{argument}: expected at most {MAX_NAME} bytes of UTF-8, got {size}")
    return value


def is_name(value: str) -> bool:
    """Whether `checked_name` takes *value*, or it is empty."""
    return value == cleaned(value) and len(value.encode()) <= MAX_NAME


def cleaned(text: str) -> str:
    """*text* with the characters that databases cannot hold (NUL, lone surrogates) replaced by U+FFFD."""
    return text if text.isascii() and "\0" not in text else _UNKEPT.sub("\ufffd", text)


def whole(text: str) -> str:
    """*text* with each half of a character, which no service and no tokenizer takes, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def numbered(names: Iterable[str]) -> list[str]:
    """*names* in order, each with a number where it came before."""
    came, distinct = Counter[str](), list[str]()
    for name in names:
        came[name] += 1
        distinct.append(name if came[name] == 1 else f"{name} #{came[name]}")
    return distinct
