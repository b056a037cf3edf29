"""Progress of long work on a terminal, and its end by hand; nothing is said of it in a pipe or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

ItemT = TypeVar("ItemT")


def working(length: int, label: str) -> ProgressBar[Any]:
    """A bar of *length* steps, which may show a text; hidden where stderr is closed or no terminal."""
    hidden = sys.stderr is None or not sys.stderr.isatty()
    return click.progressbar(
        length=max(1, length), label=label, file=sys.stderr, hidden=hidden, item_show_func=lambda text: text
    )


def watched(items: Iterable[ItemT], length: int, label: str) -> Iterator[ItemT]:
    """*items*, counted as they come."""
    with working(length, label) as bar:
        for item in items:
            yield item
            bar.update(1)


@contextmanager
def stoppable(kept: Callable[[], str]) -> Iterator[None]:
    """Work that Ctrl-C ends with exit code 130 and a line of what is *kept* and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"stopped: {kept()}", err=True)
        raise click.exceptions.Exit(130) from None
