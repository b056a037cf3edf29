"""The hub of models and data sets: whether it answers, and loading from it without noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tttembed_rag.errors import require

__all__ = ["first_line", "why_unreachable", "without_bars"]

# Seconds to wait for a connection; the hub's own clients would try again for minutes.
_PATIENCE = 5.0


def why_unreachable(*, extra: str) -> str | None:
    """The reason why the hub cannot be reached; None if it answers, or HF_HUB_OFFLINE=1 says not to ask it.

    The *extra* of this package brings the hub's client.
    """
    hub = require("huggingface_hub", extra)
    constants = require("huggingface_hub.constants", extra)
    if constants.HF_HUB_OFFLINE:
        return None
    try:
        hub.get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as exc:  # noqa: BLE001 (its HTTP library changes, and any of its errors is a reason)
        return f"{constants.ENDPOINT} is not reachable: {first_line(exc) or type(exc).__name__}"
    return None


@contextmanager
def without_bars(library: str, *, extra: str) -> Iterator[None]:
    """A block in which *library*, ``transformers`` or ``datasets``, which *extra* brings, draws no progress bars."""
    bars = require(f"{library}.utils.logging", extra)
    were_on = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            bars.enable_progress_bar()


def first_line(exc: BaseException) -> str:
    """The first line of an error's message; the libraries of the hub add pages of advice."""
    return str(exc).strip().partition("\n")[0]
