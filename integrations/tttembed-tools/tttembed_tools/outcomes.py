"""What was asked and which items were used for it, in a store: of many processes, or in the memory of this one.

What helped a source comes first where the same source asks the same again, and nowhere else: nobody confirms it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from cachetools import TTLCache
from tttembed_store.capture.storelog import StoreLog
from tttembed_store.following import follow
from tttembed_store.sql.records import ANONYMOUS, TOOL_CALLS

from tttembed_rag.errors import InputError, StoreUnavailable
from tttembed_rag.serving.context import context_value, current_tenant
from tttembed_rag.serving.log import Known
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.copies import NEAR, TYPICAL
from tttembed_tools.catalog import Card

if TYPE_CHECKING:
    from tttembed_store.sql import Store

_log = logging.getLogger(__name__)
# The reward from which on an item helped.
HELPED = 0.5
# Requests of all tenants that are kept in the memory of a process, unless more of one are read, and after how many new
# ones they are counted.
_MOST, _COUNTED = 10_000, 1000
# Items of one request that are read.
_DEPTH = 200
# Seconds that a caller waits at most until its outcomes are written.
_WRITTEN = 5.0
# Sources whose outcomes are at hand, items that helped each at most, and the seconds after which they are read again:
# what was forgotten elsewhere is forgotten here by then.
_SOURCES, _LAST, _SECONDS = 2000, 500, 10.0
# By task and text of a request, its vector and the rewards of items by the keys of their cards.
_Own: TypeAlias = dict[tuple[str, str], tuple[FloatArray, dict[str, float]]]


@dataclass(frozen=True, slots=True, eq=False)
class PastRequest:
    """A request for which items were used.

    Attributes:
        query_id: Its id, unique within its task.
        query: Its text.
        vector: Its base vector (d,).
        task: Its task key.
        outcomes: Rewards of items by the keys of their cards.
        shown: The keys of the other items that were listed for it, in their order.
        source: Who used them; several sources may use items for the same request.
    """

    query_id: str
    query: str
    vector: FloatArray
    task: str
    outcomes: Mapping[str, float]
    shown: tuple[str, ...] = ()
    source: str = ""

    @property
    def helped(self) -> list[str]:
        """The keys of the items that helped."""
        return [key for key, reward in self.outcomes.items() if reward >= HELPED]


class Outcomes:
    """Outcomes, which are written to a store from the background, and what is published there, followed.

    Args:
        store: An open store, or its URL; None is one in the memory of this process.
        embedder: Fingerprint of the embedding model.
        last: Requests of a tenant that are read, the last ones of each source.

    Raises:
        StoreError: The store cannot be opened.
        InputError: It keeps no texts, which BM25 reads.
    """

    def __init__(self, store: Store | str | None, embedder: str, last: int) -> None:
        from tttembed_store.sql import memory_store, open_store

        self.shared, self._new = store is not None, count(1)
        self._is_own = store is None or isinstance(store, str)
        self.store = memory_store() if store is None else open_store(store) if isinstance(store, str) else store
        if not self.store.texts:
            raise InputError("store: expected one that keeps texts, which BM25 reads, got one without texts")
        self.embedder, self.last = embedder, last
        self._log = StoreLog(self.store, TOOL_CALLS, embedder=embedder)
        self.live = follow(self.store, embedder=embedder)
        self._lock = Lock()
        # By tenant and source, its last outcomes: from the store, and at once from this process.
        self._own: TTLCache[tuple[str, str], _Own] = TTLCache(_SOURCES, _SECONDS)
        self._again = 0.0  # when a store that was away is asked again: a search does not wait for it

    def note(
        self, query: str, cards: list[Card], reward: float, known: Known, task: str, source: str, at: float
    ) -> None:
        """Keep the *reward* of the first of the *cards* that were listed for a request; it is written soon.

        Without a tenant it is the shared one's, unless a store of many processes has tenants: then nobody knows whose
        it is, and it is left out.
        """
        tenant = context_value("tenant") if self.shared else current_tenant()
        rewards = [reward, *[None] * (len(cards) - 1)]
        texts = [card.text for card in cards]
        self._log.put(query, texts, rewards, known, tenant=tenant, task=task, source=source, at=at)
        own = self._of(source)
        with self._lock:
            own.setdefault((task, query), (np.asarray(known.vector), {}))[1][cards[0].key] = reward
        if not self.shared and next(self._new) % _COUNTED == 0:
            self.store.keep_newest(max(_MOST, self.last))

    def requests(self, tenant: str, width: int) -> list[PastRequest]:
        """The last requests of a tenant with vectors (width,), newest first.

        Raises:
            StoreUnavailable: The store cannot be read now.
        """
        served = self.store.history.recent(
            tenant, width=width, embedder=self.embedder, judge=TOOL_CALLS, limit=self.last, depth=_DEPTH, by_source=True
        )
        return [
            PastRequest(past.query_id, past.query, past.vector, past.task, outcomes, shown, past.source)
            for past in served
            for shown in [tuple(item.doc_id for item in past.candidates if item.reward is None)]
            if past.vector is not None
            and past.query
            and (outcomes := {item.doc_id: item.reward for item in past.candidates if item.reward is not None})
        ]

    def helped(self, query: str, vector: FloatArray | None, middle: FloatArray, *, task: str, source: str) -> list[str]:
        """The keys of the items that helped *source* with the same text, else with the nearest copy of it.

        A copy is so near as is little beside the distance of the request from all items, whose *middle* is (d,).
        """
        own = self._of(source)
        with self._lock:
            known = own.get((task, query))
            others = [] if known else [outcomes for place, outcomes in own.items() if place[0] == task]
            if others and vector is not None:
                vectors = np.stack([other for other, _ in others])
                unit = vector / np.linalg.norm(vector)
                near, spread = vectors @ unit / np.linalg.norm(vectors, axis=1), (1 - middle @ unit) / TYPICAL
                known = others[int(near.argmax())] if near.max() > 1 - NEAR * spread else None
            return [key for key, reward in known[1].items() if reward >= HELPED] if known else []

    def _of(self, source: str) -> _Own:
        """What is known of a source; nothing of callers whom nobody named, who may be many."""
        own: _Own = {}
        place = current_tenant(), source
        if source in ("", ANONYMOUS):
            return own
        with self._lock:
            if place in self._own:
                return self._own[place]
        if time.monotonic() >= self._again:
            try:
                rows = self.store.history.of_source(*place, self.embedder, TOOL_CALLS, least=HELPED, limit=_LAST)
                for task, query, vector, key, reward in rows:
                    own.setdefault((task, query), (vector, {}))[1][key] = reward
            except StoreUnavailable as exc:
                self._again = time.monotonic() + _SECONDS
                _log.warning("what helped sources is not known: %s", exc)
        with self._lock:
            return self._own.setdefault(place, own)

    def alone(self, tenant: str, requests: Sequence[PastRequest]) -> bool:
        """Whether *requests* are of one named source, and nobody else is served what they teach *tenant*."""
        names = {request.source for request in requests}
        return len(names) == 1 and not names & {"", ANONYMOUS} and bool(tenant or not self.store.has_tenants())

    def forget(self, tenant: str, keys: Collection[str]) -> Collection[str]:
        """Forget items of a tenant, on disk too, and where one was used all that was learned; gives the known ones."""
        self._log.flush()
        known = self.store.history.document_arrivals(tenant, list(keys))
        self.store.forget(tenant=tenant, document_id=keys, by="search")
        with self._lock:
            self._own.clear()
        self.look(tenant)
        return known

    def look(self, tenant: str) -> None:
        """Serve a tenant what is published now, and do not wait for the next look at the store."""
        follow(self.store, tenants=[tenant], embedder=self.embedder)

    def flush(self) -> bool:
        """Write what waits; gives whether all of it is written."""
        return self._log.flush(_WRITTEN)

    def close(self) -> None:
        """Write what waits, and end."""
        self._log.close()
        self.live.close()
        if self._is_own:
            self.store.close()
