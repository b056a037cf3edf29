"""The service behind the proxy, at an address or in this process: what it is asked, and its answer as a stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope
from yarl import URL

from tttembed_rag.clients.endpoint import Address
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.errors import InputError, TTTEmbedError
from tttembed_store.proxy.shapes import read_request

_log = logging.getLogger(__name__)
# Headers that concern one connection alone, and those that the client writes itself.
_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect host".split()
)
_KEYS = (b"api-key", b"x-api-key")
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# Seconds until a connection must stand; an answer is waited for as long as the caller waits.
_CONNECT_SECONDS = 20.0
# The path of a model in this process.
_PATH = "/v1/embeddings"
Headers = list[tuple[bytes, bytes]]
# What is sent: whole, in parts, or nothing.
Body: TypeAlias = bytes | AsyncIterator[bytes] | None


def raw_path(scope: Scope) -> bytes:
    """The path of a request as it came, before it was decoded; it begins with one slash where the proxy lets it in."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _proxy_for(address: str) -> str | None:
    """The proxy of the environment by which *address* is reached: none for this machine and for those of NO_PROXY."""
    url, proxies = URL(address), getproxies()
    is_near = url.host in ("127.0.0.1", "localhost", "::1") or proxy_bypass(url.host or "")
    return None if is_near else proxies.get(url.scheme, proxies.get("all"))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the upstream: its headers as they came, but for the connection's, and the parts of its body."""

    status: int
    headers: Headers
    parts: AsyncIterator[bytes]


async def _parts(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body, in the parts in which it comes."""
    async with response:
        async for part in response.content.iter_any():
            yield part


class Upstream:
    """The service at *address*, up to and without ``/v1``. Its API *key* is for callers that the proxy knows."""

    def __init__(self, address: str, *, key: str | None = None) -> None:
        # Callers and logs are told the address: it must hold no secret, and neither must an error about it.
        try:
            shown = Address.of(address).name
        except InputError as exc:
            raise InputError(f"upstream{str(exc).removeprefix('url')}") from None
        if "?" in address or "#" in address:
            raise InputError(f"upstream: expected an address without parameters, such as {shown!r}, got one with some")
        if shown.rstrip("/").endswith(("/v1", "/v2")):
            raise InputError(f"upstream: expected the address before /v1, got {shown!r}")
        self.address = address.rstrip("/")
        self._key, self._proxy = key, _proxy_for(self.address)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # As many connections as callers have: they are the upstream's to refuse.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTOMATIC,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self, request: Request, body: Body, *, known: bool = False, replaced: Mapping[bytes, bytes] | None = None
    ) -> Answer:
        """The upstream's answer to *request* with this *body*, whole or in parts; None is none.

        Its method, path and headers are sent on, but those named ``X-TTT-...`` and those *replaced*. A *known* caller
        may use the upstream's key. Where no answer comes, the caller is told so with status 502.
        """
        if self._session is None:
            raise HTTPException(502, "the proxy has not started")
        raw = raw_path(request.scope)
        query = request.scope.get("query_string", b"")
        url = URL(f"{self.address}{raw.decode('latin-1')}{'?' if query else ''}{query.decode('latin-1')}", encoded=True)
        headers = self._headers(request, body, known=known) | dict(replaced or {})
        decoded = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.items()]
        # A kept connection may be closed by the upstream just as it is used: whole requests are sent once more.
        tries = 2 if isinstance(body, bytes | None) else 1
        while True:
            tries -= 1
            try:
                answer = self._session.request(
                    request.method, url, headers=decoded, data=body, allow_redirects=False, proxy=self._proxy
                )
                response = await answer
                kept = [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in _HOP]
                return Answer(response.status, kept, _parts(response))
            except (aiohttp.ClientError, TimeoutError) as error:
                if isinstance(error.__cause__, ClientDisconnect):  # while the body was sent on, its caller left
                    raise error.__cause__ from error
                passes = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
                if not (tries and passes) or isinstance(error, aiohttp.ClientConnectorError):
                    # Its own words call every connection one of TLS.
                    why = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
                    line = f"{self.address} does not answer: {why or type(error).__name__}"
                    _log.warning("%s", line)
                    raise HTTPException(502, line) from error

    def _headers(self, request: Request, body: Body, *, known: bool) -> dict[bytes, bytes]:
        headers: dict[bytes, bytes] = {}
        for name, value in request.headers.raw:
            if name in _HOP or name.startswith(b"x-ttt-") or (name == b"content-length" and isinstance(body, bytes)):
                continue
            joint = b"; " if name == b"cookie" else b", "
            headers[name] = headers[name] + joint + value if name in headers else value
        if known and self._key is not None:
            for name in _KEYS:  # the caller's own key is for the proxy alone
                headers.pop(name, None)
            headers[b"authorization"] = b"Bearer " + self._key.encode()
        return headers


class LocalModel:
    """*embedder* under the name *model*, in OpenAI's shape at ``/v1/embeddings``; it has no other path.

    Texts that a request says to be queries are embedded as queries, all others as documents.
    """

    def __init__(self, embedder: Embedder, model: str) -> None:
        self.address = "this process"
        self._embedder, self._model = embedder, model
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ask(
        self, request: Request, body: Body, *, known: bool = False, replaced: Mapping[bytes, bytes] | None = None
    ) -> Answer:
        """The vectors of the texts in *body*; *known* and *replaced* are for services at an address."""
        del known, replaced
        if request.method != "POST" or request.url.path != _PATH:
            raise HTTPException(404, f"expected POST {_PATH}, got {request.method} {request.url.path}")
        embedding = read_request(_PATH, request.headers.get("x-ttt-role"), body) if isinstance(body, bytes) else None
        if embedding is None or embedding.model != self._model or not all(embedding.texts):
            raise HTTPException(400, f'expected {{"model": "{self._model}", "input": [text, ...]}}')
        embed = self._embedder.embed_queries if embedding.is_query else self._embedder.embed_documents
        try:
            async with self._one_at_a_time:
                vectors = await asyncio.to_thread(embed, embedding.texts)
        except TTTEmbedError as error:
            raise HTTPException(400, str(error)) from error
        data: list[Any] = [
            {"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)
        ]
        answer = {"object": "list", "model": self._model, "data": data}
        content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        return Answer(200, headers, _once(content))


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
