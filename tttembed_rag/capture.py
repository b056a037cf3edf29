"""From a running application to `Rewards`: which documents were shown for a query, and what a judge said of them.

Texts are what every framework hands out; vectors are not. They are found when rewards are asked for:
supplied by whoever has them, remembered by content, or embedded again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError, RewardError
from tttembed_rag.judges.cache import ScoreCache
from tttembed_rag.judges.contract import Judge
from tttembed_rag.judges.spending import Budget, Price
from tttembed_rag.judging import Observation, Plan, Verdicts, judge_all
from tttembed_rag.rewards import DEFAULT_TASK, Rewards, Scale
from tttembed_rag.serving import current_tenant
from tttembed_rag.vectors import FloatArray

__all__ = ["Known", "Log", "RewardLog", "TextVectors", "check_judge", "unit_rewards"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What a caller knows of a served query, so that nobody must find it again.

    Attributes:
        vector: Its *base* vector (d,), without any offset.

        document_vectors: (k, d), or (d,) for each of the k documents in order, None for one that is not known.

        query_id: Its id; None is the caller's ``with scope(..., query_id=...)``, else one made of its text.

        doc_ids: Ids of the documents, in order; None makes them of their texts.
    """

    vector: ArrayLike | None = None
    document_vectors: FloatArray | Sequence[ArrayLike | None] | None = None
    query_id: str | None = None
    doc_ids: Sequence[str] | None = None


@runtime_checkable
class Log(Protocol):
    """Where taps put what an application retrieves and scores: a `RewardLog`, or a `StoreLog`."""

    def check_is_for(self, judge: Judge) -> None:
        """Refuse this log where *judge* is another than its own, with an InputError that names it ``log``."""
        ...

    def observe(
        self, query: str, documents: Iterable[str], *, task: str | None = None, known: Known | None = None
    ) -> None:
        """Note that *documents* were shown for *query*; they wait for a judge."""
        ...

    def record(
        self,
        query: str,
        documents: Sequence[str],
        scores: Sequence[float | None],
        *,
        task: str | None = None,
        known: Known | None = None,
    ) -> None:
        """Keep the judge's *scores* of *documents*, on its scale; None is one it did not judge."""
        ...


class RewardLog:
    """Served queries and the verdicts of one judge on their documents, in memory, safe between threads.

    A pair of query and document is kept once per task, however often and wherever it was seen; a new
    verdict replaces the old one. Beyond *capacity* queries the oldest is dropped and counted. What is
    served to another tenant than *tenant*, by the caller's `scope`, is left out. Of what is `Known` it
    keeps the query vector.

    Args:
        judge: Fingerprint of the judge: rewards of two judges do not mix.

        scale: What its scores mean: `Scale`, or its text.

        capacity: Queries kept, >= 1.

        tenant: Whose queries are kept; empty for those without a tenant.

    Raises:
        InputError: The capacity is below 1, or there is no such scale.
    """

    def __init__(
        self, judge: str, *, scale: Scale | str = "probability", capacity: int = 10_000, tenant: str = ""
    ) -> None:
        if capacity < 1:
            raise InputError(f"capacity: expected at least 1 query, got {capacity}")
        self.judge = judge
        self.scale = Scale.parse(scale) if isinstance(scale, str) else scale
        self.tenant = tenant
        self.dropped = 0
        self._capacity = capacity
        # (task, query) to the reward of each document's text; None while it waits for a judge.
        self._served: OrderedDict[tuple[str, str], dict[str, float | None]] = OrderedDict()
        # Base vectors that callers knew.
        self._query_vectors: dict[str, NDArray[np.float64]] = {}
        self._lock = Lock()

    @classmethod
    def of(cls, judge: Judge, *, capacity: int = 10_000, tenant: str = "") -> RewardLog:
        """An empty log for the verdicts of *judge*."""
        return cls(judge.fingerprint, scale=judge.scale, capacity=capacity, tenant=tenant)

    def check_is_for(self, judge: Judge) -> None:
        """Refuse this log where *judge* is another than its own, with an InputError that names it ``log``."""
        check_judge(self.judge, judge)

    def __len__(self) -> int:
        """Served queries."""
        return len(self._served)

    @property
    def waiting(self) -> int:
        """Pairs that no judge has scored."""
        with self._lock:
            return sum(reward is None for shown in self._served.values() for reward in shown.values())

    def observe(
        self, query: str, documents: Iterable[str], *, task: str | None = None, known: Known | None = None
    ) -> None:
        """Note that *documents* were shown for *query*; they wait for a judge."""
        self._note(query, [(text, None) for text in documents], task, known)

    def record(
        self,
        query: str,
        documents: Sequence[str],
        scores: Sequence[float | None],
        *,
        task: str | None = None,
        known: Known | None = None,
    ) -> None:
        """Keep the judge's *scores* of *documents*, on its scale; None is one it did not judge.

        Raises:
            InputError: Not one score per document.
            RewardError: A score is off the scale; nothing is kept.
        """
        self._note(query, zip(documents, unit_rewards(self.scale, documents, scores), strict=True), task, known)

    def score_waiting(
        self,
        judge: Judge,
        *,
        budget: Budget | None = None,
        price: Price | None = None,
        cache: Path | None = None,
        concurrency: int = 8,
    ) -> Verdicts:
        """Ask *judge* about the pairs that wait, under a budget; outside a running event loop.

        Args:
            judge: The judge this log is for.

            budget: Caps; None for none.

            price: What its usage costs.

            cache: Where its answers are kept between runs; None forgets them.

            concurrency: Calls in flight at once.

        Raises:
            RewardError: Another judge's verdicts are in this log.
        """
        if judge.fingerprint != self.judge:
            raise RewardError(f"judge: expected {self.judge}, whose rewards are in this log, got {judge.fingerprint}")
        with self._lock:
            # Ids are plain words, texts are anything.
            ids = {query: f"q{i}" for i, query in enumerate(dict.fromkeys(query for _, query in self._served))}
            waiting = [
                Observation(ids[query], query, [(f"d{place}-{i}", text) for i, text in enumerate(unscored)], task)
                for place, ((task, query), shown) in enumerate(self._served.items())
                if (unscored := [text for text, reward in shown.items() if reward is None])
            ]
        depth = max((len(one.candidates) for one in waiting), default=1)
        plan = Plan(waiting, (depth,), budget or Budget(), price or Price())
        answers = ScoreCache.open(cache)
        try:
            verdicts = judge_all(plan, judge, answers, concurrency=concurrency)
        finally:
            answers.close()
        for one in waiting:
            judged = verdicts.rewards.get(one.query_id, {})
            self._add(one.query, [(text, judged[key]) for key, text in one.candidates if key in judged], one.task)
        return verdicts

    def rewards(
        self,
        embed_query: Callable[[str], ArrayLike],
        embed_documents: Callable[[list[str]], Sequence[ArrayLike]],
        *,
        vectors: TextVectors | None = None,
    ) -> Rewards:
        """Everything judged so far, with vectors, ready for `fit`.

        Args:
            embed_query: Text to *base* query vector (d,): the model itself, never a wrapper that adds offsets.
                Not asked for a query whose vector was known when it was served.

            embed_documents: Texts to document vectors, of the model the index was built with.

            vectors: Where document vectors are looked for first; None embeds each text once.

        Raises:
            RewardError: Nothing was judged.
        """
        with self._lock:
            judged = {
                key: known
                for key, shown in self._served.items()
                if (known := {text: reward for text, reward in shown.items() if reward is not None})
            }
            by_query: dict[str, ArrayLike] = {**self._query_vectors}
        if not judged:
            raise RewardError(f"rewards: expected a judged document, got none ({len(self)} queries wait)")
        texts = list(dict.fromkeys(text for rewards in judged.values() for text in rewards))
        row = {text: number for number, text in enumerate(texts)}
        for query in dict.fromkeys(query for _, query in judged):
            if query not in by_query:
                by_query[query] = embed_query(query)
        return Rewards.from_indexed(
            np.array([by_query[query] for _, query in judged]),
            (vectors or TextVectors()).of(texts, embed_documents),
            candidates=[[row[text] for text in rewards] for rewards in judged.values()],
            rewards=[list(rewards.values()) for rewards in judged.values()],
            tasks=[task for task, _ in judged],
            query_ids=[query for _, query in judged],
            judge=self.judge,
        )

    def _note(
        self, query: str, documents: Iterable[tuple[str, float | None]], task: str | None, known: Known | None
    ) -> None:
        if current_tenant() == self.tenant:
            self._add(query, documents, task, known)

    def _add(
        self,
        query: str,
        documents: Iterable[tuple[str, float | None]],
        task: str | None,
        known: Known | None = None,
    ) -> None:
        shown = [(text, reward) for text, reward in documents if text.strip()]
        if not query.strip() or not shown:  # has no meaning to learn from
            return
        vector = None if known is None or known.vector is None else np.array(known.vector, dtype=np.float64)
        with self._lock:
            served = self._served.setdefault((task or DEFAULT_TASK, query), {})
            for text, reward in shown:
                if reward is not None or text not in served:
                    served[text] = reward
            if vector is not None:
                self._query_vectors[query] = vector
            while len(self._served) > self._capacity:
                (_, forgotten), _ = self._served.popitem(last=False)
                self._query_vectors.pop(forgotten, None)
                self.dropped += 1


def check_judge(mine: str, judge: Judge) -> None:
    """Refuse a log for the judge of fingerprint *mine* where *judge* is another."""
    if judge.fingerprint != mine:
        raise InputError(f"log: expected one for {judge.fingerprint}, got one for {mine}")


def unit_rewards(scale: Scale, documents: Sequence[str], scores: Sequence[float | None]) -> list[float | None]:
    """A reward in [0, 1] for each score on *scale*, None where there is none.

    Raises:
        InputError: Not one score per document.
        RewardError: A score is off the scale.
    """
    if len(scores) != len(documents):
        raise InputError(f"scores: expected one per document, {len(documents)}, got {len(scores)}")
    known = [place for place, score in enumerate(scores) if score is not None]
    rewards: list[float | None] = [None] * len(scores)
    found = scale.to_unit(np.array([scores[place] for place in known], dtype=np.float64))
    for place, reward in zip(known, found.tolist(), strict=True):
        rewards[place] = reward
    return rewards


class TextVectors:
    """Document vectors by text: supplied where possible, else remembered by content, else embedded.

    One for each embedding model.

    Args:
        known: Text to its vector in the store, or None where it has none.

        stored: Ids to the vectors that a store has under them, asked once for all texts whose id was
            noted; what it lacks is embedded, and where it fails that is logged and all are.

        capacity: Vectors remembered, and ids, the least recently used forgotten first.

    Attributes:
        supplied: Vectors that *known* or *stored* gave.

        remembered: Vectors found by content.

        embedded: Vectors that had to be embedded again.
    """

    def __init__(
        self,
        known: Callable[[str], ArrayLike | None] | None = None,
        *,
        stored: Callable[[list[str]], Mapping[str, ArrayLike]] | None = None,
        capacity: int = 20_000,
    ) -> None:
        self.supplied = self.remembered = self.embedded = 0
        self._known = known
        self._stored = stored
        self._capacity = capacity
        self._kept: OrderedDict[bytes, NDArray[np.float64]] = OrderedDict()
        self._ids: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Callable[[], TextVectors], tuple[()]]:
        """What another process starts with: the same sources, nothing remembered."""
        return partial(TextVectors, self._known, stored=self._stored, capacity=self._capacity), ()

    def note(self, ids: Iterable[tuple[str, str | None]]) -> None:
        """Remember under which id the store has a text, of (text, id) pairs; None says nothing."""
        if self._stored is None:
            return
        addresses = [(_address(text), key) for text, key in ids if key is not None]
        with self._lock:
            for address, key in addresses:
                self._ids[address] = key
                self._ids.move_to_end(address)
            while len(self._ids) > self._capacity:
                self._ids.popitem(last=False)

    def of(
        self, texts: Sequence[str], embed_documents: Callable[[list[str]], Sequence[ArrayLike]]
    ) -> NDArray[np.float64]:
        """Vectors (n, d) of *texts*, in order; *embed_documents* is asked for the missing ones at once."""
        found, missing = self._found(texts)
        return self._joined(texts, found, missing, embed_documents(missing) if missing else [])

    async def aof(
        self, texts: Sequence[str], aembed_documents: Callable[[list[str]], Awaitable[Sequence[ArrayLike]]]
    ) -> NDArray[np.float64]:
        """The same with an async model."""
        # A store may be far away, and its lookup blocks.
        found, missing = await asyncio.to_thread(self._found, texts) if self._stored else self._found(texts)
        return self._joined(texts, found, missing, await aembed_documents(missing) if missing else [])

    def _found(self, texts: Sequence[str]) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
        found = self._from_store(texts)
        for text in dict.fromkeys(texts):
            if text in found:
                continue
            supplied = self._known(text) if self._known else None
            if supplied is not None:
                found[text] = np.asarray(supplied, dtype=np.float64)
                self.supplied += 1
                continue
            with self._lock:
                if (kept := self._kept.get(_address(text))) is not None:
                    self._kept.move_to_end(_address(text))
                    found[text] = kept
                    self.remembered += 1
        return found, [text for text in dict.fromkeys(texts) if text not in found]

    def _from_store(self, texts: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        if self._stored is None:
            return {}
        with self._lock:
            ids = {text: self._ids[address] for text in texts if (address := _address(text)) in self._ids}
        try:
            vectors = self._stored(list(set(ids.values()))) if ids else {}
            found = {text: np.asarray(vectors[key], dtype=np.float64) for text, key in ids.items() if key in vectors}
        except Exception:  # noqa: BLE001 - a store may raise anything, and its vectors only save time
            _log.exception("the store gave no vectors: %d documents are embedded", len(ids))
            return {}
        self.supplied += len(found)
        return found

    def _joined(
        self,
        texts: Sequence[str],
        found: dict[str, NDArray[np.float64]],
        missing: list[str],
        embedded: Sequence[ArrayLike],
    ) -> NDArray[np.float64]:
        if len(embedded) != len(missing):
            raise InputError(f"embed_documents: expected one vector per text, {len(missing)}, got {len(embedded)}")
        fresh = {text: np.asarray(vector, dtype=np.float64) for text, vector in zip(missing, embedded, strict=True)}
        with self._lock:
            self.embedded += len(fresh)
            self._kept |= {_address(text): vector for text, vector in fresh.items()}
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        _log.info("vectors of %d documents: %d had to be embedded", len(texts), len(fresh))
        found = found | fresh
        return np.array([found[text] for text in texts])


def _address(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
