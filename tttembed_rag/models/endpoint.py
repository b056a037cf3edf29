"""A service that answers JSON over HTTP: keys, failures that pass, answers that are not what was expected."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tttembed_rag.errors import InputError, JudgeError, require
from tttembed_rag.models.retrying import EXTRA, BusyError, Patience, check_status

ResultT = TypeVar("ResultT")

# Hosts that a key may be sent to over plain HTTP.
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# Characters of an answer that an error shows.
_SHOWN = 200
# What reading an answer of another form raises.
_UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


class Endpoint:
    """An address that takes and gives JSON, asked with patience.

    Args:
        url: ``http(s)://HOST[:PORT][/PATH]``.

        key: Secret, never sent over plain HTTP to another machine.

        header: Header that carries it: ``authorization`` as a bearer token, any other as it is.

        headers: Further headers.

        patience: How often and how fast it is asked.

        timeout: Seconds to wait for an answer.

    Raises:
        InputError: The address is none, or would send the key in the clear.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        header: str = "authorization",
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        timeout: float = 60.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InputError(f"url: expected http(s)://HOST without a password, got {url!r}")
        if key and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise InputError(f"url: expected https where a key is sent, got {url!r}")
        self.url = url
        self.host = parts.hostname
        self.address = parts.netloc
        self._httpx = require("httpx", EXTRA)
        token = f"Bearer {key}" if header == "authorization" else f"{key}"
        sent = {**(headers or {}), **({header: token} if key else {})}
        self._client = self._httpx.Client(timeout=timeout, headers=sent, follow_redirects=False)
        weakref.finalize(self, self._client.close)
        self._patiently = (patience or Patience()).caller()

    def ask(self, body: Mapping[str, Any], read: Callable[[Any], ResultT], *, expected: str) -> ResultT:
        """What *read* finds in the answer to *body*.

        Args:
            body: JSON to send.

            read: Answer to result; where it fails, the answer was not what was *expected*.

            expected: The content of a right answer, in words.

        Raises:
            JudgeError: The service refused, stayed busy, or answered something else.
        """
        return self._patiently(partial(self._once, body, read, expected))

    def _once(self, body: Mapping[str, Any], read: Callable[[Any], ResultT], expected: str) -> ResultT:
        try:
            response = self._client.post(self.url, json=body)
        except self._httpx.RequestError as exc:
            raise BusyError(f"{self.url}: expected an answer, got {type(exc).__name__}: {exc}") from exc
        shown = "".join(letter if letter.isprintable() else " " for letter in response.text[:_SHOWN])
        check_status(
            response.status_code,
            response.headers,
            f"{self.url}: expected an answer, got {response.status_code} {shown}",
        )
        try:
            return read(response.json())
        except _UNREADABLE as exc:
            raise JudgeError(f"{self.url}: expected {expected}, got {shown}") from exc
