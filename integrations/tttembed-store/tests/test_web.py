"""The context of a request in web frameworks: streams, thread pools and background tasks, over real HTTP on loopback.

The ways that docs/production.md shows keep each query with its tenant; the others fail closed: nothing is recorded
under, or served from, a tenant that the query is not of.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from tttembed_store import StoreLog, follow, open_store

from tests.traffic import recorded
from tttembed_rag import Evidence, Offset, Offsets, Steering, context
from tttembed_rag.serving.context import current_tenant

starlette = pytest.importorskip("starlette", reason="starlette is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[3]
BASE = [1.0, 2.0, 3.0, 4.0]
TENANTS = ["acme", "bob", "carol"]


def offsets_of(seed):
    evidence = Evidence(4, None, None, "ungated", "made for a test")
    return Offsets([Offset("global", np.random.default_rng(seed).normal(size=4), 0.8, 4, evidence)], width=4)


@contextmanager
def running(app):
    """The URL of *app* behind a real server."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="none", log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    (port,) = {listening.getsockname()[1] for listening in server.servers[0].sockets}
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(60)


class Retriever:
    """A search that serves by the live offsets and records what it served, as adapters do.

    Args:
        steering: Query vectors with their offsets.
        log: Where served queries go.
    """

    def __init__(self, steering, log):
        self.steering, self.log = steering, log

    def search(self, query):
        """Whose offsets the query was served, in words."""
        served = self.steering.apply(BASE, query)
        self.log.observe(query, ["a document"])
        return WHOSE.get(tuple(served), "base")


WHOSE = {tuple(offsets_of(seed).apply(BASE)): name for seed, name in enumerate(["shared", *TENANTS])}


@pytest.fixture
def retriever(store):
    """A retriever of a store where the shared tenant and all others have offsets, and a tenant is required."""
    for seed, tenant in enumerate(["", *TENANTS]):
        store.registry.publish(offsets_of(seed), by="test", tenant=tenant)
    live = follow(store, tenants=TENANTS, tenant_required=True)
    with StoreLog(store, tenant_required=True) as log:
        yield Retriever(Steering(live), log)
    live.close()


def asked_together(url, path):
    """The answers to all tenants' requests at once, by tenant."""
    with ThreadPoolExecutor(len(TENANTS)) as pool:
        answers = pool.map(lambda tenant: httpx.get(url + path, headers={"tenant": tenant}, timeout=20), TENANTS)
        return {tenant: (answer.status_code, answer.text) for tenant, answer in zip(TENANTS, answers, strict=True)}


def app_of(retriever):
    """An application with a safe way for each kind of response, and the unsafe ones."""
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    pool = ThreadPoolExecutor(2)

    async def plain(request):
        with context(task="chat", tenant=request.headers["tenant"]):
            return PlainTextResponse(await run_in_threadpool(retriever.search, "plain"))

    def safe_stream(request):
        tenant = request.headers["tenant"]

        def answer():
            for number in range(3):
                with context(task="chat", tenant=tenant):  # around each step, and no `yield` inside
                    answer = retriever.search(f"safe {number}")
                yield f"{answer} "

        return StreamingResponse(answer())

    def unsafe_stream(request):
        tenant = request.headers["tenant"]

        def answer():
            with context(task="chat", tenant=tenant):
                for number in range(3):
                    yield f"{retriever.search(f'unsafe {number}')} "

        return StreamingResponse(answer())

    async def async_stream(request):
        tenant = request.headers["tenant"]

        async def answer():
            for number in range(3):
                with context(task="chat", tenant=tenant):
                    text = await run_in_threadpool(retriever.search, f"async {number}")
                yield f"{text} "

        return StreamingResponse(answer())

    async def in_pool(request):
        tenant = request.headers["tenant"]

        def search():  # the pool's threads know no context: it is opened there
            with context(task="chat", tenant=tenant):
                return retriever.search("pool")

        return PlainTextResponse(await asyncio.get_running_loop().run_in_executor(pool, search))

    async def unsafe_pool(request):
        with context(task="chat", tenant=request.headers["tenant"]):
            loop = asyncio.get_running_loop()
            return PlainTextResponse(await loop.run_in_executor(pool, retriever.search, "unsafe pool"))

    async def in_background(request):
        tenant = request.headers["tenant"]

        def later():
            with context(task="chat", tenant=tenant):
                retriever.search("background")

        return PlainTextResponse("ok", background=BackgroundTask(later))

    async def tenant_now(_):
        return PlainTextResponse(repr(current_tenant()))

    ways = [plain, safe_stream, unsafe_stream, async_stream, in_pool, unsafe_pool, in_background, tenant_now]
    return Starlette(routes=[Route(f"/{way.__name__}", way) for way in ways])


@pytest.mark.parametrize(
    ("way", "answer", "texts"),
    [
        ("plain", "{0}", ["plain"]),
        ("safe_stream", "{0} {0} {0} ", ["safe 0", "safe 1", "safe 2"]),
        ("async_stream", "{0} {0} {0} ", ["async 0", "async 1", "async 2"]),
        ("in_pool", "{0}", ["pool"]),
        ("in_background", "ok", ["background"]),
    ],
)
def test_the_ways_that_are_shown_keep_each_query_with_its_tenant(store, retriever, way, answer, texts):
    """Whichever tenants ask at once, each is served its own offsets, and its queries are recorded as its own."""
    with running(app_of(retriever)) as url:
        answers = asked_together(url, f"/{way}")

    assert answers == {tenant: (200, answer.format(tenant)) for tenant in TENANTS}
    assert recorded(store, retriever.log) == dict.fromkeys(TENANTS, texts)
    assert retriever.log.counts.without_tenant == 0


def test_a_block_around_a_yield_fails_closed(store, retriever):
    """The response is whole; what lost its tenant is served base vectors and not recorded; no request inherits it."""
    with running(app_of(retriever)) as url:
        answers = asked_together(url, "/unsafe_stream")
        now = {httpx.get(f"{url}/tenant_now").text for _ in range(20)}
    kept = recorded(store, retriever.log)

    assert [status for status, _ in answers.values()] == [200] * 3
    assert all(set(text.split()) <= {tenant, "base"} for tenant, (_, text) in answers.items())
    assert [len(text.split()) for _, text in answers.values()] == [3] * 3
    assert set(kept) <= set(TENANTS)
    assert sum(map(len, kept.values())) + retriever.log.counts.without_tenant == 9
    assert now == {"''"}


def test_a_pool_that_knows_no_context_fails_closed(store, retriever):
    """Nothing is recorded under the shared tenant, nor served from it."""
    with running(app_of(retriever)) as url:
        answers = asked_together(url, "/unsafe_pool")

    assert answers == dict.fromkeys(TENANTS, (200, "base"))
    assert recorded(store, retriever.log) == {}
    assert retriever.log.counts.without_tenant == 3


def test_a_dependency_of_fastapi_opens_the_context(store, retriever):
    """An `async` dependency runs in the request's own context, so the endpoint and its threads have the context."""
    fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")

    async def of_tenant(tenant: str = fastapi.Header()):
        with context(task="chat", tenant=tenant):
            yield

    app = fastapi.FastAPI(dependencies=[fastapi.Depends(of_tenant)])

    @app.get("/sync")
    def sync():
        return fastapi.Response(retriever.search("sync"))

    @app.get("/async")
    async def not_sync():
        return fastapi.Response(await asyncio.to_thread(retriever.search, "async"))

    with running(app) as url:
        answers = [asked_together(url, path) for path in ("/sync", "/async")]

    assert answers == [{tenant: (200, tenant) for tenant in TENANTS}] * 2
    assert recorded(store, retriever.log) == {tenant: ["async", "sync"] for tenant in TENANTS}


def test_every_answered_request_is_written_by_a_server_that_is_told_to_end(tmp_path):
    """The server of docs/how-to/production.md under uvicorn, behind a store that is busy while SIGTERM comes."""
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    page = (REPO / "docs" / "how-to" / "production.md").read_text(encoding="utf-8")
    code = re.search(r'^```py title="app.py"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    with server, closing(sqlite3.connect(tmp_path / "ttt.db", isolation_level=None)) as other:
        url = next(match[0] for line in server.stderr if (match := re.search(r"http://[\d.:]+", line)))
        other.execute("BEGIN IMMEDIATE")
        with httpx.Client(base_url=url) as client:
            for number in range(300):
                client.get("/search", params={"question": f"question {number}"}).raise_for_status()
        server.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        other.rollback()
        server.communicate(timeout=120)

    with open_store(f"sqlite:///{tmp_path}/ttt.db") as store:
        assert store.counts().queries == 300
