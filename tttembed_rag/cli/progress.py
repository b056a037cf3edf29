"""Progress of long work: a bar on a terminal, and a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import click

ItemT = TypeVar("ItemT")
# Seconds between two lines where there is no terminal: the logs of a container are read, not watched.
SECONDS = 30.0


class Bar(Protocol):
    """What work reports to."""

    pos: int

    def update(self, n_steps: int, current_item: str | None = None) -> None:
        """So many more steps are done; a text on the last one may be shown."""


class Lines:
    """Progress of *length* steps as lines on stderr, at most one in `SECONDS`; *pos* of them are done."""

    def __init__(self, length: int, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.pos = 0
        self._length, self._label, self._clock = length, label, clock
        self._began = self._said = clock()

    def update(self, n_steps: int, current_item: str | None = None) -> None:
        """Count steps; print a line where the last one was long ago."""
        self.pos += n_steps
        now = self._clock()
        if now - self._said < SECONDS or not self.pos:
            return
        self._said = now
        left = (now - self._began) * max(0, self._length - self.pos) / self.pos
        more = f"  {current_item}" if current_item else ""
        line = f"{self._label}: {self.pos} of {self._length}, about {_duration(left)} left{more}"
        click.echo(line, err=True)


@contextmanager
def working(length: int, label: str) -> Iterator[Bar]:
    """A bar of *length* steps on a terminal; else lines."""
    if not sys.stderr.isatty():
        yield Lines(length, label)
        return
    length = max(1, length)
    with click.progressbar(length=length, label=label, file=sys.stderr, item_show_func=lambda text: text) as bar:
        yield bar


def watched(items: Iterable[ItemT], length: int, label: str) -> Iterator[ItemT]:
    """*items*, counted as they come."""
    with working(length, label) as bar:
        for item in items:
            yield item
            bar.update(1)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
