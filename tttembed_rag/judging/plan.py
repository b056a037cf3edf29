"""Which pairs are judged, in which order, at which price, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.judges.spending import Budget, Price, Usage
from tttembed_rag.judging.turns import in_turns
from tttembed_rag.observations import Observation

# Ids are columns of a text file.
_PLAIN_ID = re.compile(r"[^\t\n\r\ud800-\udfff]+")

# Why a run stopped that came to a cap.
BUDGET_ENDED = "budget: the next answer could exceed a cap"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which pairs are judged, in which order, at which price.

    Attributes:
        observations: Served queries.

        depths: Candidates per query, in stages: with (10, 30) every query is judged to depth 10 before
            any is judged to 30. (1, 2, ...) is breadth first, one depth is depth first. Within a stage
            tasks take turns, one query each, as in the paper.

        budget: Caps.

        price: What the judge's usage costs.

        seed: Order of the queries within a task.
    """

    observations: Sequence[Observation]
    depths: Sequence[int] = (10,)
    budget: Budget = field(default_factory=Budget)
    price: Price = field(default_factory=Price)
    seed: int = 1000

    def __post_init__(self) -> None:
        for one in self.observations:
            for name in (one.query_id, *(document for document, _ in one.candidates)):
                if not _PLAIN_ID.fullmatch(name):
                    raise InputError(f"observations: expected ids without tabs and line breaks, got {name!r}")
        if not self.depths or sorted(set(self.depths)) != list(self.depths) or self.depths[0] < 1:
            raise InputError(f"depths: expected rising numbers >= 1, got {list(self.depths)}")
        if self.budget.usd is not None and self.price == Price() and self.budget.usd > 0:
            raise InputError(
                "price: expected one, as input=2,output=12 or request=0.002, where the budget caps usd, got none"
            )
        texts: dict[str, str] = {}
        for one in self.observations:
            if texts.setdefault(one.query_id, one.query) != one.query:
                raise InputError(f"observations: expected one text per query id, got two for {one.query_id!r}")

    def visits(self) -> Iterator[tuple[Observation, Sequence[tuple[str, str]]]]:
        """Queries with the candidates to judge next, in order, under the cap of pairs."""
        tasks: dict[str, list[Observation]] = {}
        for observation in self.observations:
            tasks.setdefault(observation.task, []).append(observation)
        groups = list(tasks.values())
        order = in_turns([len(group) for group in groups], seed=self.seed)
        left = self.budget.pairs if self.budget.pairs is not None else float("inf")
        for above, depth in zip((0, *self.depths), self.depths, strict=False):
            for task, place in order:
                observation = groups[task][place]
                some = observation.candidates[above:depth]
                some = some[: int(left)] if left < len(some) else some
                left -= len(some)
                if some:
                    yield observation, some

    @property
    def pairs(self) -> int:
        """Pairs of the plan, under the cap of pairs."""
        return sum(len(some) for _, some in self.visits())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far judging is.

    Attributes:
        pairs: Pairs the plan has come to.

        cached: How many of them were known already.

        usage: What was used in this run.

        usd: What all answers of the result cost, in this run or before.
    """

    pairs: int = 0
    cached: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a judge said.

    Attributes:
        rewards: In [0, 1], by query id and document id, in the order of the plan. A pair that is not there was
            not judged.

        unjudged: Pairs the judge was asked about and gave no score.

        progress: Pairs, usage and money at the end.

        stopped: Why it ended before the plan did; empty if it did not.

        failed: Why, for every pair whose call failed, by (query id, document id).
    """

    rewards: Mapping[str, Mapping[str, float]]
    unjudged: int
    progress: Progress
    stopped: str = ""
    failed: Mapping[tuple[str, str], JudgeError] = field(default_factory=dict)
