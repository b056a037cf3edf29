"""The cost of judging: prices of usage, and caps that no run may exceed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import InputError


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

    def share(self, of_it: float) -> Price:
        """A price of which every part is a share of this one's."""
        return Price(self.input * of_it, self.output * of_it, self.request * of_it)


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
        caps = ((self.pairs, pairs), (self.tokens, tokens), (self.usd, usd))
        return Budget(*(None if cap is None else max(0.0, cap - gone) for cap, gone in caps))

    def admits(self, *, pairs: float = 0.0, tokens: float = 0.0, usd: float = 0.0) -> bool:
        """Whether so much is within every cap."""
        caps = ((self.pairs, pairs), (self.tokens, tokens), (self.usd, usd))
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
