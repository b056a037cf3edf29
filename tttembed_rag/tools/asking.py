"""A judge that fills a sample of what agents leave unjudged: tools that were listed for a request and not called.

It is asked while something is learned, never within a request, and within the budget of a day. Its answers are kept by
the store as long as the requests are; no pair is paid for twice.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_GOOD, PROBE_QUERY, Judge, forecast_of, rewards_of
from tttembed_rag.judging.cache import Answers
from tttembed_rag.judging.plan import Plan
from tttembed_rag.judging.running import check_once, judge_all, probe_keys
from tttembed_rag.judging.spending import Budget, Ledger, Price
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.usage import Usage
from tttembed_rag.rewards.observations import Observation
from tttembed_rag.tools.index import WEIGHT, ToolIndex
from tttembed_rag.tools.learning import uncalled
from tttembed_rag.tools.memory import LAST, PastRequest

if TYPE_CHECKING:
    from tttembed_rag.stores import Lease, Store

_log = logging.getLogger(__name__)
# Pairs of a request and a tool that are asked about in a day, where nothing else was said.
DAILY = Budget(pairs=200)
# Tools that are asked about of each request: the first of its list that nobody called.
_FIRST = 3
# Seconds of a call of the judge; a call that takes longer is left behind.
_SECONDS = 60.0
# The lease of the one process that asks.
_LEASE = "tools"
_PROBE = (PROBE_GOOD, PROBE_BAD)


class ToolJudge:
    """Verdicts of a judge on tools that nobody called.

    Args:
        store: Where its answers, and what it cost, are kept.

        judge: The judge.

        budget: Caps on what all judges of the store may cost in a day (UTC).

        price: What the judge's usage costs; needed where the budget caps money.

    Raises:
        RewardError: The scale of the judge has no bounds.
    """

    def __init__(self, store: Store, judge: Judge, budget: Budget, price: Price) -> None:
        judge.scale.check_calibrated()
        self._store, self._queue = store, store.judge_queue
        self._text_id = store.text_id
        self._judge, self._budget, self._price = judge, budget, price

    def verdicts(self, requests: Sequence[PastRequest], index: ToolIndex, tenant: str) -> list[Mapping[str, float]]:
        """For each request, rewards in [0, 1] of some tools that nobody called, by the keys of their cards.

        Where the judge fails, that is logged, and its earlier answers count alone.

        Args:
            requests: Requests of *tenant*.

            index: The catalogue.

            tenant: The tenant.

        Raises:
            StoreUnavailable: The store is away.
        """
        sample = self._sample(requests, index, tenant)
        self._ask(list(sample.values()))
        pairs = {
            place: {key: self._pair(one.query, text) for key, text in one.candidates} for place, one in sample.items()
        }
        paid = self._queue.answers().get([pair for own in pairs.values() for pair in own.values()])
        return [
            {
                key: float(rewards_of(self._judge, [score])[0])
                for key, pair in pairs.get((one.task, one.query_id), {}).items()
                if pair in paid and (score := paid[pair].score) is not None
            }
            for one in requests
        ]

    def _sample(
        self, requests: Sequence[PastRequest], index: ToolIndex, tenant: str
    ) -> dict[tuple[str, str], Observation]:
        """By task and query id, a request as the store knows it, with the first tools that nobody called for it."""
        known: dict[tuple[str, str], list[PastRequest]] = {}  # those of several sources are asked about once
        for one in requests:
            known.setdefault((one.task, one.query_id), []).append(one)
        sample = {}
        for waiting in self._queue.waiting(self._judge.fingerprint, tenant=tenant, limit=LAST):
            place = (waiting.task, self._text_id(waiting.query))
            if (same := known.get(place)) is not None:
                called = {index.keys[key] for one in same for key in one.outcomes if key in index.keys}
                rows = uncalled(index.scores(same[0].query, same[0].vector, WEIGHT), called, _FIRST).tolist()
                cards = [index.cards[row] for row in rows]
                sample[place] = replace(waiting, candidates=[(card.key, card.text) for card in cards])
        return sample

    def _ask(self, sample: Sequence[Observation]) -> None:
        """Ask about what was not answered yet, as far as the day's budget goes; not while another process asks."""
        from tttembed_rag.worker.holding import Holding

        answers = self._queue.answers(sample)
        fresh = self._unanswered(sample, answers)
        holding = (
            Holding.take(self._store, _LEASE, f"{socket.gethostname()}:{uuid4().hex}", _SECONDS) if fresh else None
        )
        if holding is None:
            return
        probe = [] if len(answers.get(probe_keys(self._judge))) == len(_PROBE) else _PROBE
        with holding:
            try:
                left = self._reserve(fresh, probe, holding.lease)
                if left is not None:
                    check_once(self._judge, answers, price=self._price)
                    plan = Plan(fresh, tuple(range(1, _FIRST + 1)), left, self._price)
                    judge_all(plan, self._judge, answers, seconds=_SECONDS)
            except StoreUnavailable:
                raise
            except Exception:  # noqa: BLE001 - a judge of the caller's may raise anything; calls alone are learned from
                _log.exception("tools that nobody called stay unjudged")

    def _reserve(self, fresh: Sequence[Observation], probe: Sequence[str], lease: Lease) -> Budget | None:
        """What of the day's budget is for *fresh* pairs; None where it does not even pay for the probe of the judge."""
        from tttembed_rag.stores.records import Spend

        first = forecast_of(self._judge, PROBE_QUERY, probe) if probe else Usage()
        texts = [[text for _, text in one.candidates] for one in fresh]
        asked = [forecast_of(self._judge, one.query, some) for one, some in zip(fresh, texts, strict=True)]
        usage = sum(asked, first)
        wanted = Spend(sum(map(len, texts)) + len(probe), usage.tokens, self._price.of(usage))
        queries = [one.query for one in fresh]
        reserved = self._store.reservations.reserve(lease, self._judge.fingerprint, wanted, self._budget, queries)
        granted = reserved.budget
        pairs = None if granted.pairs is None else granted.pairs - len(probe)
        affords = (pairs is None or pairs > 0) and Ledger(granted, self._price).admits(first)
        return replace(granted, pairs=pairs) if affords else None

    def _unanswered(self, sample: Sequence[Observation], answers: Answers) -> list[Observation]:
        """What has no answer yet."""
        keys = {(one.query, text): self._pair(one.query, text) for one in sample for _, text in one.candidates}
        paid = answers.get(list(keys.values()))
        left = (
            replace(one, candidates=[pair for pair in one.candidates if keys[one.query, pair[1]] not in paid])
            for one in sample
        )
        return [one for one in left if one.candidates]

    def _pair(self, query: str, text: str) -> bytes:
        return pair_key(self._judge.fingerprint, query, text)
