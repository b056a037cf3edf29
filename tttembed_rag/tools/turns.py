"""The turns of many agents at once, as a framework's hooks see them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import Any

from tttembed_rag.errors import TTTEmbedError
from tttembed_rag.serving.context import context, current_tenant, said
from tttembed_rag.tools.search import LearnedToolSearch, Turn

_log = logging.getLogger(__name__)
# Turns that are remembered for hooks; the least recently used is forgotten.
_TURNS = 2000
# Seconds within which a call without a session belongs to the last search that listed its tool.
_FRESH = 600.0


class Turns:
    """The turns of many agents at once, for hooks, which never fail the agent's call.

    Args:
        search: The search.

        task: The task key of all requests; None is the caller's `context`.

        sessions: Whether every key stands for a run or a session. Where a key may be new with each request, as over
            stateless HTTP, a call that no search of its own listed belongs to the last search that did.
    """

    def __init__(self, search: LearnedToolSearch, task: str | None = None, *, sessions: bool = True) -> None:
        self._search = search
        self._task = task
        self._sessions = sessions
        # By tenant, source and key, the turn and when it searched last; the newest last.
        self._turns: OrderedDict[tuple[str, str, str], tuple[Turn, float]] = OrderedDict()
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
            turn = self._turn_of(key, tool)
            if turn is not None:
                turn.used(tool, succeeded)
        except Exception:  # noqa: BLE001 - an agent's call never fails for what is learned from it
            _log.exception("an outcome was not kept")

    def _searching(self, key: str) -> Turn:
        """The turn of a key, which searches now."""
        place = (current_tenant(), said("source") or "", key)
        with self._lock:
            turn = self._turns[place][0] if place in self._turns else Turn(self._search, self._task)
            self._turns[place] = turn, time.monotonic()
            self._turns.move_to_end(place)
            while len(self._turns) > _TURNS:
                self._turns.popitem(last=False)
            return turn

    def _turn_of(self, key: str, tool: str) -> Turn | None:
        """The turn that a call belongs to; None where no search listed the tool."""
        caller, now = (current_tenant(), said("source") or ""), time.monotonic()
        with self._lock:
            own = self._turns.get((*caller, key))
            if own is not None and (self._sessions or own[0].listed(tool)):
                return own[0]
            latest = () if self._sessions else reversed(self._turns.items())
            fresh = (turn for place, (turn, at) in latest if place[:2] == caller and now - at < _FRESH)
            return next((turn for turn in fresh if turn.listed(tool)), None)

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


def sent_by(headers: Mapping[str, str]) -> context:
    """The caller's `context` with the source that the header ``X-TTT-Source`` of a request names.

    Args:
        headers: Of the request, by their names in lower case; empty where it did not come over HTTP.
    """
    return context(source=headers.get("x-ttt-source") or None)


def is_outage(error: BaseException) -> bool:
    """Whether a call failed because a service could not be reached: that says nothing of the tool."""
    return isinstance(error, ConnectionError | TimeoutError)
