"""What users say of documents, as rewards that are in a store before anybody is told so."""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import Future, Task
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tttembed_rag.errors import InputError, StoreReplaced, StoreUnavailable
from tttembed_rag.proxy.callers import Caller
from tttembed_rag.proxy.openapi import SIGNALS
from tttembed_rag.rewards import DEFAULT_TASK, Event, Feedback
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.scales import Scale
from tttembed_rag.serving.following import opened
from tttembed_rag.system.background import Reached

if TYPE_CHECKING:
    from tttembed_rag.stores import Store

# In the place of a judge's fingerprint, where nothing else was said.
JUDGE = "user feedback"
# Requests that wait for the store at most, and that are written in one transaction.
_MOST, _AT_ONCE = 10_000, 200
# Seconds after which a store without tenants is asked again whether it has any.
_MOMENT = 0.2
# The reward of a pair of which nothing is known: that of a thumb that was taken back.
_UNKNOWN = 0.5


class _Said(NamedTuple):
    """What one request says of documents: its caller, its query, and for each id or text its reward."""

    caller: Caller
    query: str
    documents: Sequence[Mapping[str, Any]]
    rewards: Mapping[str, float]

    def served(self, store: Store) -> Served:
        """As a store takes it; texts without an id are known by their text."""
        shown = {_key(one): one for one in self.documents}
        candidates = [
            Candidate(one.get("id") or store.text_id(one["text"]), text=one.get("text"), reward=self.rewards[key])
            for key, one in shown.items()
        ]
        caller, query_id = self.caller, self.caller.query_id or store.text_id(self.query)
        return Served(
            query_id,
            None,
            candidates,
            self.query,
            caller.task or DEFAULT_TASK,
            caller.tenant or "",
            source=caller.source,
        )


class FeedbackWriter:
    """Writes feedback into a store; what comes while a transaction runs is written together in the next.

    Args:
        store: An open store, or its URL; it need not be reachable yet.

        judge: The name that the rewards are kept under. Under that of a judge, users speak beside it.
    """

    def __init__(self, store: Store | str, judge: str = JUDGE) -> None:
        self._reached: Reached[Store] = Reached(store, opened)
        self._judge = judge
        self._waiting: list[tuple[_Said, Future[None]]] = []
        self._writing: Task[None] | None = None
        # Whether the store has tenants, and when it was asked.
        self._has_tenants, self._asked = False, -math.inf

    async def keep(self, caller: Caller, body: Mapping[str, Any]) -> int:
        """Keep what the *body* of a request says; gives of how many documents, as soon as they are in the store.

        Raises:
            InputError: The grades are on no scale, or a name cannot be kept.
            StoreUnavailable: The store cannot be written to now, or too much waits for it.
        """
        rewards = rewards_of(body["query"], body["documents"], body.get("scale"))
        said = _Said(caller, body["query"], body["documents"], rewards)
        if len(self._waiting) >= _MOST:
            raise StoreUnavailable(f"expected at most {_MOST} requests to wait for the store, got more")
        done: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((said, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await done
        return len(rewards)

    async def _write_all(self) -> None:
        """Write until nothing waits."""
        while self._waiting:
            batch, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
            errors = await asyncio.to_thread(self._written, [said for said, _ in batch])
            for (_, done), error in zip(batch, errors, strict=True):
                if done.cancelled():  # the caller left
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
        self._writing = None

    def _written(self, batch: Sequence[_Said]) -> list[Exception | None]:
        """Write a batch in one transaction, or each by itself where one is refused; gives what is wrong with each."""
        try:
            store = self._reached.store()
            if any(one.caller.tenant is None for one in batch) and self._knows_tenants(store):
                expected = "X-TTT-Tenant: expected whose feedback this is, as the store has tenants, got none"
                rest = iter(self._written([one for one in batch if one.caller.tenant is not None]))
                return [InputError(expected) if one.caller.tenant is None else next(rest) for one in batch]
            store.observe([one.served(store) for one in batch], judge=self._judge)
        except Exception as error:  # noqa: BLE001 - whatever it is, each caller is told
            if isinstance(error, StoreReplaced):  # the next request opens the store that is there now
                self._reached.close()
                self._has_tenants = False
            if len(batch) > 1 and not isinstance(error, StoreUnavailable):
                return [self._written([one])[0] for one in batch]
            return [error] * len(batch)
        return [None] * len(batch)

    def _knows_tenants(self, store: Store) -> bool:
        """Whether the store has tenants: it will always have them then, and else is asked again a moment later."""
        if not self._has_tenants and time.monotonic() > self._asked + _MOMENT:
            self._has_tenants, self._asked = store.has_tenants(), time.monotonic()
        return self._has_tenants

    def close(self) -> None:
        """Leave the store, if it was opened here."""
        self._reached.close()


def rewards_of(query: str, documents: Sequence[Mapping[str, Any]], scale: str | None) -> dict[str, float]:
    """The reward of each document, by its id or text, as `Feedback` gathers what is said of it.

    Raises:
        InputError: Grades come without their scale or off it, or beside thumbs, clicks and successes.
    """
    events, rewards = [], {_key(one): _UNKNOWN for one in documents}
    for one in documents:
        signal = next(name for name in SIGNALS if name in one)
        value = float(one[signal])
        if signal == "grade" and scale is None:
            raise InputError("scale: expected one for grades, such as rubric:0,3, got none")
        if signal in ("grade", "score"):
            on = Scale() if signal == "score" or scale is None else Scale.parse(scale)
            value, signal = float(on.to_unit(np.array([value]))[0]), "judgment"
        if (signal, value) != ("thumb", 0.0):
            events.append(Event(query, _key(one), signal, value, one.get("position", 1)))
    given = Feedback.of(events, scale=Scale()).scores if events else {}
    return rewards | {document: reward for (_, document), reward in given.items()}


def _key(document: Mapping[str, Any]) -> str:
    return str(document.get("id") or document["text"])
