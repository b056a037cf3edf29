"""One turn of an agent: what it searched, in which words, and which of the tools it called."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from typing import TYPE_CHECKING

from tttembed_rag.errors import InputError

if TYPE_CHECKING:
    from tttembed_rag.tools.search import LearnedToolSearch

_log = logging.getLogger(__name__)
# Turns that are remembered for hooks; the least recently used is forgotten.
_TURNS = 10_000


class Turn:
    """Searches and calls of one turn of an agent.

    An agent that finds nothing searches again in other words. These searches are one request, known by its first
    words, until a tool has worked; the search after that begins another request. A tool that has worked for a request
    stays a success there, also where a later call of it fails.

    Args:
        search: The search.

        task: The task key of its requests; None is the caller's `scope`.
    """

    def __init__(self, search: LearnedToolSearch, task: str | None = None) -> None:
        self._search = search
        self._task = task
        self._request: str | None = None
        self._worked: set[str] = set()

    def search(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """Names of the best tools for *query*, best first."""
        self.searched(query)
        return self._search(query, k, task=self._task, among=among)

    async def asearch(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """The same, without holding up the event loop."""
        self.searched(query)
        return await self._search.asearch(query, k, task=self._task, among=among)

    def searched(self, query: str) -> None:
        """Note that *query* was searched."""
        if query.strip() and (self._request is None or self._worked):
            self._request, self._worked = query, set()

    def used(self, tool: str, succeeded: bool = True) -> None:
        """Keep that *tool* was called, and whether it worked; a call without a search before it says nothing."""
        if self._request is None or tool in self._worked:
            return
        if succeeded:
            self._worked.add(tool)
        self._search.used(self._request, tool, succeeded, task=self._task)


class Turns:
    """The turns of many agents at once, for hooks, which never fail the agent's call.

    Args:
        search: The search.

        task: The task key of all requests; None is the caller's `scope`.
    """

    def __init__(self, search: LearnedToolSearch, task: str | None = None) -> None:
        self._search = search
        self._task = task
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._lock = Lock()

    def of(self, key: str) -> Turn:
        """The turn of a run or a session."""
        with self._lock:
            turn = self._turns.setdefault(key, Turn(self._search, self._task))
            self._turns.move_to_end(key)
            while len(self._turns) > _TURNS:
                self._turns.popitem(last=False)
            return turn

    def used(self, key: str, tool: str, *, succeeded: bool) -> None:
        """Keep an outcome in the turn of *key*; whatever is wrong with it is logged."""
        try:
            self.of(key).used(tool, succeeded)
        except InputError as exc:
            _log.debug("an outcome is not of the catalogue: %s", exc)
        except Exception:  # noqa: BLE001 - an agent's call never fails for what is learned from it
            _log.exception("an outcome was not kept")
