"""Accounts: a call is charged with the most that it may cost before it is made, and settled at its cost after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from tttembed_rag.clients.usage import Usage
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import BUDGET_ENDED
from tttembed_rag.judging.spending import Budget, Price


@dataclass(frozen=True, slots=True)
class Charge:
    """What was charged for one call: the most that it may use, and the addresses of the pairs that it may ask about.

    *day* is that by UTC on which it counts, as ``2026-01-31``; empty where days do not matter. *key* is its own name.
    """

    pairs: Sequence[bytes]
    usage: Usage
    day: str = ""
    key: str = field(default_factory=lambda: uuid4().hex)


class Account(Protocol):
    """What a run of one judge may spend, at a *price* of usage, and the answers that were paid for.

    The charges that are *running* are not settled yet: parts of them may be given back. *ended* says why the last one
    was refused.
    """

    price: Price
    running: int
    ended: str

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*; a run looks each up once."""

    def charge(self, pairs: Sequence[bytes], estimate: Usage, *, least: int = 1, anew: bool = False) -> Charge | None:
        """Charge for a call about *pairs*; None where a cap has no room for *least* of them.

        It names fewer pairs where a cap ends, or where others ask about some of them now or have just done so.
        With *anew* neither an answer that is kept nor another call is in the way.
        """

    def settle(self, charge: Charge, used: Usage, answers: Mapping[bytes, Paid]) -> None:
        """Keep *answers*, and replace what was charged by what was *used*."""


class Ledger:
    """The account of one result: its caps count every answer of it, also those that an earlier run has paid for.

    The cap of pairs is kept by the plan. Answers of the judge with that fingerprint are kept in *cache*.
    """

    def __init__(self, budget: Budget, price: Price, cache: Answers, judge: str) -> None:
        self._budget, self.price, self._cache, self._judge = budget, price, cache, judge
        self.running, self.ended = 0, BUDGET_ENDED
        self.tokens = self.usd = 0.0  # running charges at their estimates

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*; what they have cost is counted."""
        answers = self._cache.get(pairs)
        self._count(sum(paid.tokens for paid in answers.values()), sum(paid.usd for paid in answers.values()))
        return answers

    def charge(self, pairs: Sequence[bytes], estimate: Usage, **_for_a_day: object) -> Charge | None:
        """Charge for a call, unless it could exceed a cap."""
        tokens, usd = estimate.tokens, self.price.of(estimate)
        if not self._budget.admits(tokens=self.tokens + tokens, usd=self.usd + usd):
            return None
        self._count(tokens, usd)
        self.running += 1
        return Charge(pairs, estimate)

    def settle(self, charge: Charge, used: Usage, answers: Mapping[bytes, Paid]) -> None:
        """Keep *answers*, and count what was *used* instead of what was charged."""
        self._count(used.tokens - charge.usage.tokens, self.price.of(used) - self.price.of(charge.usage))
        self.running -= 1
        if answers:
            self._cache.put(self._judge, answers)

    def _count(self, tokens: float, usd: float) -> None:
        self.tokens, self.usd = self.tokens + tokens, self.usd + usd
