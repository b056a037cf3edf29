"""How requests are read from a connection: uvicorn's own protocol on h11, with the bound on time that it lacks."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedProtocol"]


class BoundedProtocol(H11Protocol):
    """HTTP whose heads are of bounded size, which h11 sees to, whose requests come and whose answers go in time.

    Without the bounds on time, callers that send or read nothing more could use up all connections and memory.

    Attributes:
        seconds: Within which a head must be whole, from when its connection was made or its first byte came, and
            within which each further part of a body must come.

        unread_seconds: Within which a caller must read some of an answer that waits for it.
    """

    seconds = 20.0
    unread_seconds = 60.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the caller to read."""
        super().pause_writing()
        self._wait_for_reading(math.inf)

    def resume_writing(self) -> None:
        """Go on: the caller reads, or has left."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def handle_events(self) -> None:
        """Read what came, and wait for what the request still lacks."""
        super().handle_events()
        state = self.conn.their_state
        # Between two requests uvicorn waits, with a time of its own.
        between = self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]
        if state is h11.SEND_BODY:
            self._wait()
        elif state is not h11.IDLE or between:
            self._wait_no_more()
        elif self._late is None:
            self._wait()

    def _wait_for_reading(self, before: float) -> None:
        """Abort the connection where as much waits to be read as *before*; else look again later."""
        if (waiting := self.transport.get_write_buffer_size()) >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self.unread_seconds, self._wait_for_reading, waiting)

    def _should_upgrade(self) -> bool:
        return False  # requests that offer another protocol (Java's clients all do) are answered in this one, unlogged

    def _wait(self) -> None:
        self._wait_no_more()
        self._late = self.loop.call_later(self.seconds, self._end)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        if self.flow.read_paused:  # the upstream is what is slow: the caller's bytes wait for it
            self._wait()
        else:
            self.transport.close()
