"""Ids and texts from elsewhere, made safe to print."""

from __future__ import annotations

import re

# Characters that a terminal obeys or cannot encode, instead of showing them.
_UNSHOWN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(line: str) -> str:
    """*line* with a question mark for each control character (the NUL in ids of sharing tenants) and lone surrogate."""
    return line if line.isprintable() else _UNSHOWN.sub("?", line)
