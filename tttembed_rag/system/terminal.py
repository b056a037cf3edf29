"""Ids and texts from elsewhere as people read them."""

from __future__ import annotations

import re

# What a terminal obeys, or cannot encode, instead of showing it.
_UNSHOWN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(line: str) -> str:
    """*line* with a question mark for each control character (the NUL in ids of sharing tenants) and lone surrogate."""
    return line if line.isprintable() else _UNSHOWN.sub("?", line)
