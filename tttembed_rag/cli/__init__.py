"""The `tttembed` command; bad input ends with exit code 2 and a line of reason. Private: may change without notice."""

from tttembed_rag.cli import (  # noqa: F401 - each adds its commands
    auditing,
    bridging,
    data,
    judge,
    learning,
    measuring,
    offsets,
    trying,
)
from tttembed_rag.cli.group import main

__all__ = ["main"]
