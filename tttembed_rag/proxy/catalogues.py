"""Searches over tools for clients in any language: what they find, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tttembed_rag.errors import InputError
from tttembed_rag.proxy.bodies import Refused
from tttembed_rag.proxy.callers import Caller
from tttembed_rag.serving.context import context

if TYPE_CHECKING:
    from tttembed_rag.search import LearnedToolSearch


class Catalogues:
    """Searches over tools by the names of their catalogues; they learn while they are open, and are closed after."""

    def __init__(self, searches: Mapping[str, LearnedToolSearch]) -> None:
        self._searches = dict(searches)
        self._open = ExitStack()

    def __enter__(self) -> None:
        for search in self._searches.values():
            self._open.callback(search.close)
            self._open.enter_context(search.learning())

    def __exit__(self, *_: object) -> None:
        self._open.close()

    async def find(self, name: str, caller: Caller, body: Mapping[str, Any]) -> list[str]:
        """The names of the tools that are found for the *body* of a request, best first."""
        with _of(caller):
            return await self._search(name).asearch(body["query"], body.get("k", 5), among=body.get("among"))

    async def used(self, caller: Caller, body: Mapping[str, Any]) -> int:
        """Keep what the *body* of a request says was called; gives of how many calls, as soon as they are kept.

        Raises:
            InputError: A tool is not in the catalogue; nothing is kept.
        """
        search, calls = self._search(body["catalogue"]), body["used"]
        if unknown := sorted({call["name"] for call in calls} - set(search.names)):
            raise InputError(f"used: expected names of the catalogue {body['catalogue']!r}, got {unknown[0]!r:.80}")
        with _of(caller):
            await asyncio.to_thread(_keep, search, body["query"], calls)
        return len(calls)

    def _search(self, name: str) -> LearnedToolSearch:
        if name not in self._searches:
            raise Refused(404, f"expected a catalogue ({', '.join(self._searches)}), got {name!r:.80}")
        return self._searches[name]


def _keep(search: LearnedToolSearch, query: str, calls: Sequence[Mapping[str, Any]]) -> None:
    for call in calls:
        search.used(query, call["name"], call["succeeded"])
    if not search.flush():
        raise Refused(503, "expected the calls to be written at once, but the store is away: they wait for it")


def _of(caller: Caller) -> context:
    return context(task=caller.task, tenant=caller.tenant or "", source=caller.source)
