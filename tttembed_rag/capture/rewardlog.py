"""From a running application to `Rewards`: which documents were shown for a query, and how a judge scored them.

Every framework hands out texts, but not vectors. Vectors are found when rewards are asked for: supplied by the store
that has them, remembered by content, or embedded again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.errors import InputError, RewardError, TTTEmbedError, check_count
from tttembed_rag.judges.contract import Judge, checked_judge
from tttembed_rag.judging.cache import ScoreCache
from tttembed_rag.judging.plan import Plan, Progress, Verdicts
from tttembed_rag.judging.running import judge_all
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.observations import MAX_SOURCES, Candidate, Served
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.context import current_tenant
from tttembed_rag.serving.log import Known, Log, list_of, unit_rewards
from tttembed_rag.vectors.checks import FloatArray


class RewardLog(Log):
    """Served queries and the rewards of one judge for their documents, in memory, safe between threads.

    A pair of query and document is kept once per task, however often and wherever it was seen; a new reward replaces
    that of the same source, and those of the last 32 sources are kept side by side. Beyond *capacity* queries the
    oldest is dropped and counted. Queries served to another tenant than *tenant*, by the caller's `context`, are left
    out. Of what is `Known` the log keeps the query vector.

    Args:
        judge: Fingerprint of the judge: rewards of two judges do not mix.
        scale: What the judge's scores mean: `Scale`, or its text.
        capacity: Queries kept, >= 1.
        tenant: The tenant of the queries that are kept; empty for queries without a tenant.
        trusted: As the attribute; taps that record the order that is served set it to True where it is None.

    Attributes:
        dropped: Queries beyond the capacity that were dropped.
        dropped_rewards: Rewards of sources that were dropped, as later sources came.

    Raises:
        InputError: The capacity is below 1, or there is no such scale.
    """

    def __init__(
        self,
        judge: str,
        *,
        scale: Scale | str = "probability",
        capacity: int = 10_000,
        tenant: str = "",
        trusted: bool | None = None,
    ) -> None:
        check_count("capacity", capacity)
        if not isinstance(judge, str):
            raise InputError(f"judge: expected the fingerprint of one (see RewardLog.of), got {type(judge).__name__}")
        self.judge = judge
        self.scale = Scale.parse(scale)
        self.tenant, self.trusted = tenant, trusted
        self.dropped, self.dropped_rewards = 0, 0
        self._capacity = capacity
        # Why scores of a request were not kept, the last time.
        self._refused = ""
        # (task, query) to each document's text with its rewards by source; none while it waits for a judge.
        self._served: OrderedDict[tuple[str, str], dict[str, dict[str, float]]] = OrderedDict()
        # Base vectors that callers knew.
        self._query_vectors: dict[str, FloatArray] = {}
        self._lock = Lock()

    @classmethod
    def of(cls, judge: Judge, *, capacity: int = 10_000, tenant: str = "") -> RewardLog:
        """An empty log for the scores of *judge*."""
        return cls(checked_judge(judge).fingerprint, scale=judge.scale, capacity=capacity, tenant=tenant)

    def __len__(self) -> int:
        """Served queries."""
        return len(self._served)

    @property
    def waiting(self) -> int:
        """Pairs that no judge has scored."""
        with self._lock:
            return sum(not rewards for shown in self._served.values() for rewards in shown.values())

    def note(
        self,
        query: str,
        documents: Iterable[str],
        scores: Sequence[float | None] | None,
        *,
        task: str | None,
        known: Known | None,
        source: str,
    ) -> None:
        """Keep one call, unless it was served to another tenant."""
        texts = list_of(documents)
        try:
            rewards = [None] * len(texts) if scores is None else unit_rewards(self.scale, texts, scores)
        except TTTEmbedError as error:
            self._refused = f"; scores were refused: {error}"
            raise
        if current_tenant() == self.tenant:
            candidates = [Candidate("", None, text, reward) for text, reward in zip(texts, rewards, strict=True)]
            vector = None if known is None or known.vector is None else np.array(known.vector, dtype=np.float64)
            self.add(Served("", vector, candidates, query, task or DEFAULT_TASK, source=source))

    def score_waiting(
        self,
        judge: Judge,
        *,
        budget: Budget | None = None,
        price: Price | None = None,
        watch: Callable[[Progress], None] | None = None,
    ) -> Verdicts:
        """Ask *judge* about the pairs that wait, under a budget; outside a running event loop.

        Args:
            judge: The judge this log is for.
            budget: Caps; None for none.
            price: What the judge's usage costs.
            watch: Called with the progress after every answer.

        Raises:
            RewardError: This log is for another judge.
        """
        if checked_judge(judge).fingerprint != self.judge:
            raise RewardError(f"judge: expected {self.judge}, whose rewards are in this log, got {judge.fingerprint}")
        with self._lock:
            # Ids are plain words, texts are anything.
            ids = {query: f"q{i}" for i, query in enumerate(dict.fromkeys(query for _, query in self._served))}
            waiting = [
                Served.of_texts(ids[query], query, [(f"d{place}-{i}", text) for i, text in enumerate(unscored)], task)
                for place, ((task, query), shown) in enumerate(self._served.items())
                if (unscored := [text for text, rewards in shown.items() if not rewards])
            ]
        depth = max((len(served.candidates) for served in waiting), default=1)
        plan = Plan(waiting, (depth,), budget or Budget(), price or Price())
        with closing(ScoreCache.open(None)) as answers:
            verdicts = judge_all(plan, judge, answers, watch=watch)
        for served in waiting:
            judged = verdicts.rewards.get(served.query_id, {})
            rewarded = [item for item in served.candidates if item.doc_id in judged]
            candidates = [replace(item, reward=judged[item.doc_id]) for item in rewarded]
            self.add(replace(served, candidates=candidates))
        return verdicts

    def rows(self) -> list[tuple[str, str, float, str, str]]:
        """(query, document, reward in [0, 1], task, source) of every pair that was judged."""
        with self._lock:
            return [
                (query, text, reward, task, source)
                for (task, query), shown in self._served.items()
                for text, rewards in shown.items()
                for source, reward in rewards.items()
            ]

    def rewards(
        self,
        embed_query: Callable[[str], ArrayLike],
        embed_documents: Callable[[list[str]], Sequence[ArrayLike]],
        *,
        vectors: TextVectors | None = None,
        embedder: str = "",
    ) -> Rewards:
        """Everything judged so far, with vectors, ready for `fit`.

        Args:
            embed_query: Text to *base* query vector (d,): the model itself, never a wrapper that adds offsets.
                Not asked for a query with a vector that was known when it was served.
            embed_documents: Texts to document vectors, of the model the index was built with.
            vectors: Where document vectors are looked for first; None embeds each text once.
            embedder: Name of the embedding model: offsets carry it, and serve no other.

        Raises:
            RewardError: Nothing was judged.
        """
        rows = self.rows()
        with self._lock:
            known: dict[str, ArrayLike] = {**self._query_vectors}
        if not rows:
            raise RewardError(
                f"rewards: expected a judged document, got none ({len(self)} queries wait){self._refused}"
            )
        rewards = Rewards.from_texts(
            rows,
            embed_query=lambda query: known[query] if query in known else embed_query(query),
            embed_documents=lambda texts: (vectors or TextVectors()).of(texts, embed_documents),
            judge=self.judge,
            embedder=embedder,
        )
        return replace(rewards, trusted=self.trusted, declared_by=self.declared_by)

    def __repr__(self) -> str:
        return f"RewardLog({self.judge!r}, {len(self)} queries)"

    def add(self, served: Served) -> None:
        """Keep the candidates of a query with the rewards that its source gave them; None where it gave none."""
        names = (served.query, served.source, *(candidate.text for candidate in served.candidates))
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise InputError(f"query, documents, source: expected texts, got {type(wrong[0]).__name__}")
        candidates = [candidate for candidate in served.candidates if candidate.text.strip()]
        if not served.query.strip() or not candidates:  # there is no meaning to learn from
            return
        with self._lock:
            of_query = self._served.setdefault((served.task, served.query), {})
            for candidate in candidates:
                rewards = of_query.setdefault(candidate.text, {})
                if candidate.reward is None:
                    continue
                rewards.pop(served.source, None)  # the newest stands last
                rewards[served.source] = candidate.reward
                if len(sources := [source for source in rewards if source]) > MAX_SOURCES:
                    del rewards[sources[0]]
                    self.dropped_rewards += 1
            if served.vector is not None:
                self._query_vectors[served.query] = served.vector
            while len(self._served) > self._capacity:
                (_, forgotten), _ = self._served.popitem(last=False)
                self._query_vectors.pop(forgotten, None)
                self.dropped += 1
