"""The `tttembed` command: bad input ends with exit code 2 and one line of reason."""

from tttembed_rag.cli import data, judge, judgments, measuring, offsets, report, serve, spans, store, tables, worker
from tttembed_rag.cli.group import main

__all__ = [
    "data",
    "judge",
    "judgments",
    "main",
    "measuring",
    "offsets",
    "report",
    "serve",
    "spans",
    "store",
    "tables",
    "worker",
]
