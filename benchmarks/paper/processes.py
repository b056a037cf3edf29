"""Processes of one study that share its work."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

import click

from tttembed_rag.cli.group import CommandT

# What numerical libraries take the number of their threads from, when they are loaded.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def side_by_side(what: str) -> Callable[[CommandT], CommandT]:
    """The option ``--workers`` of a command that measures *what* side by side."""
    text = f"Processes that measure {what} side by side."
    return click.option("--workers", default=1, type=click.IntRange(min=1), metavar="N", help=text)


@contextmanager
def worker_processes(count: int) -> Iterator[Executor]:
    """A pool of *count* fresh processes, which share the cores of the machine unless the environment says otherwise."""
    own = str(max(1, (os.cpu_count() or 1) // count))
    limits = {name: own for name in _THREADS if name not in os.environ}
    os.environ |= limits
    try:
        with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    finally:
        for name in limits:
            os.environ.pop(name, None)
