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
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp

from tttembed_rag import context
from tttembed_rag.adapting import adrive, drive
from tttembed_tools import LearnedRecall
from tttembed_tools.hosts.langchain_tools import asked_of

__all__ = ["LearnedStore", "RecallMiddleware"]

_log = logging.getLogger(__name__)
# Items of a namespace at most.
_MOST = 100_000
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
    are forgotten at once. An item is searched by its ``content`` or ``text``, and without either by all of it.

    Where the recall cannot take items in, as while the embedding model is down, that is logged, and the store answers
    itself until a search has read the namespace again.

    Args:
        store: The store; it needs no index.
        recall: The search.
        every: Seconds after which a namespace is read again for what other processes have put and deleted.
    """

    def __init__(self, store: BaseStore, recall: LearnedRecall, *, every: float = 60.0) -> None:
        self._store = store
        self._recall = recall
        self._every = every
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config
        self._lock = Lock()
        self._read: dict[_Namespace, float] = {}  # when each namespace was read
        self._writes: Counter[_Namespace] = Counter()  # beginnings and ends of writes

    def used(self, namespace: _Namespace, query: str, key: str, helped: bool = True) -> None:
        """Keep whether an item that was found for *query* helped; say nothing of items that were not used."""
        with context(tenant=_tenant(namespace)):
            self._recall.used(query, key, helped)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of operations."""
        return drive(self._steps(list(ops)), ask=self._store.batch, run=_called)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same in an event loop, which embedding does not hold up."""
        return await adrive(self._steps(list(ops)), ask=self._store.abatch, run=asyncio.to_thread)

    def _steps(self, ops: list[Op]) -> Generator[tuple[str, Any], Any, list[Result]]:
        """What the store is asked and what is run beside it, step by step; the results of *ops* in the end."""
        queries = {place: op for place, op in enumerate(ops) if isinstance(op, SearchOp) and op.query and op.limit > 0}
        rest = {place: op for place, op in enumerate(ops) if place not in queries}
        puts = [op for op in rest.values() if isinstance(op, PutOp)]
        written = {op.namespace for op in puts}
        begun = yield "run", partial(self._begin, written)  # which waits for who reads
        results = dict(zip(rest, (yield "ask", list(rest.values())), strict=True))
        yield "run", partial(self._end, puts, begun)
        for namespace in written | {op.namespace_prefix for op in queries.values()}:
            if self._is_stale(namespace):
                writes = self._writes[namespace]
                (items,) = yield "ask", [SearchOp(namespace, limit=_MOST, refresh_ttl=False)]
                yield "run", partial(self._sync, namespace, items, writes)
        for place, op in queries.items():
            if not self._answers(op.namespace_prefix):
                (results[place],) = yield "ask", [op]
                continue
            among = None
            if op.filter:
                (items,) = yield "ask", [op._replace(query=None, limit=_MOST, offset=0, refresh_ttl=False)]
                among = [item.key for item in items if item.namespace == op.namespace_prefix]
            keys = yield "run", partial(self._keys, op, among)
            items = yield "ask", [GetOp(op.namespace_prefix, key, op.refresh_ttl) for key in keys]
            results[place] = [_as_found(item) for item in items if item is not None]
        return [results[place] for place in range(len(ops))]

    def _begin(self, namespaces: set[_Namespace]) -> dict[_Namespace, tuple[int, float | None]]:
        """Say that namespaces are written from now on: how often they were, and when each was read."""
        with self._lock:
            self._writes.update(namespaces)
            return {namespace: (self._writes[namespace], self._read.pop(namespace, None)) for namespace in namespaces}

    def _end(self, puts: list[PutOp], begun: dict[_Namespace, tuple[int, float | None]]) -> None:
        """Know what was written where nobody wrote beside; else, and at first, the namespace is read again."""
        values: dict[_Namespace, dict[str, Any]] = {}
        for op in puts:
            values.setdefault(op.namespace, {})[op.key] = op.value
        with self._lock:
            alone = {name: read for name, (writes, read) in begun.items() if self._writes[name] == writes}
            self._writes.update(begun.keys())
            for namespace, items in values.items():
                with context(tenant=_tenant(namespace)):
                    if gone := [key for key, value in items.items() if value is None]:
                        self._recall.forget(gone)  # that they could not be forgotten is the caller's to know
                    if alone.get(namespace) is not None:
                        self._put(namespace, {key: value for key, value in items.items() if value is not None}, alone)
            self._read.update((name, read) for name, read in alone.items() if read is not None)

    def _put(self, namespace: _Namespace, items: dict[str, Any], alone: dict[_Namespace, float | None]) -> None:
        """Know some items; where that fails, their namespace is read again."""
        try:
            self._recall.add({key: text_of(value) for key, value in items.items() if key})
        except Exception:  # noqa: BLE001 - the caller's model: the items are in the store
            alone[namespace] = None
            _log.exception("%d items of %s were not taken in: the store answers itself", len(items), namespace)

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
                texts = {item.key: text_of(item.value) for item in items if item.namespace == namespace and item.key}
                self._recall.add(texts)
                if len(items) < _MOST and (gone := set(self._recall.names) - set(texts)):
                    self._recall.forget(gone)
                self._read[namespace] = time.monotonic()
            except Exception:  # noqa: BLE001 - the caller's model and store: neither must fail the search
                self._read.pop(namespace, None)
                _log.exception("the items of %s were not read: the store answers itself", namespace)

    def _keys(self, op: SearchOp, among: list[str] | None) -> list[str]:
        """The keys of the items that are found."""
        with context(tenant=_tenant(op.namespace_prefix)):
            keys: list[str] = self._recall(op.query or "", op.offset + op.limit, among=among)
            return keys[op.offset :]


def _called(call: Callable[[], Any]) -> Any:
    return call()


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

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the memories that are found."""
        return drive(self._steps(request), call=handler, run=_called)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """The same in an event loop."""
        return await adrive(self._steps(request), call=handler, run=asyncio.to_thread)

    def _steps(self, request: ModelRequest[Any]) -> Generator[tuple[str, Any], Any, ModelResponse[Any]]:
        request, names = yield "run", partial(self._with_memories, request)
        response: ModelResponse[Any] = yield "call", request
        yield "run", partial(self._credit, request, response, names)
        return response

    def _with_memories(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], list[str]]:
        """The request with the memories, and their names in the order of their numbers."""
        message = asked_of(request.messages)
        texts = {} if message is None else self._recall.texts(self._recall(message[1], self._k))
        if not texts:
            return request, []
        lines = [f"[memory {number}] {text}" for number, text in enumerate(texts.values(), 1)]
        told = "\n".join(["What is remembered. Cite what you use, as in [memory 1].", *lines])
        earlier = request.system_message.content_blocks if request.system_message else []
        blocks: list[str | dict[Any, Any]] = [*map(dict, earlier), {"type": "text", "text": told}]
        return request.override(system_message=SystemMessage(content=blocks)), list(texts)

    def _credit(self, request: ModelRequest[Any], response: ModelResponse[Any], names: list[str]) -> None:
        """Keep which of the memories of these *names* the answer cites."""
        message = asked_of(request.messages)
        answers = [answer for answer in response.result if isinstance(answer, AIMessage)]
        if message is None or not answers or answers[-1].tool_calls:
            return
        for number in {int(cited) for cited in _CITED.findall(str(answers[-1].text))}:
            if 0 < number <= len(names):
                try:
                    self._recall.used(message[1], names[number - 1])
                except Exception:  # noqa: BLE001 - the answer is there, and must reach the user
                    _log.exception("that a memory helped was not kept")
