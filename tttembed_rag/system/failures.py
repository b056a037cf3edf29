"""Failures that repeat with every request, in the log: one line a minute, and how many there were."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from threading import Lock

from tttembed_rag.errors import in_brief

# Seconds between two lines of one message.
_SECONDS = 60.0


class FailureLog:
    """Logs the error that is being handled in one line, at most once a minute, then with how many there were.

    Of errors that models raise it has the kind and the place, without their words, which may repeat a text of a user;
    the traceback of every error is logged at level DEBUG. The *clock* gives seconds that only grow.
    """

    def __init__(self, logger: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        # By message: when its last line was logged, and how many errors were kept back since.
        self._lines: dict[str, tuple[float, int]] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[FailureLog], tuple[logging.Logger]]:
        """In another process, or a copy, a log that has logged nothing."""
        return FailureLog, (self._logger,)

    def exception(self, message: str, *arguments: object) -> None:
        """Log *message* with the error that is being handled; to be called where it was caught."""
        error = sys.exception()
        self._logger.debug(message, *arguments, exc_info=error)
        now = self._clock()
        with self._lock:
            last, more = self._lines.get(message, (-_SECONDS, 0))
            quiet = now - last < _SECONDS
            self._lines[message] = (last, more + 1) if quiet else (now, 0)
        if not quiet:
            counted = f" ({more} more like it in the last {now - last:.0f} s)" if more else ""
            self._logger.error(f"{message}: %s%s", *arguments, "" if error is None else in_brief(error), counted)  # noqa: G004 - the caller's own format
