"""A service that answers JSON over HTTP: keys, failures that pass, answers that are not what was expected."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tttembed_rag.errors import InputError, JudgeError, require
from tttembed_rag.models.client import LOOPBACK, client_options
from tttembed_rag.models.retrying import EXTRA, BusyError, Patience, RefusedError, check_status

ResultT = TypeVar("ResultT")

# Bytes of an answer, uncompressed, that are read at most.
_LONGEST_ANSWER = 8 * 2**20
# A request that is too large for the server, or for a proxy before it.
_TOO_LARGE = 413
# Characters of an answer that an error shows.
_SHOWN = 200
# What reading an answer of another form raises.
UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


class TooLargeError(RefusedError):
    """A request that a server refuses for its size."""


def with_path(url: str, path: str) -> str:
    """*url* that ends with *path*, but for what stands behind the question mark."""
    bare, mark, query = url.partition("?")
    bare = bare.rstrip("/")
    return (bare if bare.endswith(path) else bare + path) + mark + query


def shown(answer: bytes | bytearray) -> str:
    """The beginning of an *answer*, as an error shows it."""
    text = answer[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
    return "".join(letter if letter.isprintable() else " " for letter in text)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is, ``http(s)://HOST[:PORT][/PATH][?...]``, and its key; empty where it needs none.

    The *name* is its address without what may hold a secret, for errors and logs.
    """

    url: str
    name: str
    netloc: str
    key: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Address:
        """The address *url*, with a *key* of printable ASCII; white space around the key is cut off.

        Raises:
            InputError: It is no address, or would send the key over plain HTTP to another machine, or the key can stand
                in no header.
        """
        try:
            parts = urlsplit(url)
            well_formed = parts.hostname and parts.port != 0
        except ValueError:  # its message holds what stands where a port should, which may be a password
            well_formed = False
        if not well_formed:
            raise InputError("url: expected http(s)://HOST, got another text")
        name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme not in ("http", "https") or parts.username is not None:
            raise InputError(f"url: expected http(s)://HOST without a password, got {name!r}")
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"key: expected printable ASCII characters for {name}, got others too (not shown)")
        if key and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise InputError(f"url: expected https where a key is sent, got {name!r}")
        return cls(url, name, parts.netloc, key)

    @property
    def is_azure(self) -> bool:
        """Whether it is one of Azure, which takes keys in a header of its own."""
        return ".azure.com" in self.netloc


class Endpoint:
    """An address that takes and gives JSON, asked with patience.

    Args:
        url: ``http(s)://HOST[:PORT][/PATH]``.
        path: The path of an address that has none.
        key: Secret of printable ASCII, never sent over plain HTTP to another machine; white space around it is cut off.
        header: Header that carries it: ``authorization`` as a bearer token, any other as it is.
        headers: Further headers.
        patience: How often and how fast it is asked.
        timeout: Seconds until an answer must be there, whole.
        longest_answer: Bytes of an answer, uncompressed, that are read at most.

    Raises:
        InputError: The address is none, or would send the key in the clear, or the key can stand in no header.
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
        longest_answer: int = _LONGEST_ANSWER,
    ) -> None:
        self.where = Address.of(url, key)
        self.name, key = self.where.name, self.where.key
        self.url = url if urlsplit(url).path.strip("/") else with_path(url, path)
        self._timeout, self._longest_answer = timeout, longest_answer
        self._httpx = require("httpx", EXTRA)
        token = f"Bearer {key}" if header == "authorization" else key
        sent = {"accept-encoding": "identity", **(headers or {}), **({header: token} if key else {})}
        try:
            self._address = self._httpx.URL(self.url)
        except self._httpx.InvalidURL:
            raise InputError(f"url: expected characters of an address, got others in {self.name!r:.80}") from None
        patience = patience or Patience()
        self._client = self._httpx.Client(timeout=timeout, headers=sent, **client_options(patience))
        weakref.finalize(self, self._client.close)
        self._patiently = patience.caller()

    def ask(self, body: Mapping[str, Any], read: Callable[[Any], ResultT], *, expected: str) -> ResultT:
        """What *read* finds in the answer to *body*, posted as JSON; where it fails, that is not what was *expected*.

        Raises:
            JudgeError: The service refused, stayed busy, or answered something else.
        """
        return self._patiently(partial(self._once, body, read, expected))

    def _once(self, body: Mapping[str, Any], read: Callable[[Any], ResultT], expected: str) -> ResultT:
        status, headers, answer = self._posted(body)
        said = shown(answer)
        brief = f"{self.name}: expected an answer, got {status}"
        if status == _TOO_LARGE:
            raise TooLargeError(brief, said)
        check_status(status, headers, brief, said)
        try:
            return read(json.loads(answer))
        except UNREADABLE as exc:
            raise JudgeError(f"{self.name}: expected {expected}, got {status}", said) from exc

    def _posted(self, body: Mapping[str, Any]) -> tuple[int, Any, bytearray]:
        """Status and headers of an answer, and the answer, which is whole, not too long, and in time."""
        answer, ends = bytearray(), time.monotonic() + self._timeout
        try:
            with self._client.stream("POST", self._address, json=body) as response:
                for part in response.iter_bytes():
                    answer += part
                    if len(answer) > self._longest_answer:
                        raise JudgeError(f"{self.name}: expected at most {self._longest_answer} bytes, got more")
                    if time.monotonic() > ends:
                        raise BusyError(f"{self.name}: expected a whole answer within {self._timeout:g} s, got a part")
        except self._httpx.LocalProtocolError as exc:  # its message may repeat a header, and so a secret
            raise BusyError(f"{self.name}: expected an answer, got {type(exc).__name__}") from None
        except self._httpx.RequestError as exc:
            raise BusyError(f"{self.name}: expected an answer, got {type(exc).__name__}: {exc}") from exc
        return response.status_code, response.headers, answer
