"""Blocks of a context that do not end in the order in which they began: generators, tasks, threads and stacks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import Context, copy_context

import pytest
from tttembed_store import StoreLog

from tests.traffic import recorded
from tttembed_rag import context
from tttembed_rag.serving.context import _blocks, context_value, current_tenant

WORDS = ("task", "tenant", "query_id", "source")


def in_a_thread(function):
    """What *function* gives in a thread that goes on with the caller's context."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, function).result()


@pytest.mark.parametrize("opened", ["by with", "by a stack", "by a manager of its own"])
def test_generators_that_take_turns_are_never_taken_for_each_other(opened):
    """Nor is their caller: what runs between their steps says nothing; after them the thread is where it began."""

    class Session:
        """A manager that opens a block for who enters it."""

        def __init__(self, tenant):
            self.block = context(task="t", tenant=tenant, query_id="q7", source="ann")

        def __enter__(self):
            self.block.__enter__()

        def __exit__(self, *error):
            self.block.__exit__(*error)

    def steps(tenant):
        with ExitStack() if opened == "by a stack" else nullcontext() as stack:
            session = Session(tenant)
            block = session if opened == "by a manager of its own" else session.block
            if stack:
                stack.enter_context(block)
            with nullcontext() if stack else block:
                yield current_tenant()
                yield current_tenant()

    first, second = steps("acme"), steps("bob")
    seen = [next(generator) for generator in (first, second, first, second)]
    between = [context_value(word) for word in WORDS]
    first.close()
    second.close()

    assert (seen, between) == (["acme", "bob", "acme", "bob"], [None] * 4)
    assert current_tenant() == ""


def test_a_generator_that_is_kept_says_nothing_of_the_next_request(store):
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


async def test_async_generators_take_turns():
    async def steps(tenant):
        with context(task="t", tenant=tenant):
            for _ in range(2):
                await asyncio.sleep(0)
                yield current_tenant()

    first, second = steps("acme"), steps("bob")
    seen = [await anext(generator) for generator in (first, second, first, second)]
    between = current_tenant()
    await first.aclose()
    await second.aclose()

    assert (seen, between) == (["acme", "bob", "acme", "bob"], "")


def test_a_generator_is_in_its_own_block_whoever_goes_on_with_it():
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


async def test_what_is_started_beside_a_generator_of_another_tenant_is_nobodys(store):
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
def test_generators_that_overlap_without_end_leave_nothing_behind(begun):
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


def test_a_function_that_a_generator_calls_keeps_its_own_block():
    """Its tasks and threads too: the block ends before the generator can go on elsewhere."""

    def ask():
        with context(task="t", tenant="acme"):
            return current_tenant(), in_a_thread(current_tenant)

    def steps():
        yield ask()
        yield context(task="t", tenant="acme")(current_tenant)()

    with context(task="t", tenant="bob"):
        assert [*steps(), *(ask() for _ in "a")] == [("acme", "acme"), "acme", ("acme", "acme")]


def test_a_step_within_a_block_of_another_tenant_starts_what_is_nobodys():
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


async def test_tasks_that_share_a_context_share_no_block():
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


def test_a_thread_is_not_taken_for_one_that_has_ended():
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


async def test_what_a_stream_has_started_goes_on_while_its_reader_is_slow():
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


def test_a_context_manager_may_hold_a_block_open():
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
    assert [context_value(word) for word in WORDS] == [None] * 4


def test_a_block_may_end_in_another_context():
    """A generator that is closed elsewhere raises nothing, and leaves nothing behind."""

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


async def test_a_task_that_outlives_a_block_stays_in_it():
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


def test_a_context_is_opened_once():
    """One block is one block: a second with the same object would hide where each ends."""
    once = context(task="t")
    with once, pytest.raises(ValueError, match="expected one block"), once:
        pass


def test_a_context_decorates_a_function():
    """Each call has a block of its own, also within another."""

    @context(task="t", tenant="acme")
    def inner(depth):
        return current_tenant() if not depth else inner(depth - 1)

    assert (inner(3), current_tenant()) == ("acme", "")
