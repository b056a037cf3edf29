"""The `tttembed` command: bad input ends with exit code 2 and one line of reason."""

from tttembed_rag.cli import data, judge, measuring, offsets, report, serve, spans, store, tables, worker
from tttembed_rag.cli.group import main

__all__ = ["data", "judge", "main", "measuring", "offsets", "report", "serve", "spans", "store", "tables", "worker"]
