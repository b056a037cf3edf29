"""What other distributions add to this one, by the entry points of their metadata.

``tttembed.commands.NAME`` holds the commands below ``tttembed NAME``, ``tttembed.spans`` what reads the spans of a
service, ``tttembed.thumbs`` what people said there of answers, ``tttembed.collections`` what loads collections by name.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from tttembed_rag.errors import MissingExtraError


def extensions(group: str) -> list[str]:
    """The names that installed distributions registered in *group*."""
    return sorted(entry_points(group=group).names)


def extension(group: str, name: str, *, brings: str) -> Any:
    """What is registered as *name* in a *group*; where its distribution is missing, an error says what it *brings*."""
    for point in entry_points(group=group, name=name):
        return point.load()
    raise MissingExtraError(f"{brings} of tttembed-hosts, which is not installed; run: pip install tttembed-hosts")
