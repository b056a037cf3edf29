"""Ids and texts from elsewhere, made safe to print."""

from __future__ import annotations

import re

# Characters that a terminal obeys or cannot encode, instead of showing them: controls, marks that reorder or hide text,
# separators of lines, and lone surrogates.
_UNSHOWN = re.compile(
    "[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e01ef]"
)


def printable(line: str) -> str:
    """*line* with a question mark for each character that is not shown."""
    return line if line.isprintable() else _UNSHOWN.sub("?", line)
