"""A real embedding service on loopback, in the shapes of OpenAI and Cohere, and the proxy before it."""

import asyncio
import base64
import contextlib
import json
import socket
import threading
import zlib
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tttembed_store.proxy import proxy_app

from tests.traffic import frozen
from tttembed_rag import Evidence, Offset, Offsets

WIDTH = 16
MODEL = "small"
EVIDENCE = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")


def vector_of(text):
    """The vector that the service gives a text, in single precision as services send it."""
    return np.random.default_rng(zlib.crc32(str(text).encode())).normal(size=WIDTH).astype(np.float32).tolist()


def offsets_of(seed=0, *, task=None, width=WIDTH):
    """Offsets with one vector, for all tasks or one."""
    vector = np.random.default_rng(seed).normal(size=width).astype(np.float32) / 4
    scope = "global" if task is None else "task"
    return Offsets([Offset(scope, vector, 0.9, 9, EVIDENCE, task=task)], width=width)


@contextlib.contextmanager
def asking(url, path, body):
    """A caller of its own who has sent a request, and leaves at the end of the block without an answer."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(content)}\r\n"
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + content)
        yield


@pytest.fixture
def leaving():
    """The function that makes such a caller: `leaving(url, path, body)` is a block."""
    return asking


class Service:
    """What the service was asked, and how it behaves."""

    def __init__(self):
        self.asked = []
        self.at_once = self.most_at_once = 0
        self.left = threading.Event()
        self.go = threading.Event()

    async def openai(self, request):
        """`/v1/embeddings`; models named after a fault show it."""
        size = 0
        parts = []
        async for part in request.stream():
            size += len(part)
            parts.append(part if size < 2_000_000 else b"")
        if size >= 2_000_000:
            return JSONResponse({"bytes": size})
        body = json.loads(b"".join(parts))
        self.asked.append((dict(request.headers), body))
        model = body.get("model")
        if model == "busy":
            return JSONResponse({"error": {"message": "slow down"}}, 429, {"retry-after": "7"})
        if model == "slow":
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(body["seconds"])
            self.at_once -= 1
        if model == "endless":
            while not await request.is_disconnected():  # noqa: ASYNC110 - the request says it in no other way
                await asyncio.sleep(0.01)
            self.left.set()
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        vectors = [vector_of(text) for text in texts]
        if model == "wide":
            vectors = [vector * 2 for vector in vectors]
        if body.get("encoding_format") == "base64":
            vectors = [base64.b64encode(np.array(vector, "<f4").tobytes()).decode() for vector in vectors]
        data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        answer = {"object": "list", "data": data[::-1], "model": model, "usage": {"prompt_tokens": 3, "cost": 0.1}}
        return Response(json.dumps(answer, indent=1), media_type="application/json", headers={"x-request-id": "r1"})

    async def cohere(self, request):
        """`/v2/embed`."""
        body = await request.json()
        self.asked.append((dict(request.headers), body))
        vectors = [vector_of(text) for text in body["texts"]]
        kinds = {"float": vectors, "int8": [[round(10 * x) for x in vector] for vector in vectors]}
        wanted = body.get("embedding_types") or ["float"]
        return JSONResponse({"id": "1", "texts": body["texts"], "embeddings": {kind: kinds[kind] for kind in wanted}})

    async def chat(self, request):
        """Streams three parts; the last waits until the test has seen the first."""
        body = await request.json()

        async def parts():
            yield b"data: one\n\n"
            await asyncio.to_thread(self.go.wait, 10)
            yield b"data: two\n\n"
            yield b"data: [DONE]\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream", headers={"x-model": body["model"]})

    async def echo(self, request):
        """What arrived."""
        body = await request.body()
        seen = {"method": request.method, "path": request.scope["raw_path"].decode(), "size": len(body)}
        seen |= {"query": request.scope["query_string"].decode(), "headers": dict(request.headers)}
        return JSONResponse(seen, 201, {"x-more": "kept"})

    @property
    def app(self):
        routes = [
            Route("/v1/embeddings", self.openai, methods=["POST"]),
            Route("/v2/embed", self.cohere, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/{path:path}", self.echo, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
        # A caller who leaves is no error of the service, so that what is logged is the proxy's.
        return Starlette(routes=routes, exception_handlers={ClientDisconnect: lambda *_: Response()})


@contextlib.contextmanager
def running(app, **options):
    """The address of an application while it runs in a thread, with these options of uvicorn."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    # Without WebSockets, as `tttembed serve`: of the libraries for them, some versions warn as they are loaded.
    options = {"ws": "none", "log_level": "error", "access_log": False, "timeout_graceful_shutdown": 1} | options
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


@pytest.fixture
def service():
    """The running service, with its `url`."""
    made = Service()
    with running(made.app) as url:
        made.url = url
        yield made


@pytest.fixture
def proxied(service):
    """Starts proxies before the service: `proxied(live, ...)` gives a client of one."""
    with contextlib.ExitStack() as stack:

        def start(live=None, *, upstream=None, **options):
            live = frozen(offsets_of()) if live is None else live
            app = proxy_app(upstream or service.url, live, model=options.pop("model", MODEL), **options)
            url = stack.enter_context(running(app, http="h11", ws="none"))
            return stack.enter_context(httpx.Client(base_url=url, timeout=30))

        yield start


@pytest.fixture
def bare(service):
    """A client of the service itself."""
    with httpx.Client(base_url=service.url, timeout=30) as client:
        yield client


@pytest.fixture
def tools():
    """What tests compare with."""
    return SimpleNamespace(vector_of=vector_of, offsets_of=offsets_of, running=running, MODEL=MODEL, WIDTH=WIDTH)
