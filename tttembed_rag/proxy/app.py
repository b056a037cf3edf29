"""The proxy as an ASGI application: every request goes to the upstream, and answers to queries come back steered.

The caller gets the upstream's answer or the upstream's error. What keeps a vector from being steered (a store that is
away, an answer that is no JSON, a body above the limit) leaves the answer as it came, byte for byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from tttembed_rag.proxy.senders import Sender, Senders
from tttembed_rag.proxy.shapes import EmbeddingRequest, asked_of, is_embedding_path, steered_answer, whole_vectors
from tttembed_rag.proxy.upstream import Answer, Headers, Unreachable, Upstream
from tttembed_rag.serving.context import context
from tttembed_rag.serving.live import LiveOffsets
from tttembed_rag.serving.steering import Steering

__all__ = ["Proxy", "application"]

_log = logging.getLogger(__name__)
# The header that says which version steered the answer; and its value where none did.
_VERSION, _BASE = b"x-ttt-version", b"base"
# Bytes above which an answer is steered in a thread, so that other callers need not wait.
_LONG = 200_000


def application(proxy: Proxy) -> Starlette:
    """The routes of *proxy*."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with proxy.upstream:
            yield

    routes = [
        Route("/v1/steer", proxy.steer, methods=["POST"]),
        Route("/v1/steer", proxy.status, methods=["GET"]),
        Mount("/", proxy.forward),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={ClientDisconnect: _caller_left})


class Proxy:
    """The three things the application does: forward, steer vectors that are handed in, and tell its state."""

    def __init__(self, upstream: Upstream, live: LiveOffsets, model: str, senders: Senders, limit: int) -> None:
        self.upstream = upstream
        self._live = live
        self._steering = Steering(live)
        self._model = model
        self._senders = senders
        self._limit = limit

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request to the upstream, and its answer back."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        request = Request(scope, receive)
        caller = self._senders.find(request.headers)
        path: str = scope["path"]
        asks = request.method == "POST" and is_embedding_path(path)
        sent = asyncio.Event()
        if asks:
            read, rest = await _whole(request.stream(), self._limit)
            if rest is None:
                sent.set()
                await _while_connected(receive, self._answer(request, read, caller, send), sent)
                return
            _log.info("a request passes as it came: its body is longer than %d bytes", self._limit)
            body: AsyncIterator[bytes] | None = _noted(rest, sent)
        elif "content-length" in request.headers or "transfer-encoding" in request.headers:
            body = _noted(request.stream(), sent)
        else:
            body = None
            sent.set()
        more = [(_VERSION, _BASE)] if asks else []
        await _while_connected(receive, self._pass(request, body, caller, send, more), sent)

    async def _pass(
        self, request: Request, body: AsyncIterator[bytes] | None, caller: Sender, send: Send, more: Headers
    ) -> None:
        """Pass a request and its answer on as they come."""
        async with self._asked(request, body, caller, send) as answer:
            if answer is not None:
                await _relay(send, answer, answer.parts(), more)

    async def _answer(self, request: Request, body: bytes, caller: Sender, send: Send) -> None:
        """Answer an embedding request that was read as a whole."""
        path: str = request.scope["path"]
        asked = asked_of(path, request.headers.get("x-ttt-role"), body)
        steers = asked is not None and asked.is_query and asked.model == self._model
        # An answer that is to be read must not be compressed.
        replaced = {b"accept-encoding": b"identity"} if steers else None
        sent = body if asked is None else asked.body
        async with self._asked(request, sent, caller, send, replaced) as answer:
            if answer is None:
                return
            if not steers or asked is None or answer.status != 200:
                await _relay(send, answer, answer.parts(), [(_VERSION, _BASE)])
                return
            try:
                read, rest = await _whole(answer.parts(), self._limit)
            except Exception as error:  # noqa: BLE001 - the upstream broke off: so does its answer
                _log.warning("the upstream broke off: %s", error)
                return
            if rest is not None:
                _log.warning("an answer was not steered: it is longer than %d bytes", self._limit)
                await _relay(send, answer, rest, [(_VERSION, _BASE)])
                return
            steered, version = await self._steered(path, asked, read, caller)
            headers = [(name, value) for name, value in answer.headers if name != b"content-length"]
            headers += [(b"content-length", str(len(steered)).encode()), (_VERSION, version)]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": steered})

    async def _steered(self, path: str, asked: EmbeddingRequest, body: bytes, caller: Sender) -> tuple[bytes, bytes]:
        """The answer to send, and the version that steered it."""
        try:
            if len(body) > _LONG:
                return await asyncio.to_thread(self._turned, path, asked, body, caller)
            return self._turned(path, asked, body, caller)
        except Exception:  # noqa: BLE001 - whatever the upstream answered, its answer goes out
            _log.exception("an answer of the upstream was not steered")
            return body, _BASE

    def _turned(self, path: str, asked: EmbeddingRequest, body: bytes, caller: Sender) -> tuple[bytes, bytes]:
        query_id = caller.query_id if len(asked.texts) == 1 else ""
        with context(task=caller.task, tenant=caller.tenant, query_id=query_id):

            def turn(vector: Any, number: int) -> Any:
                return self._steering.applied(vector, asked.texts[number] if number < len(asked.texts) else "")

            steered, turned = steered_answer(path, body, turn)
            return steered, self._version() if turned else _BASE

    def _version(self) -> bytes:
        number = self._live.status.version
        return b"file" if number is None else str(number).encode()

    async def steer(self, request: Request) -> Response:
        """Vectors in, vectors out: ``{"vectors": [[...]], "texts": [...]}``, the texts optional."""
        read, rest = await _whole(request.stream(), self._limit)
        if rest is not None:
            return _refusal(413, f"expected a body of at most {self._limit} bytes, got more")
        return await self._steered_here(read, self._senders.find(request.headers))

    async def _steered_here(self, read: bytes, caller: Sender) -> Response:
        try:
            fields = orjson.loads(read)
        except orjson.JSONDecodeError as error:
            return _refusal(400, f"expected JSON ({error})")
        vectors = whole_vectors(fields.get("vectors")) if isinstance(fields, dict) else None
        if vectors is None:
            return _refusal(400, 'expected {"vectors": [[number, ...], ...]}')
        vectors = list(vectors)
        texts = fields.get("texts") or [""] * len(vectors)
        if not (isinstance(texts, list) and len(texts) == len(vectors) and all(isinstance(t, str) for t in texts)):
            return _refusal(400, f"texts: expected one string per vector, {len(vectors)}")

        def turned() -> tuple[list[Any], int, bytes]:
            with context(task=caller.task, tenant=caller.tenant, query_id=caller.query_id if len(texts) == 1 else ""):
                after = [self._steering.apply(vector, text) for vector, text in zip(vectors, texts, strict=True)]
                changed = sum(new != old for new, old in zip(after, vectors, strict=True))
                return after, changed, self._version() if changed else _BASE

        after, changed, version = await asyncio.to_thread(turned) if len(read) > _LONG else turned()
        answer = {"vectors": after, "steered": changed, "version": version.decode()}
        return _json(answer, headers={_VERSION.decode(): version.decode()})

    async def status(self, request: Request) -> Response:
        """The version that the caller is served, why none is, and how old that knowledge is."""
        caller = self._senders.find(request.headers)
        with context(task=caller.task, tenant=caller.tenant):
            now = self._live.status
        return _json({"version": now.version, "reason": now.reason, "age": now.age, "error": now.error})

    @asynccontextmanager
    async def _asked(
        self,
        request: Request,
        body: bytes | AsyncIterator[bytes] | None,
        caller: Sender,
        send: Send,
        replaced: dict[bytes, bytes] | None = None,
    ) -> AsyncIterator[Answer | None]:
        """The upstream's answer; None where there is none, and the caller was told so."""
        try:
            async with self.upstream.ask(request, body, known=caller.known, replaced=replaced) as answer:
                yield answer
        except Unreachable as error:
            _log.warning("%s does not answer: %s", self.upstream.address, error)
            refusal = _refusal(502, f"{self.upstream.address} does not answer: {error}")
            await refusal(request.scope, request.receive, send)
            yield None


async def _relay(send: Send, answer: Answer, parts: AsyncIterator[bytes], more: Headers) -> None:
    """Send an answer on, part by part as it comes."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers + more})
    try:
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except Exception as error:  # noqa: BLE001 - the upstream broke off: the caller sees a broken answer, as without us
        _log.warning("the upstream broke off: %s", error)
        return
    await send({"type": "http.response.body", "body": b""})


async def _whole(parts: AsyncIterator[bytes], limit: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """All bytes of *parts*, and None; or, where they are more than *limit*, an iterator over all of them."""
    read: list[bytes] = []
    size = 0
    async for part in parts:
        read.append(part)
        size += len(part)
        if size > limit:
            return b"", _chained(read, parts)
    return b"".join(read), None


async def _chained(read: list[bytes], parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while read:
        yield read.pop(0)
    async for part in parts:
        yield part


async def _noted(parts: AsyncIterator[bytes], sent: asyncio.Event) -> AsyncIterator[bytes]:
    """The same parts; *sent* is set after the last."""
    async for part in parts:
        yield part
    sent.set()


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None], sent: asyncio.Event) -> None:
    """Do the *work*, and give it up when the caller leaves after its request was *sent*."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive, sent))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Callable[[], Awaitable[Any]], sent: asyncio.Event) -> None:
    await sent.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _caller_left(request: Request, _: Exception) -> Response:
    _log.debug("%s: the caller left", request.url.path)
    return Response()  # which goes nowhere


def _refusal(status: int, message: str) -> Response:
    return _json({"error": {"message": f"tttembed: {message}", "type": "tttembed_error"}}, status)


def _json(answer: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(answer), status, headers, media_type="application/json")
