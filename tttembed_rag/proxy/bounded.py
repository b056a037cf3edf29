"""How requests are read from a connection: uvicorn's own protocol, with the bounds that it lacks."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BoundedProtocol"]


class BoundedProtocol(HttpToolsProtocol):
    """HTTP of which a head, or anything else between two parts of bodies, is of bounded size, and heads come in time.

    Without the first, one caller could hold up all others: the parser copies what it has for every part that comes.
    Without the second, callers that send nothing more could use up all connections.

    Attributes:
        most: Bytes of a head.

        seconds: Within which a head must be whole, from when its connection was made or its first byte came.
    """

    most, seconds = 65_536, 20.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unread = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._late = self.loop.call_later(self.seconds, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came; where it is the endless part of a head, end the connection."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > self.most and not self.transport.is_closing():
            self.send_400_response("Expected a head of 65536 bytes at most, got more.")

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        if self._late is None:
            self._late = self.loop.call_later(self.seconds, self.transport.close)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_time()
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body came, which is bounded elsewhere."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._unread = 0
        super().on_message_complete()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
