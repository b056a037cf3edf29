"""Memories of agents: a store of LangGraph that is searched by what helped, and middleware that recalls and credits.

Both search by a `tttembed_rag.search.LearnedRecall`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeAlias

from cachetools import LRUCache
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp

from langchain_tttembed.tools import asked_of
from tttembed_rag import context
from tttembed_rag.search import LearnedRecall

__all__ = ["LearnedStore", "RecallMiddleware"]

# Items of a namespace at most; turns whose memories are remembered until their answers come.
_MOST, _TURNS = 100_000, 2000
_CITED = re.compile(r"\[memory (\d+)\]")
_Namespace: TypeAlias = tuple[str, ...]


def text_of(value: dict[str, Any]) -> str:
    """The text of an item's value: its ``content`` or ``text`` where that is a text, else all of it as JSON."""
    said = next((value[key] for key in ("content", "text") if isinstance(value.get(key), str)), None)
    return said or json.dumps(value, ensure_ascii=False, default=str)


class LearnedStore(BaseStore):
    """A store of LangGraph whose items are found by a learned search; it keeps them as it did.

    A namespace is a tenant of the search, named by its parts with ``/`` between them. A search with a query in a
    namespace that has items of its own is answered by the recall, best first and without scores; all else is the
    store's own. Items that are put are found at once, items that are deleted are forgotten at once.

    Args:
        store: The store; it needs no index.

        recall: The search.

        text: What is searched of an item's value.

        every: Seconds after which a namespace is read again for what other processes have put and deleted.
    """

    def __init__(
        self,
        store: BaseStore,
        recall: LearnedRecall,
        *,
        text: Callable[[dict[str, Any]], str] = text_of,
        every: float = 60.0,
    ) -> None:
        self._store = store
        self._recall = recall
        self._text = text
        self._every = every
        self._read: dict[_Namespace, float] = {}  # when each namespace was read

    def used(self, namespace: _Namespace, query: str, key: str, helped: bool = True) -> None:
        """Keep whether an item that was found for *query* helped; say nothing of items that were not used."""
        with context(tenant="/".join(namespace)):
            self._recall.used(query, key, helped)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of operations."""
        steps, done = self._steps(list(ops)), None
        while True:
            try:
                done = self._store.batch(steps.send(done))
            except StopIteration as end:
                return list(end.value)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same in an event loop, which embedding does not hold up."""
        steps, done = self._steps(list(ops)), None
        while True:
            own, end = await asyncio.to_thread(_next, steps, done)
            if own is None:
                return end
            done = await self._store.abatch(own)

    def _steps(self, ops: list[Op]) -> Generator[list[Op], Any, list[Result]]:
        """What the store is asked, step by step; the results of *ops* in the end."""
        queries = {place: op for place, op in enumerate(ops) if isinstance(op, SearchOp) and op.query}
        stale = {op.namespace_prefix for op in queries.values() if self._is_stale(op.namespace_prefix)}
        listed = yield [SearchOp(namespace, limit=_MOST) for namespace in stale]
        for namespace, items in zip(stale, listed, strict=True):
            self._sync(namespace, items)
        mine = {place: op for place, op in queries.items() if op.namespace_prefix in self._read}
        allowed = yield [
            SearchOp(op.namespace_prefix, filter=op.filter, limit=_MOST) for op in mine.values() if op.filter
        ]
        allowed = iter(allowed)
        keys = {place: self._found(op, next(allowed) if op.filter else None) for place, op in mine.items()}
        rest = [op for place, op in enumerate(ops) if place not in mine]
        got = [GetOp(op.namespace_prefix, key) for place, op in mine.items() for key in keys[place]]
        results = yield [*rest, *got]
        items = iter(results[len(rest) :])
        found = {place: [_as_found(one) for _ in keys[place] if (one := next(items)) is not None] for place in mine}
        for op in ops:
            if isinstance(op, PutOp) and op.namespace in self._read:
                self._put(op)
        others = iter(results)
        return [found[place] if place in mine else next(others) for place in range(len(ops))]

    def _is_stale(self, namespace: _Namespace) -> bool:
        return time.monotonic() - self._read.get(namespace, -self._every) >= self._every

    def _sync(self, namespace: _Namespace, items: list[Item]) -> None:
        """Know the items of a namespace as the store has them."""
        texts = {one.key: self._text(one.value) for one in items if one.namespace == namespace}
        with context(tenant="/".join(namespace)):
            if texts or self._recall.names:
                self._read[namespace] = time.monotonic()
                self._recall.add(texts)
                self._recall.forget(set(self._recall.names) - set(texts))

    def _put(self, op: PutOp) -> None:
        with context(tenant="/".join(op.namespace)):
            if op.value is None:
                self._recall.forget([op.key])
            else:
                self._recall.add({op.key: self._text(dict(op.value))})

    def _found(self, op: SearchOp, allowed: list[Item] | None) -> list[str]:
        """The keys of the items that are found."""
        among = None if allowed is None else [one.key for one in allowed]
        with context(tenant="/".join(op.namespace_prefix)):
            found: list[str] = self._recall(op.query or "", op.offset + op.limit, among=among)
            return found[op.offset :]


def _next(steps: Generator[list[Op], Any, list[Result]], done: Any) -> tuple[list[Op] | None, list[Result]]:
    try:
        return steps.send(done), []
    except StopIteration as end:
        return None, end.value


def _as_found(item: Item) -> SearchItem:
    return SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at)


class RecallMiddleware(AgentMiddleware[Any, Any]):
    """The model is told the memories that are found for the user's last message; those that its answer cites helped.

    The memories are numbered; ``[memory 2]`` in an answer without tool calls says that the second one helped. Nothing
    is said of memories that no answer cites. The user is the tenant of the caller's
    ``with tttembed_rag.context(tenant=user)``.

    Args:
        recall: The search; `LearnedStore` keeps it up to date with a store of LangGraph.

        k: Memories that are told at most.
    """

    def __init__(self, recall: LearnedRecall, *, k: int = 5) -> None:
        super().__init__()
        self._recall = recall
        self._k = k
        self._told: LRUCache[str, list[str]] = LRUCache(_TURNS)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the memories that are found."""
        told = self._with_memories(request)
        response = handler(told)
        self._credit(request, response)
        return response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """The same in an event loop."""
        told = await asyncio.to_thread(self._with_memories, request)
        response = await handler(told)
        await asyncio.to_thread(self._credit, request, response)
        return response

    def _with_memories(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        asked = asked_of(request.messages)
        if asked is None:
            return request
        if asked[0] not in self._told:  # the same numbers in all of a turn
            self._told[asked[0]] = self._recall(asked[1], self._k)
        texts = self._recall.texts(self._told[asked[0]])
        if not texts:
            return request
        lines = [f"[memory {number}] {text}" for number, text in enumerate(texts.values(), 1)]
        said = "\n".join(["What is remembered. Cite what you use, as in [memory 1].", *lines])
        earlier = request.system_message.content_blocks if request.system_message else []
        blocks: list[str | dict[Any, Any]] = [*map(dict, earlier), {"type": "text", "text": said}]
        return request.override(system_message=SystemMessage(content=blocks))

    def _credit(self, request: ModelRequest[Any], response: ModelResponse[Any]) -> None:
        asked = asked_of(request.messages)
        answers = [one for one in response.result if isinstance(one, AIMessage)]
        if asked is None or not answers or answers[-1].tool_calls:
            return
        told = [name for name in self._told.get(asked[0], []) if self._recall.texts([name])]
        for number in {int(cited) for cited in _CITED.findall(str(answers[-1].text))}:
            if 0 < number <= len(told):
                self._recall.used(asked[1], told[number - 1])
