"""Texts in groups that a request to a service may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# Characters in a request: about 20,000 tokens of 3.
_CHARACTERS = 60_000


def requests(texts: Sequence[str], at_once: int) -> Iterator[list[str]]:
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
