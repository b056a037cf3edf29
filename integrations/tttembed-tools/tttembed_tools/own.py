"""What helped a source comes first where the same source asks the same again, and nowhere else: nobody confirms it."""

from __future__ import annotations

import logging
import time
from threading import Lock
from typing import TypeAlias

import numpy as np
from cachetools import TTLCache

from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.copies import NEAR
from tttembed_tools.outcomes import HELPED, Outcomes

_log = logging.getLogger(__name__)
# Sources whose outcomes are at hand, the outcomes of each, and the seconds after which they are read again: what was
# forgotten elsewhere is forgotten here by then.
_SOURCES, _LAST, _SECONDS = 2000, 500, 10.0
# By task and text of a request, its vector and the rewards of items by the keys of their cards.
_Own: TypeAlias = dict[tuple[str, str], tuple[FloatArray, dict[str, float]]]


class OwnOutcomes:
    """The last outcomes of each source, from the store and at once from this process."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._known: TTLCache[tuple[str | None, str], _Own | None] = TTLCache(_SOURCES, _SECONDS)
        self._lock = Lock()
        self._again = 0.0  # when the store is asked again

    def note(self, query: str, vector: FloatArray, key: str, reward: float, *, task: str, source: str) -> None:
        """Know an outcome before it is written."""
        if source and (own := self._of(source)) is not None:
            with self._lock:
                own.setdefault((task, query), (vector, {}))[1][key] = reward
                self._known[self._outcomes.tenant, source] = own

    def helped(self, query: str, vector: FloatArray | None, *, task: str, source: str) -> list[str]:
        """The keys of the items that helped *source* with the same text, else with the nearest copy of it."""
        if not source or not (own := self._of(source)):
            return []
        with self._lock:
            rewards = own[task, query][1] if (task, query) in own else {}
            others = [(other, rewards) for (of_task, _), (other, rewards) in own.items() if of_task == task]
            if not rewards and others and vector is not None:
                near = np.stack([other for other, _ in others]) @ vector / np.linalg.norm(vector)
                near /= np.linalg.norm([other for other, _ in others], axis=1)
                rewards = others[int(near.argmax())][1] if near.max() > NEAR else {}
            return [key for key, reward in rewards.items() if reward >= HELPED]

    def forget(self) -> None:
        """Know nothing until it is read again."""
        with self._lock:
            self._known.clear()

    def _of(self, source: str) -> _Own | None:
        """What is known of a source of the caller's tenant; None where nobody says which of several tenants it is."""
        tenant = self._outcomes.tenant
        with self._lock:
            if (tenant, source) in self._known:
                return self._known[tenant, source]
        own: _Own | None = {}
        if time.monotonic() >= self._again:
            try:
                own = self._read(tenant, source)
            except StoreUnavailable as exc:
                self._again = time.monotonic() + _SECONDS  # a search waits for no store that is away
                _log.warning("what helped sources is not known: %s", exc)
        with self._lock:
            return self._known.setdefault((tenant, source), own)

    def _read(self, tenant: str | None, source: str) -> _Own | None:
        if tenant is None and self._outcomes.store.has_tenants():
            return None
        own: _Own = {}
        for task, query, vector, key, reward in self._outcomes.of_source(tenant or "", source, _LAST):
            own.setdefault((task, query), (vector, {}))[1][key] = reward
        return own
