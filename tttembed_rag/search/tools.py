"""`LearnedToolSearch`: the learned search over an agent's tools, and a `Turn` of the agent."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from tttembed_rag.search.catalog import Card, cards_of
from tttembed_rag.search.learned import LearnedSearch


class LearnedToolSearch(LearnedSearch):
    """Finds the tools for a request among many, and learns from which of them worked.

    It is a `LearnedSearch` over a catalogue of tools in any shape that `cards_of` takes, which all tenants share.
    """

    _kind = "tools"

    def _cards(self, items: Any) -> list[Card]:
        return cards_of(items)

    def turn(self, task: str | None = None) -> Turn:
        """One turn of an agent: searches that repeat a request in other words join it."""
        return Turn(self, task)


class Turn:
    """Searches and calls of one turn of an agent.

    An agent that finds nothing searches again in other words. These searches are one request, known by its first
    words, until a tool has worked; a search in other words after that begins another request. A call of a tool that
    the searches of the request did not list says nothing. A tool that has worked for a request stays a success there,
    also where a later call of it fails.

    Args:
        search: The search.
        task: The task key of its requests; None is the caller's `context`.
    """

    def __init__(self, search: LearnedToolSearch, task: str | None = None) -> None:
        self._search = search
        self._task = task
        self._request, self._at = "", 0.0  # its first words, and when they were searched last
        self._listed: set[str] = set()
        self._worked: set[str] = set()

    def search(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """Names of the best tools for *query*, best first."""
        return self.note(query, self._search(query, k, task=self._task, among=among))

    async def asearch(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """The same, without holding up the event loop."""
        return self.note(query, await self._search.asearch(query, k, task=self._task, among=among))

    def note(self, query: str, names: list[str]) -> list[str]:
        """Note that *names* were listed for *query*, and give them back."""
        if not self._request or (self._worked and query != self._request):
            self._request, self._listed, self._worked = query, set(), set()
        if query == self._request:
            self._at = time.time()
        self._listed.update(names)
        return names

    def listed(self, tool: str) -> bool:
        """Whether the searches of the present request listed a tool."""
        return tool in self._listed

    def used(self, tool: str, succeeded: bool = True) -> None:
        """Keep that *tool* was called, and whether it worked."""
        if tool not in self._listed or tool in self._worked:
            return
        if succeeded:
            self._worked.add(tool)
        self._search.used(self._request, tool, succeeded, task=self._task, at=self._at)
