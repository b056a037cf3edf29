"""What other distributions add to this one, by the entry points of their metadata.

``tttembed.commands`` holds commands, ``tttembed.commands.NAME`` those below ``tttembed NAME``; ``tttembed.store`` what
is done with a store or a folder of Parquet files; ``tttembed.spans`` what reads the spans of a service;
``tttembed.thumbs`` what people said there of answers; ``tttembed.collections`` what loads collections by name.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from tttembed_rag.errors import MissingExtraError


def extensions(group: str) -> list[str]:
    """The names that installed distributions registered in *group*."""
    return sorted(entry_points(group=group).names)


def extension(group: str, name: str, *, brings: str, of: str = "tttembed-hosts") -> Any:
    """What is registered as *name* in a *group*; an error says what a distribution *of* that name *brings*."""
    for point in entry_points(group=group, name=name):
        return point.load()
    raise MissingExtraError(f"{brings} of {of}, which is not installed; run: pip install {of}")


def of_store(name: str, *, brings: str) -> Any:
    """What tttembed-store registers as *name*; where it is missing, the error says what it *brings*."""
    return extension("tttembed.store", name, brings=brings, of="tttembed-store")
