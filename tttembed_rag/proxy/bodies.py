"""How bodies are read as a whole: as long as they are short, and all that are held at once are not too many bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

__all__ = ["Bodies", "Reading"]

# Bodies of the longest kind that all requests together may hold.
_AT_ONCE = 16


class Bodies:
    """The bodies that all requests hold at this moment.

    Args:
        limit: Bytes up to which one body is read; all together may have 16 times as many.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.most = limit, _AT_ONCE * limit
        self.held = 0

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """The bodies of one request, which are held until it ends."""
        reading = Reading(self)
        try:
            yield reading
        finally:
            self.held -= reading.held


class Reading:
    """Reads the bodies of one request.

    Args:
        bodies: The bodies of all requests.

    Attributes:
        held: Bytes that this request holds.

        why: Why the last body was not read to its end; empty where it was.
    """

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.held = 0
        self.why = ""

    async def read(self, parts: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """The whole of *parts* and None; or, where it is not read to its end, an iterator over the whole."""
        read: list[bytes] = []
        size = 0
        self.why = ""
        async for part in parts:
            read.append(part)
            size += len(part)
            self._hold(len(part))
            if size > self._bodies.limit:
                self.why = f"expected a body of at most {self._bodies.limit} bytes, got more"
            elif self._bodies.held > self._bodies.most:
                self.why = f"expected at most {self._bodies.most} bytes in all bodies at once, got more"
            if self.why:
                return b"", self._passed(read, parts)
        return b"".join(read), None

    async def _passed(self, read: list[bytes], parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        while read:
            part = read.pop(0)
            self._hold(-len(part))
            yield part
        async for part in parts:
            yield part

    def _hold(self, size: int) -> None:
        self.held += size
        self._bodies.held += size
