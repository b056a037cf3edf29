"""`LearnedToolSearch`: the learned search over an agent's tools, a `Turn` of the agent, and the `Turns` of many."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping
from socket import gaierror
from threading import Lock
from typing import Any

from cachetools import LRUCache

from tttembed_rag.errors import TTTEmbedError
from tttembed_rag.serving.context import context, context_value, current_tenant
from tttembed_tools.catalog import Card, cards_of
from tttembed_tools.learned import LearnedSearch

_log = logging.getLogger(__name__)
# Turns that are remembered for hooks; the least recently used is forgotten.
_TURNS = 2000
# Seconds without a search or a call after which a request has been given up.
_PAUSE = 300.0
# Errors that are looked at behind an error.
_DEEPEST = 20


class LearnedToolSearch(LearnedSearch):
    """Finds the tools for a request among many, and learns from which of them worked.

    It is a `LearnedSearch` over a catalogue of tools in any shape that `cards_of` takes, which all tenants share.
    """

    _kind = "tools"

    def _cards(self, items: Any) -> list[Card]:
        return cards_of(items)

    def turn(self) -> Turn:
        """One turn of an agent: searches that repeat a request in other words join it."""
        return Turn(self)


class Turn:
    """Searches and calls of one turn of an agent.

    An agent that finds nothing searches again in other words. These searches are one request, known by its first
    words, until a tool has worked, or nothing was searched or called for five minutes; a search in other words after
    that begins another request. A call of a tool that the searches of the request did not list says nothing. A tool
    that has worked for a request stays a success there, also where a later call of it fails.

    Args:
        search: The search.
    """

    def __init__(self, search: LearnedToolSearch) -> None:
        self._search = search
        self._request, self._at = "", 0.0  # its first words, and when they were searched last
        self._touched = -math.inf
        self._listed: set[str] = set()
        self._worked: set[str] = set()

    def search(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """Names of the best tools for *query*, best first."""
        return self.note(query, self._search(query, k, among=among))

    async def asearch(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """The same, without holding up the event loop."""
        return self.note(query, await self._search.asearch(query, k, among=among))

    def note(self, query: str, names: list[str]) -> list[str]:
        """Note that *names* were listed for *query*, and give them back."""
        before, self._touched = self._touched, time.monotonic()
        if query != self._request and (self._worked or self._touched - before >= _PAUSE):
            self._request, self._listed, self._worked = query, set(), set()
        if query == self._request:
            self._at = time.time()
        self._listed.update(names)
        return self._search.listed(self._request, names)

    def used(self, tool: str, succeeded: bool = True) -> None:
        """Keep that *tool* was called, and whether it worked."""
        self._touched = time.monotonic()
        if tool not in self._listed or tool in self._worked:
            return
        if succeeded:
            self._worked.add(tool)
        self._search.used(self._request, tool, succeeded, at=self._at)


class Turns:
    """The turns of many agents at once, for hooks, which never fail the agent's call.

    A key stands for one run, or for the session of one client. A call belongs to the turn of its own key alone: what
    comes without a key, or under one that is new with each request, is found tools and credits nothing.

    Args:
        search: The search.
    """

    def __init__(self, search: LearnedToolSearch) -> None:
        self._search = search
        # By tenant, source and key.
        self._turns: LRUCache[tuple[str, str, str], Turn] = LRUCache(_TURNS)
        self._lock = Lock()
        self._known: int | None = None

    def search(self, key: str, query: str, k: int, tools: Collection[Any]) -> list[str]:
        """Names of the best of *tools* for *query* in the turn of *key*.

        The *tools* are names that the search knows, or objects: of these it is given those that are new or changed.
        Where it knows none of them, because the embedding model was down when they came, all of them are given back.
        """
        names = self._names(tools)
        return self._searching(key).search(query, k, among=names) if self._knows(names) else names

    async def asearch(self, key: str, query: str, k: int, tools: Collection[Any]) -> list[str]:
        """The same, without holding up the event loop."""
        names = await asyncio.to_thread(self._names, tools)
        return await self._searching(key).asearch(query, k, among=names) if self._knows(names) else names

    def used(self, key: str, tool: str, *, succeeded: bool) -> None:
        """Keep an outcome in the turn of *key*; whatever is wrong with it is logged."""
        try:
            with self._lock:
                turn = self._turns.get(_place(key))
            if turn is not None:
                turn.used(tool, succeeded)
        except Exception:  # noqa: BLE001 - an agent's call never fails for what is learned from it
            _log.exception("an outcome was not kept")

    def _searching(self, key: str) -> Turn:
        """The turn of a key, which searches now."""
        if not key:
            return Turn(self._search)
        with self._lock:
            turn: Turn = self._turns.setdefault(_place(key), Turn(self._search))
            return turn

    def _knows(self, names: list[str]) -> bool:
        """Whether any tool of these *names* can be found."""
        rows = self._search.index_of(current_tenant()).rows
        return any(name in rows for name in names)

    def _names(self, tools: Collection[Any]) -> list[str]:
        """The names of *tools*, which are added to the search where they are not those of the last time."""
        if all(isinstance(tool, str) for tool in tools):
            return list(tools)
        listed = hash(tuple((tool.name, tool.description) for tool in tools))
        if listed != self._known:
            try:
                self._search.add(tools)
                self._known = listed
            except TTTEmbedError as exc:  # what is known already is found all the same
                _log.error("new tools are not found yet: %s", exc)
            except Exception:  # noqa: BLE001 - the caller's embedding model may raise anything
                _log.exception("new tools are not found yet")
        return [tool.name for tool in tools]


def _place(key: str) -> tuple[str, str, str]:
    """Where the turn of a key stands: that of the caller's tenant and source."""
    return current_tenant(), context_value("source") or "", key


def sent_by(headers: Mapping[str, str]) -> context:
    """The caller's `context` with the source that the header ``X-TTT-Source`` of a request names.

    Args:
        headers: Of the request, by their names in lower case; empty where it did not come over HTTP.
    """
    return context(source=headers.get("x-ttt-source") or None)


def is_outage(error: BaseException) -> bool:
    """Whether a call failed because a service could not be reached: that says nothing of the tool.

    Clients of HTTP raise errors of their own, behind which that is the cause.
    """
    return any(isinstance(cause, ConnectionError | TimeoutError | gaierror) for cause in causes(error))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it came of."""
    for _ in range(_DEEPEST):
        if error is None:
            return
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
