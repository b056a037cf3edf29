"""A service that answers JSON over HTTP: keys, failures that pass, answers that are not what was expected."""

from __future__ import annotations

import json
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tttembed_rag.errors import InputError, JudgeError, require
from tttembed_rag.models.client import LOOPBACK, service_client
from tttembed_rag.models.retrying import EXTRA, BusyError, Patience, RefusedError, check_status

ResultT = TypeVar("ResultT")

# Bytes of an answer, uncompressed, that are read at most.
_LONGEST_ANSWER = 8 * 2**20
# A request that is too large for the server, or for a proxy before it.
_TOO_LARGE = 413
# Bytes that are unpacked of a compressed answer at a time, and the kinds that zlib tells apart by itself.
_STEP, _GZIP_OR_ZLIB = 65_536, 47
# Characters of an answer that an error shows.
_SHOWN = 200
# What reading an answer of another form raises.
_UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


class TooLargeError(RefusedError):
    """A request that a server refuses for its size."""


def with_path(url: str, path: str) -> str:
    """*url* that ends with *path*, but for what stands behind the question mark."""
    bare, mark, query = url.partition("?")
    bare = bare.rstrip("/")
    return (bare if bare.endswith(path) else bare + path) + mark + query


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
        try:
            parts = urlsplit(url)
            well_formed = parts.hostname and parts.port != 0
        except ValueError:  # its message holds what stands where a port should, which may be a password
            well_formed = False
        if not well_formed:
            raise InputError("url: expected http(s)://HOST, got another text")
        # What may hold a secret, before the @ and after the question mark, is in no error and no log.
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme not in ("http", "https") or parts.username is not None:
            raise InputError(f"url: expected http(s)://HOST without a password, got {self.name!r}")
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"key: expected printable ASCII characters for {self.name}, got others too (not shown)")
        if key and parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise InputError(f"url: expected https where a key is sent, got {self.name!r}")
        whole = url if parts.path.strip("/") else with_path(url, path)
        self.url, self._address = whole, whole.partition("#")[0].partition("?")[0]
        self.host: str = parts.hostname or ""
        self.address = parts.netloc
        self._timeout, self._longest_answer = timeout, longest_answer
        self._httpx = require("httpx", EXTRA)
        token = f"Bearer {key}" if header == "authorization" else f"{key}"
        sent = {"accept-encoding": "identity", **(headers or {}), **({header: token} if key else {})}
        try:
            query = self._httpx.URL(url).query
        except self._httpx.InvalidURL:
            raise InputError(f"url: expected characters of an address, got others in {self.name!r:.80}") from None
        self._client = service_client(timeout=timeout, headers=sent, query=query)
        weakref.finalize(self, self._client.close)
        self._patiently = (patience or Patience()).caller()

    def ask(self, body: Mapping[str, Any], read: Callable[[Any], ResultT], *, expected: str) -> ResultT:
        """What *read* finds in the answer to *body*, posted as JSON; as for `exchange`."""
        return self.exchange("POST", "", read, expected=expected, body=body)

    def exchange(
        self,
        method: str,
        path: str,
        read: Callable[[Any], ResultT],
        *,
        expected: str,
        body: Mapping[str, Any] | None = None,
        form: Mapping[str, str] | None = None,
        file: Path | None = None,
        parameters: Mapping[str, str] | None = None,
        once: bool = False,
    ) -> ResultT:
        """What *read* finds in the answer, which is JSON.

        Args:
            method: ``POST``, ``GET`` or ``DELETE``.

            path: What follows the address.

            read: Answer to result; where it fails, the answer was not what was *expected*.

            expected: The content of a right answer, in words.

            body: JSON to send.

            form: Fields of a form to send instead.

            file: A file that is sent with the form; it is read whole.

            parameters: What stands behind the question mark.

            once: Whether the request is sent once only, whatever comes back: it must not be repeated.

        Raises:
            JudgeError: The service refused, stayed busy, or answered something else.
        """
        content: dict[str, Any] = {"params": parameters} if parameters else {}
        if body is not None:
            content["json"] = body
        if form is not None:
            content["data"] = form
        if file is not None:
            content["files"] = {"file": (file.name, file.read_bytes(), "application/jsonl")}
        attempt = partial(self._once, method, path, content, read, expected)
        return attempt() if once else self._patiently(attempt)

    def download(self, path: str, target: Path, *, most: int) -> None:
        """Write what stands at *path* behind the address to the file *target*, whole, of *most* bytes at most."""
        self._patiently(partial(self._download, path, target, most))

    def _download(self, path: str, target: Path, most: int) -> None:
        with target.open("wb") as file:
            status, headers = self._send("GET", path, {}, file.write, most)
        with target.open("rb") as file:
            self._check(status, headers, file.read(4 * _SHOWN))

    def _once(
        self, method: str, path: str, content: Mapping[str, Any], read: Callable[[Any], ResultT], expected: str
    ) -> ResultT:
        answer = bytearray()
        status, headers = self._send(method, path, content, answer.extend, self._longest_answer)
        shown = self._check(status, headers, answer)
        try:
            return read(json.loads(answer))
        except _UNREADABLE as exc:
            raise JudgeError(f"{self.name}: expected {expected}, got {shown}") from exc

    def _check(self, status: int, headers: Any, answer: bytes | bytearray) -> str:
        """Return the beginning of an *answer*, to be shown; raise an error for a status that is none of success."""
        text = answer[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
        shown = "".join(letter if letter.isprintable() else " " for letter in text)
        reason = f"{self.name}: expected an answer, got {status} {shown}"
        if status == _TOO_LARGE:
            raise TooLargeError(reason)
        check_status(status, headers, reason)
        return shown

    def _send(
        self, method: str, path: str, content: Mapping[str, Any], write: Callable[[bytes], object], most: int
    ) -> tuple[int, Any]:
        """Status and headers of an answer that is whole, not too long, and in time; *write* takes its parts."""
        length = 0
        try:
            with self._client.stream(method, self._address + path, **content) as response:
                for part in self._parts(response):
                    length += len(part)
                    if length > most:
                        raise JudgeError(f"{self.name}: expected at most {most} bytes, got more")
                    write(part)
        except (TimeoutError, self._httpx.TimeoutException) as exc:
            reason = f"expected a whole answer within {self._timeout:g} s, got {type(exc).__name__}"
            raise BusyError(f"{self.name}: {reason}") from exc
        except zlib.error as exc:
            raise BusyError(f"{self.name}: expected an answer that can be unpacked, got {exc}") from exc
        except self._httpx.LocalProtocolError as exc:  # its message may repeat a header, and so a secret
            raise BusyError(f"{self.name}: expected an answer, got {type(exc).__name__}") from None
        except self._httpx.RequestError as exc:
            raise BusyError(f"{self.name}: expected an answer, got {type(exc).__name__}: {exc}") from exc
        return response.status_code, response.headers

    def _parts(self, response: Any) -> Iterator[bytes]:
        """The parts of an answer, unpacked in small steps: a part of 64 KiB may swell to gigabytes at once."""
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding == "identity":
            yield from response.iter_raw()
            return
        if encoding not in ("gzip", "deflate"):
            raise JudgeError(f"{self.name}: expected an answer that is not compressed, got {encoding!r:.40}")
        unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
        for part in response.iter_raw():
            packed = part
            while packed:
                if unpacker.eof:  # a gzip stream may have several members, one behind the other
                    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
                yield unpacker.decompress(packed, _STEP)
                packed = unpacker.unused_data or unpacker.unconsumed_tail
        yield unpacker.flush()
        if response.num_bytes_downloaded and not unpacker.eof:
            raise BusyError(f"{self.name}: expected a whole answer, got a compressed one that is cut off")
