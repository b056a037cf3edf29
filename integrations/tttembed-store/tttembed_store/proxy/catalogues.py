"""Searches over tools for clients in any language: what they find, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from starlette.exceptions import HTTPException

from tttembed_rag.errors import InputError
from tttembed_store.proxy.callers import Caller


class Catalogues:
    """Searches over tools, each a `tttembed_tools.LearnedToolSearch`, by the names of their catalogues."""

    def __init__(self, searches: Mapping[str, Any]) -> None:
        self._searches = dict(searches)
        self._writing: dict[str, asyncio.Task[bool]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the catalogues."""
        return list(self._searches)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Learn within the block, and close the searches after it."""
        with ExitStack() as stack:
            for search in self._searches.values():
                stack.callback(search.close)
                stack.enter_context(search.learning())
            yield

    async def find(self, name: str, caller: Caller, body: Mapping[str, Any]) -> list[str]:
        """The names of the tools that are found for the *body* of a request, best first."""
        with caller.context():
            tools: list[str] = await self._search(name).asearch(
                body["query"], body.get("k", 5), among=body.get("among")
            )
            return tools

    async def used(self, caller: Caller, body: Mapping[str, Any]) -> int:
        """Keep what the *body* of a request says was called; gives of how many calls, as soon as they are kept."""
        search, calls = self._search(body["catalogue"]), body["used"]
        if unknown := sorted({call["name"] for call in calls} - set(search.names)):
            raise InputError(f"used: expected names of the catalogue {body['catalogue']!r}, got {unknown[0]!r:.80}")
        if caller.tenant and not caller.known:  # which its name would make
            raise InputError(f"X-TTT-Tenant: expected a key for calls of a tenant, got {caller.tenant!r:.80} alone")
        with caller.context():
            kept = await asyncio.to_thread(_keep, search, body["query"], calls)
        if not kept:
            raise HTTPException(503, "expected the request to be embedded, but the model is away: nothing is kept")
        if not await self._written(body["catalogue"]):
            raise HTTPException(503, "expected the calls to be written, but the store is away: they wait for it")
        return len(calls)

    async def _written(self, name: str) -> bool:
        """Whether what was kept is written: one thread waits for all who ask, in a turn that begins after they did."""
        before = self._writing.get(name)
        if before is not None:
            await asyncio.wait([before])
        if self._writing.get(name) is before:
            self._writing[name] = asyncio.create_task(asyncio.to_thread(self._searches[name].flush))
        return await asyncio.shield(self._writing[name])

    def _search(self, name: str) -> Any:
        if not self._searches:
            raise HTTPException(404, "expected a server with --catalog, got one without")
        if name not in self._searches:
            raise HTTPException(404, f"expected a catalogue ({', '.join(self._searches)}), got {name!r:.80}")
        return self._searches[name]


def _keep(search: Any, query: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Keep each tool that was called once, as one that worked where any call of it did; gives whether it is."""
    worked = dict[str, bool]()
    for call in calls:
        worked[call["name"]] = worked.get(call["name"], False) or call["succeeded"]
    return all(search.used(query, name, succeeded) for name, succeeded in worked.items())
