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
from contextlib import ExitStack, closing, contextmanager, nullcontext
from contextvars import copy_context
from pathlib import Path

import httpx
import numpy as np
import pytest
from tttembed_store import StoreLog, follow, open_store

from tttembed_rag import Evidence, Offset, Offsets, Steering, context
from tttembed_rag.serving.context import _blocks, context_value, current_tenant

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


def recorded(store, log):
    """The texts that were recorded, by tenant."""
    log.flush()
    waiting = {tenant: store.judge_queue.waiting("j", tenant=tenant) for tenant in store.tenants()}
    return {tenant: sorted(served.query for served in queries) for tenant, queries in waiting.items() if queries}


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


def in_a_thread(function):
    """What *function* gives in a thread that goes on with the caller's context."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, function).result()


class TestGenerators:
    """Blocks that do not end in the order in which they began."""

    @pytest.mark.parametrize("opened", ["by with", "by a stack", "by a manager of its own"])
    def test_generators_that_take_turns_are_never_taken_for_each_other(self, store, opened):
        """Nor is their caller: what runs between their steps says no tenant."""

        class Session:
            """A manager that opens a block for who enters it."""

            def __init__(self, tenant):
                self.block = context(task="t", tenant=tenant)

            def __enter__(self):
                self.block.__enter__()

            def __exit__(self, *error):
                self.block.__exit__(*error)

        def steps(tenant):
            with ExitStack() if opened == "by a stack" else nullcontext() as stack:
                block = Session(tenant) if opened == "by a manager of its own" else context(task="t", tenant=tenant)
                if stack:
                    stack.enter_context(block)
                with nullcontext() if stack else block:
                    for number in range(2):
                        log.observe(f"{tenant}'s {number}", ["a document"])
                        yield

        with StoreLog(store, tenant_required=True) as log:
            first, second = steps("acme"), steps("bob")
            for generator in (first, second, first, second):
                next(generator)
            log.observe("nobody's", ["a document"])
            first.close()
            second.close()

        assert recorded(store, log) == {"acme": ["acme's 0", "acme's 1"], "bob": ["bob's 0", "bob's 1"]}
        assert log.counts.without_tenant == 1

    def test_a_generator_that_is_kept_says_nothing_of_the_next_request(self, store):
        """A thread keeps a generator that pages for one tenant: its next request is not that tenant's."""

        def pages():
            with context(task="t", tenant="bob"):
                for number in range(2):
                    log.observe(f"page {number} of bob", ["a document"])
                    yield

        with StoreLog(store, tenant_required=True) as log:
            kept = pages()
            next(kept)
            log.observe("a request of nobody", ["a document"])
            with context(task="t", tenant="acme"):
                log.observe("a request of acme", ["a document"])
                next(kept)
                log.observe("another of acme", ["a document"])
            in_a_thread(lambda: log.observe("nobody's in a thread", ["a document"]))
            kept.close()
            log.observe("nobody's at last", ["a document"])

        assert recorded(store, log) == {
            "bob": ["page 0 of bob", "page 1 of bob"],
            "acme": ["a request of acme", "another of acme"],
        }
        assert log.counts.without_tenant == 3

    async def test_what_runs_between_their_steps_says_nothing(self):
        """Of plain and async generators that take turns; when they end, the thread is where it began."""

        def plain(tenant):
            with context(task="t", tenant=tenant, query_id="q7", source="ann"):
                yield current_tenant()
            yield current_tenant()

        async def steps(tenant):
            with context(task="t", tenant=tenant):
                for _ in range(2):
                    await asyncio.sleep(0)
                    yield current_tenant()

        first, second = plain("acme"), plain("bob")
        seen = [next(first), next(second)]
        between = context_value("task"), context_value("tenant"), context_value("query_id"), context_value("source")
        seen += [next(first), next(second), current_tenant()]
        third, fourth = steps("acme"), steps("bob")
        awaited = [[await anext(generator) for generator in (third, fourth, third, fourth)], current_tenant()]
        await third.aclose()
        await fourth.aclose()

        assert (seen, between) == (["acme", "bob", "", "", ""], (None,) * 4)
        assert awaited == [["acme", "bob", "acme", "bob"], ""]

    def test_a_generator_is_in_its_own_block_whoever_goes_on_with_it(self):
        def steps(tenant, others=None):
            with context(task="t", tenant=tenant):
                while True:
                    yield [*(next(others) if others else []), current_tenant()]

        first = steps("acme")
        second = steps("bob", first)
        next(first)
        with context(task="t", tenant="cyd"):
            seen = [next(first), next(second)]
        third = steps("dan", second)
        seen += [next(third), next(third)]
        for generator in (third, second, first):
            generator.close()

        assert seen == [["acme"], ["acme", "bob"], *[["acme", "bob", "dan"]] * 2]
        assert current_tenant() == ""

    async def test_what_is_started_beside_a_generator_of_another_tenant_is_nobodys(self, store):
        """The generators start it, or their caller: which of them is not known, so it is left out."""

        async def ask(query):
            await asyncio.to_thread(log.observe, query, ["a document"])
            with context(task="t", tenant="dan"):
                log.observe(f"dan's {query}", ["a document"])

        async def steps(tenant):
            with context(task="t", tenant=tenant):
                for number in range(2):
                    started.append(asyncio.create_task(ask(f"{tenant}'s {number}")))
                    yield

        with StoreLog(store, tenant_required=True) as log:
            started, first, second = [], steps("acme"), steps("bob")
            for generator in (first, second, first, second):
                await anext(generator)
            await asyncio.gather(*started)
            await first.aclose()
            await second.aclose()
            with context(task="t", tenant="cyd"):
                third = steps("bob")
                await anext(third)
                log.observe("cyd's 0", ["a document"])
                await ask("cyd's or bob's")
                await asyncio.gather(*started)
                await third.aclose()
                log.observe("cyd's 1", ["a document"])

        assert recorded(store, log) == {
            "cyd": ["cyd's 0", "cyd's 1"],
            "dan": [f"dan's {name}" for name in ("acme's 0", "acme's 1", "bob's 0", "bob's 1", "cyd's or bob's")],
        }
        assert log.counts.without_tenant == 6

    @pytest.mark.parametrize("begun", ["alone", "in a block"])
    def test_generators_that_overlap_without_end_leave_nothing_behind(self, begun):
        """Each begins before the one before it ends, as in a loop that goes through streams for days."""

        def steps(number):
            with context(task="t", tenant=str(number)):
                yield

        last, kept = steps(-1), []
        next(last)
        for number in range(100):
            new = steps(number)
            with context(task="t", tenant="the loop's") if begun == "in a block" else nullcontext():
                next(new)
            last.close()
            last = new
            kept.append(len(_blocks.get()))
        last.close()

        assert len(set(kept)) == 1

    def test_a_function_that_a_generator_calls_keeps_its_own_block(self):
        """Its tasks and threads too: the block ends before the generator can go on elsewhere."""

        def ask():
            with context(task="t", tenant="acme"):
                return current_tenant(), in_a_thread(current_tenant)

        def steps():
            yield ask()
            yield context(task="t", tenant="acme")(current_tenant)()

        with context(task="t", tenant="bob"):
            assert [*steps(), *(ask() for _ in "a")] == [("acme", "acme"), "acme", ("acme", "acme")]

    def test_a_step_within_a_block_of_another_tenant_starts_what_is_nobodys(self):
        def steps():
            with context(task="t", tenant="acme"):
                while True:
                    yield current_tenant(), in_a_thread(current_tenant)

        generator = steps()
        seen = [next(generator)]
        with context(task="t", tenant="bob"):
            seen.append(next(generator))
        generator.close()

        assert seen == [("acme", "acme"), ("acme", "")]

    async def test_tasks_that_share_a_context_share_no_block(self):
        """As those of frameworks that make tasks with a context of their own: none is taken for another's."""

        async def steps(tenant, others):
            with context(task="t", tenant=tenant):
                others.set()
                await both.wait()
                yield current_tenant()

        async def read(tenant, others):
            return [name async for name in steps(tenant, others)]

        begun, both, shared = [asyncio.Event(), asyncio.Event()], asyncio.Event(), copy_context()
        tasks = [
            asyncio.get_running_loop().create_task(read(tenant, event), context=shared)
            for tenant, event in zip(("acme", "bob"), begun, strict=True)
        ]
        for event in begun:
            await event.wait()
        both.set()
        first, second = await asyncio.gather(*tasks)

        assert first in (["acme"], [""])
        assert second in (["bob"], [""])

    def test_a_thread_is_not_taken_for_one_that_has_ended(self):
        """Python gives its number to the next one: what a thread's thread has started keeps the context."""

        def begin():
            with context(task="t", tenant="acme"):
                started.append(threading.Thread(target=copy_context().run, args=(go_on,)))
                started[0].start()

        def go_on():
            first.join()
            seen.extend(in_a_thread(current_tenant) for _ in range(20))

        started, seen = [], []
        first = threading.Thread(target=begin)
        first.start()
        first.join()
        started[0].join()

        assert seen == ["acme"] * 20

    async def test_what_a_stream_has_started_goes_on_while_its_reader_is_slow(self):
        """A chain that streams works ahead in tasks and threads of its own: they stay with the context."""

        async def now():
            await read.wait()
            return current_tenant(), await asyncio.to_thread(current_tenant)

        async def stream(tenant):
            with context(task="t", tenant=tenant):
                started = asyncio.create_task(now())
                yield "a part"
                yield await started

        read, parts = asyncio.Event(), stream("acme")
        await anext(parts)
        read.set()
        await asyncio.sleep(0.01)

        assert await anext(parts) == ("acme", "acme")

    def test_a_context_manager_may_hold_a_block_open(self):
        """Also within a generator that is itself running, and one that an `ExitStack` closes."""

        @contextmanager
        def of_tenant(tenant):
            with context(task="t", tenant=tenant, query_id="q7", source="ann"):
                yield

        def steps():
            with context(task="t", tenant="bob"), of_tenant("acme"):
                yield current_tenant()

        with of_tenant("acme"):
            seen = [current_tenant()]
            words = context_value("task"), context_value("source"), context_value("query_id") or ""
        with ExitStack() as stack:
            stack.enter_context(of_tenant("acme"))
            seen.append(current_tenant())
        seen += steps()

        assert (seen, words) == (["acme"] * 3, ("t", "ann", "q7"))
        assert [context_value(name) for name in ("tenant", "task", "source", "query_id")] == [None] * 4

    def test_a_block_may_end_in_another_context(self):
        """A generator that is closed elsewhere raises nothing, and leaves nothing behind."""
        from contextvars import Context

        def steps():
            with context(task="t", tenant="acme"):
                yield current_tenant()
                yield current_tenant()

        generator = steps()
        contexts = [copy_context() for _ in range(3)]
        seen = [contexts[0].run(next, generator), contexts[1].run(next, generator)]
        contexts[2].run(generator.close)

        assert seen == ["acme", ""]
        assert [each.run(current_tenant) for each in (*contexts, Context())] == [""] * 4

    async def test_a_task_that_outlives_a_block_stays_in_it(self):
        """As a thread does: what a request starts in the background is that request's."""
        go_on = asyncio.Event()
        released = threading.Event()

        async def later():
            await go_on.wait()
            return current_tenant()

        def in_thread():
            released.wait(60)
            return current_tenant()

        with context(task="t", tenant="acme"):
            task, thread = asyncio.create_task(later()), asyncio.create_task(asyncio.to_thread(in_thread))
            await asyncio.sleep(0)
        with context(task="t", tenant="bob"):
            go_on.set()
            released.set()
            kept = [await task, await thread, current_tenant()]

        assert (kept, current_tenant()) == (["acme", "acme", "bob"], "")

    def test_a_context_is_opened_once(self):
        """One block is one block: a second with the same object would hide where each ends."""
        once = context(task="t")
        with once, pytest.raises(ValueError, match="expected one block"), once:
            pass

    def test_a_context_decorates_a_function(self):
        """Each call has a block of its own, also within another."""

        @context(task="t", tenant="acme")
        def inner(depth):
            return current_tenant() if not depth else inner(depth - 1)

        assert (inner(3), current_tenant()) == ("acme", "")


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
