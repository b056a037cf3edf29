"""The plan of a run of judging, which queries it rewards first, its progress, and its verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.vectors.checks import IntArray

# Ids stand in columns of a text file.
_PLAIN_ID = re.compile(r"[^\t\n\r\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class Plan:
    """The pairs to judge, in order, with caps and a price.

    Attributes:
        observations: Served queries.
        depths: Candidates per query, in stages: with (10, 30) every query is judged to depth 10 before
            any is judged to 30. (1, 2, ...) is breadth first, one depth is depth first. Within a stage
            tasks take turns, one query each, as in the paper.
        budget: Caps.
        price: Price of the judge's usage.
        seed: Order of the queries within a task; None keeps that of *observations*.
    """

    observations: Sequence[Served]
    depths: Sequence[int] = (10,)
    budget: Budget = field(default_factory=Budget)
    price: Price = field(default_factory=Price)
    seed: int | None = 1000

    def __post_init__(self) -> None:
        texts: dict[str, str] = {}
        for served in self.observations:
            query_id, query = served.query_id, served.query
            if texts.setdefault(query_id, query) != query:
                raise InputError(f"observations: expected one text per query id, got two for {query_id!r}")
            for name in (query_id, *(candidate.doc_id for candidate in served.candidates)):
                if not _PLAIN_ID.fullmatch(name):
                    raise InputError(f"observations: expected ids without tabs and line breaks, got {name!r}")
        if not self.depths or sorted(set(self.depths)) != list(self.depths) or self.depths[0] < 1:
            raise InputError(f"depths: expected rising numbers >= 1, got {list(self.depths)}")
        if self.budget.usd is not None and self.price == Price() and self.budget.usd > 0:
            raise InputError(
                "price: expected one, as input=2,output=12 or request=0.002, where the budget caps usd, got none"
            )

    def visits(self) -> Iterator[tuple[Served, Sequence[Candidate]]]:
        """Queries with the candidates to judge next, in order, under the cap of pairs."""
        tasks: dict[str, list[Served]] = {}
        for served in self.observations:
            tasks.setdefault(served.task, []).append(served)
        groups = list(tasks.values())
        order = in_turns([len(group) for group in groups], seed=self.seed)
        left = self.budget.pairs if self.budget.pairs is not None else float("inf")
        for above, depth in zip((0, *self.depths), self.depths, strict=False):
            for task, place in order:
                served = groups[task][place]
                stage = served.candidates[above:depth]
                stage = stage[: int(left)] if left < len(stage) else stage
                left -= len(stage)
                if stage:
                    yield served, stage

    @property
    def pairs(self) -> int:
        """Pairs of the plan, under the cap of pairs."""
        return sum(len(candidates) for _, candidates in self.visits())


def water_fill(sizes: Sequence[int], queries: int, *, seed: int | None = 1000) -> list[IntArray]:
    """Positions of the rewarded queries within each task, in the order they are rewarded.

    Tasks take turns, one query each; an exhausted task drops out. Task t draws its queries in a
    random order of seed *seed* + t, so a larger budget only ever adds queries: prefixes are nested.

    Args:
        sizes: Queries each task has to offer.
        queries: Rewarded queries over all tasks; more than there are takes all.
        seed: Seed of task 0; None takes the queries of each task as they stand.
    """
    if queries < 0:
        raise InputError(f"queries: expected a number >= 0, got {queries}")
    rows: list[list[int]] = [[] for _ in sizes]
    for task, row in in_turns(sizes, seed=seed)[:queries]:
        rows[task].append(row)
    return [np.array(of_task, dtype=np.intp) for of_task in rows]


def in_turns(sizes: Sequence[int], *, seed: int | None = 1000) -> list[tuple[int, int]]:
    """All (task, position) in the order in which `water_fill` rewards them as its budget grows."""
    orders = [
        list(range(size)) if seed is None else np.random.default_rng(seed + t).permutation(size).tolist()
        for t, size in enumerate(sizes)
    ]
    deepest = max(sizes, default=0)
    return [(t, rows[turn]) for turn in range(deepest) for t, rows in enumerate(orders) if turn < len(rows)]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Attributes:
        pairs: Pairs of the plan that the run has reached.
        cached: Those of them with an answer from an earlier run.
        usage: Usage of this run.
        usd: US dollars that all answers of the result cost, in this run or before.
    """

    pairs: int = 0
    cached: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The result of a run.

    Attributes:
        rewards: In [0, 1], by query id and document id, in the order of the plan; unjudged pairs are absent.
        unjudged: Number of pairs that the judge was asked about and gave no score.
        progress: Pairs, usage and money at the end.
        stopped: Why the run ended before the plan did; empty if it did not.
        failed: Errors of failed calls by (query id, document id).
        broken: Whether it ended because the judge broke down.
    """

    rewards: Mapping[str, Mapping[str, float]]
    unjudged: int
    progress: Progress
    stopped: str = ""
    failed: Mapping[tuple[str, str], JudgeError] = field(default_factory=dict)
    broken: bool = False

    def __repr__(self) -> str:
        judged = sum(map(len, self.rewards.values()))
        ended = f", ended early: {self.stopped}" if self.stopped else ""
        return f"Verdicts({judged} pairs of {len(self.rewards)} queries, {self.unjudged} without a score{ended})"


def verdicts_of(scale: Scale, pairs: Sequence[tuple[str, str, float | None]], progress: Progress) -> Verdicts:
    """The verdicts of a run at its end: of each pair the query id, the document id and the score on *scale*, if any."""
    judged = [(query, document, score) for query, document, score in pairs if score is not None]
    values = scale.to_unit(np.array([score for _, _, score in judged], dtype=np.float64)).tolist()
    rewards: dict[str, dict[str, float]] = {}
    for (query, document, _), value in zip(judged, values, strict=True):
        rewards.setdefault(query, {})[document] = value
    return Verdicts(rewards, len(pairs) - len(judged), progress)
