"""Accounts: a call is charged with the most that it may cost before it is made, and settled at its cost after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import BUDGET_ENDED
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.models.usage import Usage


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
    """What a run may spend, and the answers that were paid for."""

    @property
    def running(self) -> bool:
        """Whether a charge is not settled yet: a part of it may be given back."""

    @property
    def price(self) -> Price:
        """The price of usage."""

    @property
    def ended(self) -> str:
        """Why the last charge was refused."""

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*."""

    def charge(
        self, judge: str, pairs: Sequence[bytes], estimate: Usage, *, least: int = 1, anew: bool = False
    ) -> Charge | None:
        """Charge for a call of *judge* about *pairs*; None where a cap has no room for *least* of them.

        It names fewer pairs where a cap ends, or where others ask about some of them now or have just done so.
        With *anew* neither an answer that is kept nor another call is in the way.
        """

    def settle(self, judge: str, charge: Charge, used: Usage, answers: Mapping[bytes, Paid]) -> None:
        """Keep *answers*, and replace what was charged by what was *used*."""


class Ledger:
    """The account of one result: its caps count every answer of it, also those that an earlier run has paid for.

    The cap of pairs is kept by the plan. Answers are kept in *cache*.
    """

    ended = BUDGET_ENDED

    def __init__(self, budget: Budget, price: Price, cache: Answers) -> None:
        self._budget, self.price, self._cache = budget, price, cache
        self._charged: dict[str, Usage] = {}
        self.tokens = self.usd = 0.0

    @property
    def running(self) -> bool:
        """Whether a charge is not settled yet."""
        return bool(self._charged)

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*; they are counted, so each pair is looked up once."""
        found = self._cache.get(pairs)
        self.tokens += sum(paid.tokens for paid in found.values())
        self.usd += sum(paid.usd for paid in found.values())
        return found

    def charge(
        self,
        judge: str,  # noqa: ARG002 (every account is asked alike)
        pairs: Sequence[bytes],
        estimate: Usage,
        *,
        least: int = 1,  # noqa: ARG002
        anew: bool = False,  # noqa: ARG002
    ) -> Charge | None:
        """Charge for a call, unless it could exceed a cap with all running ones at their estimates."""
        open_ = sum(self._charged.values(), estimate)
        within = self._budget.admits(tokens=self.tokens + open_.tokens, usd=self.usd + self.price.of(open_))
        if not within:
            return None
        charge = Charge(pairs, estimate)
        self._charged[charge.key] = estimate
        return charge

    def settle(self, judge: str, charge: Charge, used: Usage, answers: Mapping[bytes, Paid]) -> None:
        """Keep *answers*, and count what was *used*."""
        del self._charged[charge.key]
        self.tokens += used.tokens
        self.usd += self.price.of(used)
        if answers:
            self._cache.put(judge, answers)
