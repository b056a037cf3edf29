"""Processes of one command that share its work."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

# What numerical libraries take the number of their threads from, when they are loaded.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of *count* fresh processes, which share the cores of the machine unless the environment says otherwise."""
    own = str(max(1, (os.cpu_count() or 1) // count))
    given = {name: own for name in _THREADS if name not in os.environ}
    os.environ |= given
    try:
        with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    finally:
        for name in given:
            os.environ.pop(name, None)
