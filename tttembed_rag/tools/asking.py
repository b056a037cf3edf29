"""A judge that fills a sample of what agents leave unjudged: tools that were listed for a request and not called.

It is asked while something is learned, never within a request, and within the budget of a day. Its answers are kept by
the store as long as the requests are; no pair is paid for twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tttembed_rag.errors import StoreError
from tttembed_rag.judges.cache import Answers
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_GOOD, PROBE_QUERY, Judge, forecast_of, rewards_of
from tttembed_rag.judges.spending import Budget, Ledger, Price
from tttembed_rag.judging.plan import Plan
from tttembed_rag.judging.running import check_once, judge_all
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.observations import Observation
from tttembed_rag.tools.index import WEIGHT, ToolIndex
from tttembed_rag.tools.learning import uncalled
from tttembed_rag.tools.memory import LAST, PastRequest

if TYPE_CHECKING:
    from tttembed_rag.stores import Store

_log = logging.getLogger(__name__)
# Pairs of a request and a tool that are asked about in a day, where nothing else was said.
DAILY = Budget(pairs=200)
# Tools that are asked about of each request: the first of its list that nobody called.
_FIRST = 3
# Seconds of a call of the judge; a call that takes longer is left behind.
_SECONDS = 60.0


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
        self._queue = store.judge_queue
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
        known = {(one.task, one.query_id): one for one in requests}
        sample = {}
        for waiting in self._queue.waiting(self._judge.fingerprint, tenant=tenant, limit=LAST):
            place = (waiting.task, self._text_id(waiting.query))
            if (request := known.get(place)) is not None:
                called = {index.keys[key] for key in request.outcomes if key in index.keys}
                rows = uncalled(index.scores(request.query, request.vector, WEIGHT), called, _FIRST).tolist()
                cards = [index.cards[row] for row in rows]
                sample[place] = replace(waiting, candidates=[(card.key, card.text) for card in cards])
        return sample

    def _ask(self, sample: Sequence[Observation]) -> None:
        """Ask about what was not answered yet, as far as the day's budget goes."""
        answers = self._queue.answers(sample)
        try:
            fresh = self._unanswered(sample, answers)
            if fresh and self._affords_probe():
                check_once(self._judge, answers, price=self._price)
                plan = Plan(fresh, tuple(range(1, _FIRST + 1)), self._left(), self._price)
                judge_all(plan, self._judge, answers, seconds=_SECONDS)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - a judge of the caller's may raise anything; calls alone are learned from
            _log.exception("tools that nobody called stay unjudged")

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

    def _left(self) -> Budget:
        spent = self._queue.spent()
        return self._budget.less(pairs=spent.pairs, tokens=spent.tokens, usd=spent.usd)

    def _affords_probe(self) -> bool:
        left, probe = self._left(), [PROBE_GOOD, PROBE_BAD]
        enough = left.pairs is None or left.pairs >= len(probe)
        return enough and Ledger(left, self._price).admits(forecast_of(self._judge, PROBE_QUERY, probe))
