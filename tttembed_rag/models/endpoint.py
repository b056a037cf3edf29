"""A service that answers JSON over HTTP: keys, failures that pass, answers that are not what was expected."""

from __future__ import annotations

import json
import time
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
# Bytes of an answer, uncompressed, that are read at most.
_LONGEST_ANSWER = 8 * 2**20
# A request that is too large for the server, or for a proxy before it.
_TOO_LARGE = 413
# Characters of an answer that an error shows.
_SHOWN = 200
# What reading an answer of another form raises.
_UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


class TooLargeError(JudgeError):
    """A request that a server refuses for its size."""


class Endpoint:
    """An address that takes and gives JSON, asked with patience.

    Args:
        url: ``http(s)://HOST[:PORT][/PATH]``.

        path: The path of an address that has none.

        key: Secret, never sent over plain HTTP to another machine.

        header: Header that carries it: ``authorization`` as a bearer token, any other as it is.

        headers: Further headers.

        patience: How often and how fast it is asked.

        timeout: Seconds until an answer must be there, whole.

    Raises:
        InputError: The address is none, or would send the key in the clear.
    """

    def __init__(
        self,
        url: str,
        *,
        path: str = "",
        key: str | None = None,
        header: str = "authorization",
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        timeout: float = 60.0,
    ) -> None:
        try:
            parts = urlsplit(url)
        except ValueError as exc:
            raise InputError("url: expected http(s)://HOST, got another text") from exc
        # What may hold a secret, before the @ and after the question mark, is in no error and no log.
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise InputError(f"url: expected http(s)://HOST without a password, got {self.name!r}")
        if key and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise InputError(f"url: expected https where a key is sent, got {self.name!r}")
        self.url, self._timeout = url if parts.path.strip("/") else url.rstrip("/") + path, timeout
        self.host = parts.hostname
        self.address = parts.netloc
        self._httpx = require("httpx", EXTRA)
        token = f"Bearer {key}" if header == "authorization" else f"{key}"
        sent = {"accept-encoding": "identity", **(headers or {}), **({header: token} if key else {})}
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
        status, headers, content = self._post(body)
        text = content[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
        shown = "".join(letter if letter.isprintable() else " " for letter in text)
        reason = f"{self.name}: expected an answer, got {status} {shown}"
        if status == _TOO_LARGE:
            raise TooLargeError(reason)
        check_status(status, headers, reason)
        try:
            return read(json.loads(content))
        except _UNREADABLE as exc:
            raise JudgeError(f"{self.name}: expected {expected}, got {shown}") from exc

    def _post(self, body: Mapping[str, Any]) -> tuple[int, Any, bytes]:
        """Status, headers and content of an answer that is whole, not too long, and in time."""
        ends, content = time.monotonic() + self._timeout, bytearray()
        try:
            with self._client.stream("POST", self.url, json=body) as response:
                for part in response.iter_bytes():
                    content += part
                    if len(content) > _LONGEST_ANSWER:
                        raise JudgeError(f"{self.name}: expected at most {_LONGEST_ANSWER} bytes, got more")
                    if time.monotonic() > ends:
                        raise BusyError(f"{self.name}: expected a whole answer within {self._timeout:g} s, got a part")
        except self._httpx.RequestError as exc:
            raise BusyError(f"{self.name}: expected an answer, got {type(exc).__name__}: {exc}") from exc
        return response.status_code, response.headers, bytes(content)
