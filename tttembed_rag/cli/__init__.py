"""The `tttembed` command: bad input ends with exit code 2 and one line of reason."""

from tttembed_rag.cli import judge, measuring, offsets, report
from tttembed_rag.cli.group import main

__all__ = ["judge", "main", "measuring", "offsets", "report"]
