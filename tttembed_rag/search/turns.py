"""The turns of many agents at once, as a framework's hooks see them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import Any

from tttembed_rag.errors import TTTEmbedError
from tttembed_rag.search.tools import LearnedToolSearch, Turn
from tttembed_rag.serving.context import context, current_tenant, said

_log = logging.getLogger(__name__)
# Turns that are remembered for hooks; the least recently used is forgotten.
_TURNS = 2000


class Turns:
    """The turns of many agents at once, for hooks, which never fail the agent's call.

    A key stands for one run, or for the session of one client. A call belongs to the turn of its own key alone: what
    comes without a key, or under one that is new with each request, is found tools and credits nothing.

    Args:
        search: The search.
        task: The task key of all requests; None is the caller's `context`.
    """

    def __init__(self, search: LearnedToolSearch, task: str | None = None) -> None:
        self._search = search
        self._task = task
        # By tenant, source and key; the newest search last.
        self._turns: OrderedDict[tuple[str, str, str], Turn] = OrderedDict()
        self._lock = Lock()
        self._known: int | None = None

    def search(self, key: str, query: str, k: int, tools: Sequence[Any]) -> list[str]:
        """Names of the best of *tools* for *query* in the turn of *key*; tools that are new or changed are added."""
        self._sync(tools)
        return self.search_among(key, query, k, [tool.name for tool in tools])

    def search_among(self, key: str, query: str, k: int, names: Collection[str]) -> list[str]:
        """The same for tools that the search knows already, by their *names*."""
        return self._searching(key).search(query, k, among=names)

    async def asearch(self, key: str, query: str, k: int, tools: Sequence[Any]) -> list[str]:
        """The same, without holding up the event loop."""
        await asyncio.to_thread(self._sync, tools)
        return await self.asearch_among(key, query, k, [tool.name for tool in tools])

    async def asearch_among(self, key: str, query: str, k: int, names: Collection[str]) -> list[str]:
        """The same, without holding up the event loop."""
        return await self._searching(key).asearch(query, k, among=names)

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
            return Turn(self._search, self._task)
        with self._lock:
            place = _place(key)
            turn = self._turns.setdefault(place, Turn(self._search, self._task))
            self._turns.move_to_end(place)
            while len(self._turns) > _TURNS:
                self._turns.popitem(last=False)
            return turn

    def _sync(self, tools: Sequence[Any]) -> None:
        """Add the tools that a framework lists, where they are not those of the last time."""
        listed = hash(tuple((tool.name, tool.description) for tool in tools))
        if listed == self._known:
            return
        try:
            self._search.add(tools)
            self._known = listed
        except TTTEmbedError as exc:  # what is known already is found all the same
            _log.error("new tools are not found yet: %s", exc)
        except Exception:  # noqa: BLE001 - the caller's embedding model may raise anything
            _log.exception("new tools are not found yet")


def _place(key: str) -> tuple[str, str, str]:
    """Where the turn of a key stands: that of the caller's tenant and source."""
    return current_tenant(), said("source") or "", key


def sent_by(headers: Mapping[str, str]) -> context:
    """The caller's `context` with the source that the header ``X-TTT-Source`` of a request names.

    Args:
        headers: Of the request, by their names in lower case; empty where it did not come over HTTP.
    """
    return context(source=headers.get("x-ttt-source") or None)


def is_outage(error: BaseException) -> bool:
    """Whether a call failed because a service could not be reached: that says nothing of the tool."""
    return isinstance(error, ConnectionError | TimeoutError)
