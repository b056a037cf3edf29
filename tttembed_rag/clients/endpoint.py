"""A service at an address: keys and secrets in it, failures that pass, answers that are not what was expected."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tttembed_rag.clients.retrying import EXTRA, BusyError, Patience, check_status
from tttembed_rag.errors import InputError, JudgeError, require

ResultT = TypeVar("ResultT")

# Hosts that a key may be sent to over plain HTTP: this machine, to which no proxy leads.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# The environment variables that vendors' keys stand in, and the domains of those vendors.
_AZURE = tuple(f"{name}.azure.{end}" for name in ("openai", "cognitiveservices", "ai") for end in ("com", "us", "cn"))
DOMAINS = {
    "ANTHROPIC_API_KEY": ("anthropic.com",),
    "COHERE_API_KEY": ("cohere.com", "cohere.ai"),
    "GEMINI_API_KEY": ("googleapis.com",),
    "JINA_API_KEY": ("jina.ai",),
    "OPENAI_API_KEY": ("openai.com", *_AZURE),
    "VOYAGE_API_KEY": ("voyageai.com",),
}
# Bytes of an answer at most that may be an error's.
_SMALL = 10_000
# Characters of an answer that an error shows.
_SHOWN = 200
# What reading an answer of another form raises.
UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


def with_path(url: str, path: str) -> str:
    """*url* that ends with *path*, but for what stands behind the question mark."""
    bare, mark, query = url.partition("?")
    bare = bare.rstrip("/")
    return (bare if bare.endswith(path) else bare + path) + mark + query


def is_of(url: str | None, domains: Iterable[str]) -> bool:
    """Whether *url* lies in one of *domains*; one of None is the service's own, and does."""
    host = ""
    with suppress(ValueError):  # an address that cannot be read lies in none, and is refused where it is used
        host = urlsplit(url or "").hostname or ""
    return url is None or any(f".{host}".endswith(f".{domain}") for domain in domains)


def shown(answer: bytes) -> str:
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
            well_formed = parts.hostname and parts.port != 0 and url.isprintable()
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
        if key and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise InputError(f"url: expected https where a key is sent, got {name!r}")
        return cls(url, name, parts.netloc, key)

    @property
    def is_azure(self) -> bool:
        """Whether it is one of Azure, which takes keys in a header of its own."""
        return is_of(self.url, _AZURE)


# Every client of this process, and the options that it is made anew with in a forked child.
_clients = weakref.WeakKeyDictionary[Any, Callable[[], dict[str, Any]]]()


def http_client(make: Callable[..., Any], patience: Patience, *, without: str = "", **more: Any) -> Any:
    """A client of httpx that *make* makes, by our options and *more*, with connections of its own in a forked child.

    No redirects, which could carry a key away, and no proxy to this machine. What stands behind the question mark of an
    address may be a secret, and is in no log of httpx. It sends no header that is called *without*.
    """

    def options() -> dict[str, Any]:
        hooks = [_hide_query, lambda request: request.headers.pop(without, None)]
        return {
            "timeout": patience.timeout,
            "follow_redirects": False,
            "mounts": {f"all://{f'[{host}]' if ':' in host else host}": None for host in _LOOPBACK},
            "event_hooks": {"request": hooks, "response": [_unwrap]},
            **more,
        }

    client = make(**options())
    _clients[client] = options
    return client


def _in_child() -> None:
    for client, options in list(_clients.items()):
        client.__init__(**options())  # the connections that it had are its parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _hide_query(request: Any) -> None:
    """Send a request of httpx to its whole address, and have httpx log that address without its query."""
    if request.url.query:
        request.extensions = {**request.extensions, "target": request.url.raw_path}
        request.url = request.url.copy_with(query=None)


def _unwrap(response: Any) -> None:
    """Give an answer of 200 the status of the error in it, as gateways send one; a chat without any choice is a 502."""
    size = response.headers.get("content-length", "0")
    if response.status_code == 200 and "json" in response.headers.get("content-type", "") and int(size) <= _SMALL:
        body = response.read()
        with suppress(*UNREADABLE):
            answer = json.loads(body) if len(body) <= _SMALL else {}
            code = int((answer.get("error") or {}).get("code") or 502 * ("choices" in answer and not answer["choices"]))
            response.status_code = code if 400 <= code < 600 else 200


class Endpoint:
    """An address that takes and gives JSON, asked with patience.

    A *url* without a path has *path*. The *key* stands in *header*: ``authorization`` as a bearer token, any other as
    it is.

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
    ) -> None:
        self.where = Address.of(url, key)
        self.url = url if urlsplit(url).path.strip("/") else with_path(url, path)
        self._httpx = require("httpx", EXTRA)
        key, patience = self.where.key, patience or Patience()
        sent = dict(headers or {}) | ({header: f"Bearer {key}" if header == "authorization" else key} if key else {})
        try:
            self._httpx.URL(self.url)
        except self._httpx.InvalidURL as exc:
            raise InputError(f"url: expected http(s)://HOST, got an address that no request can have: {exc}") from exc
        self._client = http_client(self._httpx.Client, patience, headers=sent)
        weakref.finalize(self, self._client.close)
        self._retrying = patience.caller()

    def ask(self, body: Mapping[str, Any], read: Callable[[Any], ResultT], *, expected: str) -> ResultT:
        """What *read* finds in the answer to *body*, posted as JSON; where it fails, that is not what was *expected*.

        Raises:
            JudgeError: The service refused, stayed busy, or answered something else.
        """
        name = self.where.name
        for attempt in self._retrying:
            with attempt:
                try:
                    answer = self._client.post(self.url, json=body)
                except self._httpx.RequestError as exc:
                    raise BusyError(f"{name}: expected an answer, got {type(exc).__name__}: {exc}") from exc
                brief = f"{name}: expected an answer, got {answer.status_code}"
                check_status(answer.status_code, answer.headers, brief, shown(answer.content))
        return read_json(answer, read, name, expected)


def read_json(answer: Any, read: Callable[[Any], ResultT], name: str, expected: str) -> ResultT:
    """What *read* finds in the JSON of an *answer*, of httpx, of the service *name*; an error where it fails."""
    try:
        return read(json.loads(answer.content))
    except UNREADABLE as exc:
        raise JudgeError(f"{name}: expected {expected}, got {answer.status_code}", shown(answer.content)) from exc
