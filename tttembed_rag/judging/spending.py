"""The cost of judging: prices of usage, caps that no run may exceed, and accounts that keep them.

A call is charged with the most that it may cost before it is made, and settled at its cost after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Protocol
from uuid import uuid4

from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import InputError
from tttembed_rag.judging.cache import Answers, Paid

# The reason of a run that stopped at a cap.
BUDGET_ENDED = "budget: the next answer could exceed a cap"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of usage in US dollars; all zero for a model on your own machine.

    Attributes:
        input: Per million tokens read.
        output: Per million tokens written.
        request: Per request.
    """

    input: float = 0.0
    output: float = 0.0
    request: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"price: expected {name} as a finite number >= 0, got {value}")

    @classmethod
    def parse(cls, text: str) -> Price:
        """A price written as ``input=2,output=12`` or ``request=0.002``."""
        return cls(**_numbers("price", text, cls))

    def of(self, usage: Usage) -> float:
        """US dollars for *usage*."""
        tokens = usage.input_tokens * self.input + usage.output_tokens * self.output
        return tokens / 1e6 + usage.requests * self.request

    def share(self, part: float) -> Price:
        """A price of which every amount is that *part* of this one, such as .5."""
        return Price(self.input * part, self.output * part, self.request * part)


@dataclass(frozen=True, slots=True)
class Budget:
    """Caps on the cost of a result; None is no cap.

    Attributes:
        pairs: Judged (query, document) pairs.
        tokens: Tokens read and written.
        usd: US dollars.
    """

    pairs: float | None = None
    tokens: float | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value >= 0:
                raise InputError(f"budget: expected {name} as a number >= 0, got {value}")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget written as ``pairs=2000,tokens=1e6,usd=1.50``, each part optional."""
        return cls(**_numbers("budget", text, cls))

    def without(self, *, pairs: float = 0.0, tokens: float = 0.0, usd: float = 0.0) -> Budget:
        """What is left once so much is spent."""
        caps = zip(astuple(self), (pairs, tokens, usd), strict=True)
        return Budget(*(None if cap is None else max(0.0, cap - gone) for cap, gone in caps))

    def admits(self, *, pairs: float = 0.0, tokens: float = 0.0, usd: float = 0.0) -> bool:
        """Whether so much is within every cap."""
        caps = zip(astuple(self), (pairs, tokens, usd), strict=True)
        return all(cap is None or value <= cap * (1 + 1e-9) for cap, value in caps)  # sums of shares are rounded


def _numbers(name: str, text: str, kind: type[Price | Budget]) -> dict[str, float]:
    known = [field.name for field in fields(kind)]
    numbers = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition("=")
        try:
            numbers[key] = float(value)
        except ValueError:
            numbers[key] = math.nan
        if key not in known or math.isnan(numbers[key]):
            raise InputError(f"{name}: expected {'=N,'.join(known)}=N, got {part!r}")
    return numbers


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

    The cap of pairs is kept by the plan. Answers of the judge with that fingerprint are kept in *cache*. The account of
    a day of workers is `tttembed_store.sql.work.answers.DailyAccount`.
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
