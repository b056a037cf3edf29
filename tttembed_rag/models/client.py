"""A client of httpx that does as little as a service can abuse: no redirects, no proxy to this machine, an end in time.

httpx knows a time limit for each read, and none for an answer: one byte in time after the other, in its head too, or
interim answers without end, would be waited for without end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tttembed_rag.errors import require
from tttembed_rag.models.retrying import EXTRA

# Hosts that a key may be sent to over plain HTTP: this machine, to which no proxy leads.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Bytes that are written at a time: each of these writes has a time limit of its own.
_PART = 16_384


def client_options(*, per_minute: int | None = None) -> dict[str, Any]:
    """Options of a client of httpx: no redirects, which could carry a key away, and no proxy to this machine.

    Args:
        per_minute: Requests a minute at most; None is no limit of ours.
    """
    hooks: list[Callable[[Any], object]] = []
    if per_minute is not None:
        pyrate = require("pyrate_limiter", EXTRA)
        limiter = pyrate.Limiter(pyrate.Rate(per_minute, pyrate.Duration.MINUTE))
        hooks.append(lambda _: limiter.try_acquire("request", blocking=True))
    return {
        "follow_redirects": False,
        "mounts": {f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK},
        "event_hooks": {"request": hooks},
    }


def service_client(*, timeout: float, headers: Mapping[str, str] | None = None, query: bytes = b"") -> Any:
    """An `httpx.Client`.

    Args:
        timeout: Seconds from the first byte of a request to the last of its answer; then `TimeoutError` is raised.

        headers: Sent with each request.

        query: Stands behind the question mark of each address, percent-encoded, and in no log of httpx: it may hold a
            secret.
    """
    httpx = require("httpx", EXTRA)
    client = httpx.Client(timeout=timeout, headers=headers, **client_options())
    # httpx has no parameter for what its connections are made of; a test tells where these names have changed.
    for transport in {client._transport, *client._mounts.values()} - {None}:  # noqa: SLF001
        pool = transport._pool  # noqa: SLF001
        pool._network_backend = _Backend(pool._network_backend, timeout)  # noqa: SLF001
    if query:
        client._transport = _Querying(httpx, client._transport, query)  # noqa: SLF001
        mounted = client._mounts.items()  # noqa: SLF001
        client._mounts = {at: None if one is None else _Querying(httpx, one, query) for at, one in mounted}  # noqa: SLF001
    return client


class _Querying:
    """A transport of httpx that adds a *query* to each address; httpx logs the address without it."""

    def __init__(self, httpx: Any, transport: Any, query: bytes) -> None:
        self._httpx, self._transport, self._query = httpx, transport, query

    def handle_request(self, request: Any) -> Any:
        query = b"&".join(filter(None, (self._query, request.url.query)))
        url = request.url.copy_with(query=query)
        kept = {"headers": request.headers, "stream": request.stream, "extensions": request.extensions}
        return self._transport.handle_request(self._httpx.Request(request.method, url, **kept))

    def close(self) -> None:
        self._transport.close()


class _Backend:
    """Makes connections of httpcore that end in time."""

    def __init__(self, backend: Any, seconds: float) -> None:
        self._backend, self._seconds = backend, seconds

    def connect_tcp(self, *arguments: Any, **options: Any) -> Any:
        return _Stream(self._backend.connect_tcp(*arguments, **options), self._seconds)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream:
    """A connection of httpcore, on which each request begins with a write behind a read."""

    def __init__(self, stream: Any, seconds: float) -> None:
        self._stream, self._seconds = stream, seconds
        self._ends = time.monotonic() + seconds
        self._was_read = False

    def read(self, most: int, timeout: float | None = None) -> bytes:
        self._was_read = True
        data: bytes = self._stream.read(most, self._left(timeout))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._was_read:
            self._ends, self._was_read = time.monotonic() + self._seconds, False
        for part in _parts(buffer):
            self._stream.write(part, self._left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, self._left(timeout)), self._seconds)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _left(self, timeout: float | None) -> float:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"expected a whole answer within {self._seconds:g} s, got a part")
        return left if timeout is None else min(left, timeout)


def _parts(buffer: bytes) -> Iterator[bytes]:
    return (buffer[first : first + _PART] for first in range(0, len(buffer), _PART))
