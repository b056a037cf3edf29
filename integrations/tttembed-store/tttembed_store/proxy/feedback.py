"""What users say of documents, as rewards that are in a store before anybody is told so."""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import Future, Task
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from tttembed_rag.errors import InputError, StoreReplaced, StoreUnavailable
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.events import Event, scores_of, value_of
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.rewards.scales import Scale
from tttembed_store.following.reached import Reached
from tttembed_store.proxy.callers import Caller
from tttembed_store.proxy.openapi import VOTES

if TYPE_CHECKING:
    from tttembed_store.sql import Store

# In the place of a judge's fingerprint, where nothing else was said.
JUDGE = "user feedback"
# Bytes of requests that wait for the store at most, and those of each beside its body.
_MOST_BYTES, _BESIDE = 64 * 2**20, 1000
# Requests that are written in one transaction.
_AT_ONCE = 200
# Seconds after which a store is asked again which tenants it has.
_MOMENT = 0.2


class FeedbackWriter:
    """Writes feedback into a store, which need not be reachable yet, as rewards of *judge*: with a judge, beside it.

    What comes while a transaction runs is written together in the next.
    """

    def __init__(self, store: Store | str, judge: str = JUDGE) -> None:
        if not judge:
            raise InputError("judge: expected a name to keep feedback under, got an empty one")
        self._reached = Reached(store, "store of feedback", records=True)
        self._judge = judge
        # Requests that wait: who asks, what is written, its bytes, and who waits for how much of it is kept.
        self._waiting: list[tuple[Caller, Served, int, Future[int]]] = []
        self._bytes = 0  # of all of them
        self._writing: Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "tttembed-feedback")
        # The tenants of the store, and when it was asked.
        self._tenants, self._asked = {""}, -math.inf

    async def keep(self, caller: Caller, body: Mapping[str, Any]) -> int:
        """Keep what the *body* of a request says; gives of how many documents it is, once it is in the store."""
        served, size = served_of(caller, body), _BESIDE + len(orjson.dumps(body))
        if self._bytes + size > _MOST_BYTES:
            raise StoreUnavailable(f"expected at most {_MOST_BYTES} bytes to wait for the store, got more")
        self._bytes += size
        kept: Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((caller, served, size, kept))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await kept

    async def _write_all(self) -> None:
        """Write until nothing waits."""
        while self._waiting:
            batch, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
            feedback = [(caller, served) for caller, served, _, _ in batch]
            outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._written, feedback)
            self._bytes -= sum(size for _, _, size, _ in batch)
            for (*_, kept), outcome in zip(batch, outcomes, strict=True):
                if kept.cancelled():  # the caller left
                    continue
                if isinstance(outcome, int):
                    kept.set_result(outcome)
                else:
                    kept.set_exception(outcome)
        self._writing = None

    def _written(self, batch: Sequence[tuple[Caller, Served]]) -> list[Exception | int]:
        """Write a batch in one transaction, or each by itself where one is refused; gives what is kept, or is wrong."""
        try:
            store = self._reached.store()
            refused = [self._refusal(store, caller) for caller, _ in batch]
            accepted = [served for (_, served), error in zip(batch, refused, strict=True) if error is None]
            kept = iter(store.feedback(accepted, judge=self._judge))
        except Exception as error:  # noqa: BLE001 - whatever it is, each caller is told
            if isinstance(error, StoreReplaced):  # the next request opens the store that is there now
                self._reached.close()
                self._tenants = {""}
            if len(batch) > 1 and not isinstance(error, StoreUnavailable):
                return [self._written([feedback])[0] for feedback in batch]
            return [error] * len(batch)
        return [next(kept) if error is None else error for error in refused]

    def _refusal(self, store: Store, caller: Caller) -> Exception | None:
        """Why feedback of *caller* is refused: without a key, it must name a tenant of the store, if that has any."""
        if not caller.known and caller.tenant not in self._tenants and time.monotonic() > self._asked + _MOMENT:
            self._tenants, self._asked = {"", *store.tenants()}, time.monotonic()
        if caller.known or caller.tenant in self._tenants or (caller.tenant is None and len(self._tenants) == 1):
            return None
        got = "none" if caller.tenant is None else f"{caller.tenant!r:.80}"
        return InputError(f"X-TTT-Tenant: expected whose feedback this is, a tenant of the store, got {got}")

    def close(self) -> None:
        """Leave the store, if it was opened here."""
        self._thread.shutdown()
        self._reached.close()


def served_of(caller: Caller, body: Mapping[str, Any]) -> Served:
    """The query of a request with the documents that it is about, each once; a store makes the ids that are missing."""
    documents = {_key(document): document for document in body["documents"]}
    rewards = rewards_of(body["query"], body["documents"], body.get("scale"))
    active = {_key(document) for document in body["documents"] if value_of("click", document.get("click", 1))}
    candidates = [
        Candidate(document.get("id", ""), None, document.get("text", ""), rewards[key], key not in active)
        for key, document in documents.items()
    ]
    task, tenant = caller.task or DEFAULT_TASK, caller.tenant or ""
    return Served(caller.query_id or "", None, candidates, body["query"], task, tenant, source=caller.source)


def rewards_of(query: str, documents: Sequence[Mapping[str, Any]], scale: str | None) -> dict[str, float]:
    """The reward of each document, by its id, or by a NUL and its text, as those of one source."""
    events = []
    for document in documents:
        signal = next(name for name in VOTES if name in document)
        value = value_of(signal, document[signal])
        if signal == "grade" and scale is None:
            raise InputError("scale: expected one for grades, such as rubric:0,3, got none")
        if signal in ("grade", "score"):
            declared = Scale() if signal == "score" or scale is None else Scale.parse(scale)
            value, signal = float(declared.to_unit(np.array([value]))[0]), "judgment"
        events.append(Event(query, _key(document), signal, value, document.get("position", 1), source="who asks"))
    return {document: reward for (_, document), reward in scores_of(events).items()}


def _key(document: Mapping[str, Any]) -> str:
    return str(document["id"]) if "id" in document else f"\0{document['text']}"  # no id holds a NUL
