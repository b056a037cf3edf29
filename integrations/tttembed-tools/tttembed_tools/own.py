"""What helped a source comes first where the same source asks the same again, and nowhere else: nobody confirms it."""

from __future__ import annotations

import logging
import time
from threading import Lock
from typing import TypeAlias

import numpy as np
from cachetools import TTLCache
from tttembed_store.sql.records import ANONYMOUS, TOOL_CALLS

from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.serving.context import current_tenant
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.copies import NEAR, TYPICAL
from tttembed_tools.outcomes import HELPED, Outcomes

_log = logging.getLogger(__name__)
# Sources whose outcomes are at hand, items that helped each at most, and the seconds after which they are read again:
# what was forgotten elsewhere is forgotten here by then.
_SOURCES, _LAST, _SECONDS = 2000, 500, 10.0
# By task and text of a request, its vector and the rewards of items by the keys of their cards.
_Own: TypeAlias = dict[tuple[str, str], tuple[FloatArray, dict[str, float]]]


class OwnOutcomes:
    """The last outcomes of each source of the caller's tenant, from the store and at once from this process."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes, self._lock = outcomes, Lock()
        self._known: TTLCache[tuple[str, str], _Own] = TTLCache(_SOURCES, _SECONDS)
        self._again = 0.0  # when a store that was away is asked again: a search does not wait for it

    def note(self, query: str, vector: FloatArray, key: str, reward: float, *, task: str, source: str) -> None:
        """Know an outcome before it is written."""
        own = self._of(source)
        with self._lock:
            own.setdefault((task, query), (vector, {}))[1][key] = reward

    def helped(self, query: str, vector: FloatArray | None, middle: FloatArray, *, task: str, source: str) -> list[str]:
        """The keys of the items that helped *source* with the same text, else with the nearest copy of it.

        A copy is so near as is little beside the distance of the request from all items, whose *middle* is (d,).
        """
        own = self._of(source)
        with self._lock:
            found = own.get((task, query))
            others = [] if found else [known for place, known in own.items() if place[0] == task]
            if others and vector is not None:
                vectors = np.stack([other for other, _ in others])
                unit = vector / np.linalg.norm(vector)
                near, spread = vectors @ unit / np.linalg.norm(vectors, axis=1), (1 - middle @ unit) / TYPICAL
                found = others[int(near.argmax())] if near.max() > 1 - NEAR * spread else None
            return [key for key, reward in found[1].items() if reward >= HELPED] if found else []

    def forget(self) -> None:
        """Know nothing until it is read again."""
        with self._lock:
            self._known.clear()

    def _of(self, source: str) -> _Own:
        """What is known of a source; nothing of callers whom nobody named, who may be many."""
        own: _Own = {}
        place = current_tenant(), source
        if source in ("", ANONYMOUS):
            return own
        with self._lock:
            if place in self._known:
                return self._known[place]
        if time.monotonic() >= self._again:
            try:
                read, embedder = self._outcomes.store.history.of_source, self._outcomes.embedder
                rows = read(*place, embedder, TOOL_CALLS, least=HELPED, limit=_LAST)
                for task, query, vector, key, reward in rows:
                    own.setdefault((task, query), (vector, {}))[1][key] = reward
            except StoreUnavailable as exc:
                self._again = time.monotonic() + _SECONDS
                _log.warning("what helped sources is not known: %s", exc)
        with self._lock:
            return self._known.setdefault(place, own)
