"""A judge that fills a sample of what users leave unjudged: items that were listed for a request and not used.

It is asked while something is learned, never within a request, and within the budget of a day. Its answers are kept by
the store as long as the requests are; no pair of a tenant is paid for twice.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.errors import LeaseLost, StoreUnavailable
from tttembed_rag.judges.contract import Judge, checked_judge, checked_rewards
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_tools.index import Index
from tttembed_tools.learning import unused
from tttembed_tools.outcomes import Outcomes, PastRequest

if TYPE_CHECKING:
    from tttembed_store.worker import Tenant

_log = logging.getLogger(__name__)
# Pairs of a request and an item that are asked about in a day, where nothing else was said.
DAILY = Budget(pairs=200)
# Items that are asked about of each request: the first of its list that nobody used.
_FIRST = 3
# Calls of the judge at once, and the seconds after which one is left behind.
_AT_ONCE, _SECONDS = 8, 60.0


class UnusedJudge:
    """Verdicts of a judge on items that nobody used, within the budget of all judges of the store in a day (UTC).

    Raises:
        RewardError: The scale of the judge has no bounds.
    """

    def __init__(self, outcomes: Outcomes, judge: Judge | str, budget: Budget, price: Price) -> None:
        from tttembed_store.worker.asking import Asking

        if isinstance(judge, str):
            from tttembed_rag.judges.specs import open_judge

            judge = open_judge(judge)
        store = outcomes.store
        self._judge, self._last = checked_judge(judge), outcomes.last
        self._queue, self._text_id = store.judge_queue, store.text_id
        self._asking = Asking(store, judge, budget=budget, price=price, concurrency=_AT_ONCE, seconds=_SECONDS)

    def verdicts(self, requests: Sequence[PastRequest], index: Index, tenant: Tenant) -> list[Mapping[str, float]]:
        """For each request of *tenant*, rewards in [0, 1] of some items that nobody used, by the keys of their cards.

        Where the judge fails, that is logged, and its earlier answers count alone.

        Raises:
            LeaseLost: Another process has it, or the tenant was forgotten.
            StoreUnavailable: The store is away.
        """
        sample = self._sample(requests, index, tenant.name)
        pairs = {
            (unjudged.query, card.text): pair_key(self._judge.fingerprint, unjudged.query, card.text)
            for unjudged in sample.values()
            for card in unjudged.candidates
        }
        wanted, answers = list(pairs.values()), self._queue.answers()
        if len(answers.get(wanted)) < len(wanted):  # the others are asked about as far as the day's budget goes
            try:
                self._asking.run(list(sample.values()), tenant.lease, Event(), depths=range(1, _FIRST + 1)).verdicts()
            except (LeaseLost, StoreUnavailable):
                raise
            except Exception:  # noqa: BLE001 - a judge of the caller's may raise anything; uses alone are learned from
                _log.exception("items that nobody used stay unjudged")
        paid = answers.get(wanted)
        rewards = {
            place: {
                card.doc_id: float(checked_rewards(self._judge, [score])[0])
                for card in unjudged.candidates
                if (pair := pairs[unjudged.query, card.text]) in paid and (score := paid[pair].score) is not None
            }
            for place, unjudged in sample.items()
        }
        return [rewards.get((request.task, request.query_id), {}) for request in requests]

    def _sample(self, requests: Sequence[PastRequest], index: Index, tenant: str) -> dict[tuple[str, str], Served]:
        """By task and query id, a request as the store knows it, with the first items that nobody used for it."""
        known: dict[tuple[str, str], list[PastRequest]] = defaultdict(list)  # several sources are asked about once
        for request in requests:
            known[request.task, request.query_id].append(request)
        sample = {}
        for waiting in self._queue.waiting(self._judge.fingerprint, tenant=tenant, limit=self._last, called=True):
            place = (waiting.task, self._text_id(waiting.query))
            if same := known.get(place):
                used = {key for request in same for key in request.outcomes}
                cards = [index.cards[index.keys[key]] for key in unused(same, used, index)[:_FIRST]]
                sample[place] = replace(waiting, candidates=[Candidate(card.key, text=card.text) for card in cards])
        return sample
