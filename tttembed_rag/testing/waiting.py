"""A wait until something has come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


def eventually(condition: Callable[[], ResultT], *, seconds: float = 30.0) -> ResultT:
    """The result of *condition* as soon as that is true; an AssertionError if it is not within some seconds."""
    ends = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() >= ends:
            raise AssertionError(f"expected within {seconds:g} s what did not come true")
        time.sleep(0.002)
    return result
