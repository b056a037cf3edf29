"""The proxy as an ASGI application: every request goes to the upstream, and answers to queries come back steered.

The caller gets the upstream's answer or the upstream's error. What keeps a vector from being steered (a store that is
away, an answer that is no JSON, a body above the limit) leaves the answer as it came, byte for byte. Beside it there
are endpoints of the proxy's own, which `tttembed_store.proxy.openapi` describes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from tttembed_rag.errors import InputError, StoreError, require

for _module in ("aiohttp", "orjson", "starlette"):
    require(_module, "serve")

# ruff: noqa: E402 - the lines above say what to install
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tttembed_rag.embedders.bridge import Bridge
from tttembed_rag.serving.steering import Steering
from tttembed_rag.serving.tasks import TaskSource
from tttembed_store.following import TenantOffsets
from tttembed_store.proxy.callers import Caller, Callers
from tttembed_store.proxy.catalogues import Catalogues
from tttembed_store.proxy.feedback import FeedbackWriter
from tttembed_store.proxy.openapi import BODIES, checked_body, document
from tttembed_store.proxy.shapes import EmbeddingRequest, is_embedding_path, read_request, steered_answer
from tttembed_store.proxy.upstream import Answer, Headers, LocalModel, Upstream, raw_path
from tttembed_store.sql.records import ANONYMOUS

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)
# The header that says which version steered the answer; and its value where none did.
_VERSION, _BASE = b"x-ttt-version", b"base"
# The header with the cosine below which no document answers any query of the request.
_FLOOR = b"x-ttt-floor"
_UNSTEERED: Headers = [(_VERSION, _BASE)]
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
# Bytes above which an answer is steered in a thread, so that other callers need not wait.
_LONG = 200_000


def proxy_app(
    upstream: str | LocalModel,
    live: TenantOffsets,
    *,
    model: str,
    callers: Callers | None = None,
    task: TaskSource = None,
    upstream_key: str | None = None,
    limit: int = 16_000_000,
    feedback: FeedbackWriter | None = None,
    searches: Mapping[str, Any] | None = None,
    bridge: Bridge | None = None,
) -> Starlette:
    """An ASGI application that stands before an embedding service and steers the vectors of queries.

    The service is *upstream*, an address up to and without ``/v1``, or a model in this process; *upstream_key* is its
    API key, sent for callers whose key the proxy knows. The offsets *live* were learned for *model*: vectors of other
    models pass as they came, and so does a body of more than *limit* bytes. *feedback* writes what comes to
    ``/v1/feedback``, and *searches*, each a `tttembed_tools.LearnedToolSearch` by the name of its catalogue, are asked
    by ``/v1/search/NAME`` and learn from ``/v1/used``; all are closed at the end. The *task* of queries whose caller
    names none may be a function of their text, such as `language_of`.
    """
    if not model:
        raise InputError("model: expected the name of a model, got an empty one")
    if limit < 1:
        raise InputError(f"limit: expected > 0 bytes, got {limit}")
    service = Upstream(upstream, key=upstream_key) if isinstance(upstream, str) else upstream
    callers, catalogues = callers or Callers(), Catalogues(searches or {})
    own = _Endpoints(service, live, Steering(live, task), model, callers, limit, feedback, catalogues, bridge)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service:
            with catalogues.open():
                yield
            if feedback is not None:
                feedback.close()

    paths = {"/v1/feedback": own.take_feedback, "/v1/search/{catalogue}": own.search, "/v1/used": own.used}
    routes = [
        Route("/v1/openapi.json", own.openapi, methods=["GET"]),
        Route("/v1/steer", own.steer, methods=["POST"]),
        Route("/v1/steer", own.status, methods=["GET"]),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in paths.items()),
        *(Route(path + slash, own.nowhere, methods=_METHODS) for path in paths for slash in ("", "/")),
        Route("/{path:path}", own.forward, methods=_METHODS),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((ClientDisconnect, HTTPException, InputError, StoreError), _refused)
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=[Middleware(_Door)])


class _Door:
    """Lets in requests whose path means one thing to the routes and to the service behind.

    It begins with one slash, as it came and decoded, and no part of it is empty, a dot or two: it is compared once, and
    joined once to the address of the service, whose host it cannot change.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not (raw_path(scope).startswith(b"/") and _is_normalised(scope["path"])):
            app = _json(_error("expected a path that begins with one slash and has no empty parts or dots"), 400)
        await app(scope, receive, send)


def _is_normalised(path: str) -> bool:
    first, *parts = path.split("/")
    inner = parts[:-1] if parts[-1:] == [""] else parts  # one slash at the end
    return not first and bool(parts) and "\\" not in path and not {"", ".", ".."} & set(inner)


@dataclass(frozen=True)
class _Endpoints:
    """What the application answers: what it forwards, vectors that it steers, and what it takes and finds itself."""

    upstream: Upstream | LocalModel
    live: TenantOffsets
    steering: Steering
    model: str
    callers: Callers
    limit: int
    feedback: FeedbackWriter | None
    catalogues: Catalogues
    bridge: Bridge | None

    async def forward(self, request: Request) -> Response:
        """The upstream's answer to a request, steered where that says that it holds queries."""
        caller = self.callers.find(request.headers)
        if not (request.method == "POST" and is_embedding_path(request.url.path)):
            has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
            body = request.stream() if has_body else None
            answer = await self.upstream.ask(request, body, known=caller.known)
            return _relayed(answer, unsteered="x-ttt-role" in request.headers)
        content = await _whole(request.stream(), self.limit)
        if isinstance(content, bytes):
            return await _while_connected(request, self._answered(request, content, caller))
        _log.info("a request passes as it came: its body is longer than %d bytes", self.limit)
        return self._as_it_came(await self.upstream.ask(request, content, known=caller.known))

    async def _answered(self, request: Request, body: bytes, caller: Caller) -> Response:
        """The answer to an embedding request that was read as a whole."""
        embedding = read_request(request.url.path, request.headers.get("x-ttt-role"), body)
        if embedding is None or embedding.model != self.model or not (embedding.is_query or self.bridge is not None):
            body = body if embedding is None else embedding.body
            return _relayed(await self.upstream.ask(request, body, known=caller.known))
        # An answer that is to be read must not be compressed.
        replaced = {b"accept-encoding": b"identity"}
        answer = await self.upstream.ask(request, embedding.body, known=caller.known, replaced=replaced)
        if answer.status != 200:
            return _relayed(answer)
        encoding = dict(answer.headers).get(b"content-encoding", b"identity")
        if encoding != b"identity":
            _log.warning("an answer was not steered: it came in %s, asked for as it is", encoding.decode("latin-1"))
            return self._as_it_came(answer)
        content = await _whole(answer.parts, self.limit)
        if not isinstance(content, bytes):
            _log.warning("an answer was not steered: it is longer than %d bytes", self.limit)
            return self._as_it_came(replace(answer, parts=content))
        try:
            steered, headers = await _in_turn(len(content), partial(self._turned, embedding, content, caller))
        except Exception:  # noqa: BLE001 - whatever the upstream answered, its answer goes out, unless it cannot cross
            _log.exception("an answer of the upstream was not steered")
            self._check_may_pass()
            steered, headers = content, _UNSTEERED
        response = Response(steered, answer.status)
        response.raw_headers += [header for header in answer.headers if header[0] != b"content-length"] + headers
        return response

    def _check_may_pass(self) -> None:
        """Refuse to hand out vectors of the new model where clients search an old index."""
        if self.bridge is not None:
            raise HTTPException(502, "the answer cannot cross the bridge into the old index: see the log")

    def _as_it_came(self, answer: Answer) -> Response:
        """An answer that could not be read."""
        self._check_may_pass()
        return _relayed(answer)

    def _turned(self, embedding: EmbeddingRequest, body: bytes, caller: Caller) -> tuple[bytes, Headers]:
        """The answer to send, with the version that steered it and the floor of its queries."""
        floors: set[float | None] = set()
        with caller.context(len(embedding.texts)):

            def turn(vector: Any, number: int) -> Any:
                if self.bridge is not None:
                    vector = self.bridge.apply(vector, documents=not embedding.is_query).tolist()
                    if not embedding.is_query:
                        return vector
                return self._steered(vector, embedding.texts[number] if number < len(embedding.texts) else "", floors)

            steered, turned = steered_answer(body, turn)
            return steered, self._headers(turned, floors)

    def _steered(self, vector: Any, text: str, floors: set[float | None]) -> Any:
        """The vector to search with; the floor of its cosines, rounded down, joins *floors*."""
        request = self.steering.request(text)
        steered = request.vector(vector)
        cut = request.cosine_floor()
        floors.add(None if cut is None else math.floor(cut * 1e4) / 1e4)
        return steered

    def _headers(self, turned: int, floors: set[float | None]) -> Headers:
        """The version that steered an answer, and the floor that all its queries share."""
        cut = floors.pop() if len(floors) == 1 else None
        floor = [] if cut is None else [(_FLOOR, f"{cut:.4f}".encode())]
        return [(_VERSION, self._version() if turned else _BASE), *floor]

    def _version(self) -> bytes:
        number = self.live.status.version
        return b"file" if number is None else str(number).encode()

    async def steer(self, request: Request) -> Response:
        """Vectors in, vectors out: ``{"vectors": [[...]], "texts": [...]}``, the texts optional."""
        fields, size = await _read_json(request, self.limit)
        vectors = fields.get("vectors") if isinstance(fields, dict) else None
        if not isinstance(vectors, list) or not all(
            isinstance(vector, list) and all(isinstance(number, int | float) for number in vector) for vector in vectors
        ):
            raise HTTPException(400, 'expected {"vectors": [[number, ...], ...]}')
        texts = fields.get("texts") or [""] * len(vectors)
        if not (isinstance(texts, list) and len(texts) == len(vectors) and all(isinstance(t, str) for t in texts)):
            raise HTTPException(400, f"texts: expected one string per vector, {len(vectors)}")

        def turned() -> tuple[list[Any], int, Headers]:
            floors: set[float | None] = set()
            with self.callers.find(request.headers).context(len(texts)):
                crossed = vectors if self.bridge is None else [self.bridge.apply(vector).tolist() for vector in vectors]
                after = [self._steered(vector, text, floors) for vector, text in zip(crossed, texts, strict=True)]
                changed = sum(new != old for new, old in zip(after, vectors, strict=True))
                return after, changed, self._headers(changed, floors)

        after, changed, headers = await _in_turn(size, turned)
        named = {name.decode(): value.decode() for name, value in headers}
        return _json({"vectors": after, "steered": changed, "version": named[_VERSION.decode()]}, headers=named)

    async def status(self, request: Request) -> Response:
        """The version that the caller is served, why none is, and how old that knowledge is."""
        with self.callers.find(request.headers).context():
            now = self.live.status
        return _json({"version": now.version, "reason": now.reason, "age": now.age, "error": now.error})

    async def openapi(self, _: Request) -> Response:
        """What those of these endpoints take and give that are there."""
        there = {"/v1/steer": True, "/v1/feedback": self.feedback is not None}
        return _json(document([path for path in BODIES if there.get(path, self.catalogues.names)]))

    async def nowhere(self, request: Request) -> Response:
        """A refusal: what is meant for these endpoints never reaches the service."""
        got = f"{request.method} {request.url.path}"
        raise HTTPException(404, f"expected a path and a method of /v1/openapi.json, got {got}")

    async def take_feedback(self, request: Request) -> Response:
        """Thumbs, clicks, grades or scores of documents in; how many were kept out."""
        caller, body = await self._checked(request, "/v1/feedback")
        if self.feedback is None:
            raise HTTPException(404, "expected a server with --store, got one without")
        caller = replace(caller, task=caller.task or self.steering.task_of(body["query"]))
        return _json({"kept": await self.feedback.keep(caller, body), "source": caller.source})

    async def search(self, request: Request) -> Response:
        """A request in, names of tools out."""
        caller, body = await self._checked(request, "/v1/search/{catalogue}")
        return _json({"tools": await self.catalogues.find(request.path_params["catalogue"], caller, body)})

    async def used(self, request: Request) -> Response:
        """Which tools were called for a request in; how many calls were kept out."""
        caller, body = await self._checked(request, "/v1/used")
        return _json({"kept": await self.catalogues.used(caller, body), "source": caller.source})

    async def _checked(self, request: Request, path: str) -> tuple[Caller, dict[str, Any]]:
        """The caller, with a source, and the body that the endpoint at *path* takes."""
        caller = self.callers.find(request.headers)
        if not (caller.known or self.callers.anybody):
            raise HTTPException(401, "expected one of the keys that the server was given")
        by_page = "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none"
        if by_page and not caller.known:  # any page that a user opens could say anything
            raise HTTPException(403, "expected a key, or a request of a program, got one of a page without a key")
        content, _ = await _read_json(request, self.limit)
        body = checked_body(path, content)
        caller = replace(caller, source=caller.source or body.get("source") or ANONYMOUS)
        caller.check_names()
        return caller, body


def _relayed(answer: Answer, *, unsteered: bool = True) -> Response:
    """An answer as it comes, part by part, with a header that says that it is *unsteered*."""
    response = StreamingResponse(answer.parts, answer.status)
    response.raw_headers = answer.headers + [(_VERSION, _BASE)] * unsteered
    return response


async def _read_json(request: Request, limit: int) -> tuple[Any, int]:
    """What the body of a request says in JSON, and how many bytes it has: at most *limit*."""
    content = await _whole(request.stream(), limit)
    if not isinstance(content, bytes):
        raise HTTPException(413, f"expected a body of at most {limit} bytes, got more")
    try:
        return orjson.loads(content), len(content)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"expected JSON ({error})") from error


async def _whole(parts: AsyncIterator[bytes], limit: int) -> bytes | AsyncIterator[bytes]:
    """All bytes of *parts*; where they are more than *limit*, an iterator over all of them."""
    read: list[bytes] = []
    size = 0
    async for part in parts:
        read.append(part)
        size += len(part)
        if size > limit:
            return _chained(read, parts)
    return b"".join(read)


async def _chained(read: list[bytes], parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while read:
        yield read.pop(0)
    async for part in parts:
        yield part


def _json(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """*answer* as JSON."""
    return Response(orjson.dumps(answer), status, headers, media_type="application/json")


async def _in_turn(size: int, work: Callable[[], ResultT]) -> ResultT:
    """What *work* on *size* bytes gives; other callers need not wait for a long one."""
    return await asyncio.to_thread(work) if size > _LONG else work()


async def _while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """What *work* gives; it is given up when the caller leaves."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():  # after a whole request, nothing but the caller's leaving is received
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        _log.debug("%s: the caller left", request.url.path)
        return Response()  # which goes nowhere
    if not isinstance(error, HTTPException):
        error = HTTPException(400 if isinstance(error, InputError) else 503, str(error))
    return _json(_error(error.detail), error.status_code, error.headers)


def _error(detail: str) -> dict[str, Any]:
    return {"error": {"message": f"tttembed: {detail}", "type": "tttembed_error"}}
