"""Memories of agents: a store of LangGraph that is searched by what helped, and middleware that recalls and credits.

Both search by a `tttembed_tools.LearnedRecall`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable
from itertools import groupby
from threading import Lock
from typing import Any, TypeAlias

from cachetools import LRUCache
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp

from tttembed_rag import context
from tttembed_rag.serving.context import current_tenant
from tttembed_tools import LearnedRecall
from tttembed_tools.hosts.langchain_tools import asked_of

__all__ = ["LearnedStore", "RecallMiddleware"]

_log = logging.getLogger(__name__)
# Items of a namespace at most; turns whose memories are remembered until their answers come.
_MOST, _TURNS = 100_000, 2000
_CITED = re.compile(r"\[memory (\d{1,6})\]")
_Namespace: TypeAlias = tuple[str, ...]


def text_of(value: dict[str, Any]) -> str:
    """The text of an item's value: its ``content`` or ``text`` where that says something, else all of it as JSON."""
    texts = (text for key in ("content", "text") if isinstance(text := value.get(key), str) and text.strip())
    return next(texts, None) or json.dumps(value, ensure_ascii=False, default=str)


def _tenant(namespace: _Namespace) -> str:
    """The tenant of a namespace, and of no other."""
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in namespace)


class LearnedStore(BaseStore):
    """A store of LangGraph whose items are found by a learned search; it keeps them as it did.

    A namespace is a tenant of the search, named by its parts with ``/`` between them; in a part, ``%`` is ``%25`` and
    ``/`` is ``%2F``. A search with a query in a namespace that has items of its own is answered by the recall, best
    first and without scores; all else is the store's own. Items that are put are found at once, items that are deleted
    are forgotten at once.

    Where the recall cannot take items in, as while the embedding model is down, that is logged, and the store answers
    itself until a search has read the namespace again. An item whose text cannot be read or embedded, while others can,
    is logged and not found.

    Args:
        store: The store; it needs no index.
        recall: The search.
        text: What is searched of an item's value; an item whose text is blank is not found.
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
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config
        self._lock = Lock()  # around what is read and written, and what the recall is told of it
        self._read: dict[_Namespace, float] = {}  # when each namespace was read
        self._writes: Counter[_Namespace] = Counter()  # beginnings and ends of writes

    def used(self, namespace: _Namespace, query: str, key: str, helped: bool = True) -> None:
        """Keep whether an item that was found for *query* helped; say nothing of items that were not used."""
        with context(tenant=_tenant(namespace)):
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
        queries = {place: op for place, op in enumerate(ops) if isinstance(op, SearchOp) and op.query and op.limit > 0}
        asked = {op.namespace_prefix for op in queries.values()}
        stale = {namespace: self._writes[namespace] for namespace in asked if self._is_stale(namespace)}
        listed = yield [SearchOp(namespace, limit=_MOST, refresh_ttl=False) for namespace in stale]
        for (namespace, writes), items in zip(stale.items(), listed, strict=True):
            self._sync(namespace, items, writes)
        mine = {place: op for place, op in queries.items() if self._answers(op.namespace_prefix)}
        allowed = yield [
            SearchOp(op.namespace_prefix, filter=op.filter, limit=_MOST, refresh_ttl=False)
            for op in mine.values()
            if op.filter
        ]
        allowed = iter(allowed)
        keys = {place: self._found(op, next(allowed) if op.filter else None) for place, op in mine.items()}
        rest = [op for place, op in enumerate(ops) if place not in mine]
        got = [GetOp(op.namespace_prefix, key, op.refresh_ttl) for place, op in mine.items() for key in keys[place]]
        puts = [op for op in ops if isinstance(op, PutOp)]
        begun = self._begin({op.namespace for op in puts})
        results = yield [*rest, *got]
        self._end(puts, begun)
        items = iter(results[len(rest) :])
        found = {place: [_as_found(one) for _ in keys[place] if (one := next(items)) is not None] for place in mine}
        others = iter(results)
        return [found[place] if place in mine else next(others) for place in range(len(ops))]

    def _is_stale(self, namespace: _Namespace) -> bool:
        return time.monotonic() - self._read.get(namespace, -self._every) >= self._every

    def _answers(self, namespace: _Namespace) -> bool:
        """Whether the recall knows the namespace, and it has items of its own."""
        with context(tenant=_tenant(namespace)):
            return namespace in self._read and bool(self._recall.names)

    def _sync(self, namespace: _Namespace, items: list[Item], writes: int) -> None:
        """Know the items of a namespace as the store has them, unless it was written while they were listed.

        Nothing is forgotten where the listing ends at its limit.
        """
        with self._lock, context(tenant=_tenant(namespace)):
            if self._writes[namespace] != writes:
                return
            try:
                texts = {one.key: self._text_of(one) for one in items if one.namespace == namespace}
                texts = {key: text for key, text in texts.items() if key and text}
                self._recall.add(texts)
                if len(items) < _MOST and (gone := set(self._recall.names) - set(texts)):
                    self._recall.forget(gone)
                self._read[namespace] = time.monotonic()
            except Exception:  # noqa: BLE001 - the caller's model, text and store: none must fail the search
                self._read.pop(namespace, None)
                _log.exception("the items of %s were not read: the store answers itself", namespace)

    def _text_of(self, item: Item) -> str:
        """What is searched of an item; blank where that cannot be read."""
        try:
            text = self._text(item.value)
            return text if text.strip() else ""
        except Exception:  # noqa: BLE001 - the caller's function, which must not hide the other items
            _log.exception("item %r of %s has no text and is not found", item.key, item.namespace)
            return ""

    def _begin(self, namespaces: set[_Namespace]) -> dict[_Namespace, int]:
        """Say that namespaces are written from now on."""
        with self._lock:
            self._writes.update(namespaces)
            return {namespace: self._writes[namespace] for namespace in namespaces}

    def _end(self, puts: list[PutOp], begun: dict[_Namespace, int]) -> None:
        """Know what was written; where two writes of a namespace overlapped, it is read again for what came last."""
        with self._lock:
            for namespace in [namespace for namespace, writes in begun.items() if self._writes[namespace] != writes]:
                self._read.pop(namespace, None)
            self._writes.update(begun.keys())
            try:
                for (namespace, is_gone), ops in groupby(puts, key=lambda op: (op.namespace, op.value is None)):
                    with context(tenant=_tenant(namespace)):
                        if is_gone:  # that they could not be forgotten is the caller's to know
                            self._recall.forget([op.key for op in ops])
                        else:
                            for op in ops:
                                self._put(op)
            except Exception:
                for namespace in begun:
                    self._read.pop(namespace, None)
                raise

    def _put(self, op: PutOp) -> None:
        """Know one item, or forget one whose text is blank by now."""
        try:
            if (text := self._text(dict(op.value or {}))).strip():
                self._recall.add({op.key: text})
            else:
                self._recall.forget([op.key])
        except Exception:  # noqa: BLE001 - the same: the item is in the store
            self._read.pop(op.namespace, None)
            _log.exception("item %r of %s was not taken in: the store answers itself", op.key, op.namespace)

    def _found(self, op: SearchOp, allowed: list[Item] | None) -> list[str]:
        """The keys of the items that are found."""
        among = None if allowed is None else [one.key for one in allowed if one.namespace == op.namespace_prefix]
        with context(tenant=_tenant(op.namespace_prefix)):
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
        self._told: LRUCache[tuple[str, str, str], list[str]] = LRUCache(_TURNS)
        self._telling = Lock()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the memories that are found."""
        request, told = self._with_memories(request)
        response = handler(request)
        self._credit(request, response, told)
        return response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """The same in an event loop."""
        request, told = await asyncio.to_thread(self._with_memories, request)
        response = await handler(request)
        await asyncio.to_thread(self._credit, request, response, told)
        return response

    def _with_memories(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], list[str]]:
        """The request with the memories, and their names in the order of their numbers."""
        asked = asked_of(request.messages)
        texts = {} if asked is None else self._recall.texts(self._found(*asked))
        if not texts:
            return request, []
        lines = [f"[memory {number}] {text}" for number, text in enumerate(texts.values(), 1)]
        said = "\n".join(["What is remembered. Cite what you use, as in [memory 1].", *lines])
        earlier = request.system_message.content_blocks if request.system_message else []
        blocks: list[str | dict[Any, Any]] = [*map(dict, earlier), {"type": "text", "text": said}]
        return request.override(system_message=SystemMessage(content=blocks)), list(texts)

    def _found(self, turn: str, query: str) -> list[str]:
        """Names of the memories that are found: the same in all of a turn whose message has an id."""
        key = (current_tenant(), turn, query)
        with self._telling:
            told = self._told.get(key)
        if told is not None:
            return told
        found: list[str] = self._recall(query, self._k)
        if turn == query:  # a message without an id
            return found
        with self._telling:
            return self._told.setdefault(key, found)

    def _credit(self, request: ModelRequest[Any], response: ModelResponse[Any], told: list[str]) -> None:
        """Keep which of the memories that were *told* the answer cites."""
        asked = asked_of(request.messages)
        answers = [one for one in response.result if isinstance(one, AIMessage)]
        if asked is None or not answers or answers[-1].tool_calls:
            return
        for number in {int(cited) for cited in _CITED.findall(str(answers[-1].text))}:
            if 0 < number <= len(told):
                try:
                    self._recall.used(asked[1], told[number - 1])
                except Exception:  # noqa: BLE001 - the answer is there, and must reach the user
                    _log.exception("that a memory helped was not kept")
