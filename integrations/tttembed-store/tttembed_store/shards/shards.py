"""One file of rewarded queries, where it is held: what a fit over many of them asks of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import DataError
from tttembed_rag.fitting.grid import Grid, Loss
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.fitting.neighbours import with_neighbours
from tttembed_rag.fitting.optima import private_optima
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import of_task, private_offsets
from tttembed_rag.fitting.shared import SharedProblem
from tttembed_rag.fitting.voices import Voices
from tttembed_rag.gate.thresholds import MOST_CANDIDATES
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64


class ShardGroup(NamedTuple):
    """Queries that share an offset: those of a task, or of all (None).

    The rewards of sources count where `sources` is true, but for those of `withheld` documents. Where it is false, the
    judge's rewards alone count, but for those of these documents.
    """

    task: str | None
    withheld: tuple[str, ...] = ()
    sources: bool = True


class ShardPlan(NamedTuple):
    """How the offsets of some groups are learned.

    Where it is `gated`, queries have the voices that the gate counts; else every query counts as one, and no unjudged
    neighbours join its candidates.
    """

    recipe: Recipe
    groups: tuple[ShardGroup, ...] = ()
    gated: bool = False


class NamedQueries(NamedTuple):
    """Queries of a task: a hash of the name of each, ascending, and its rows, one for each source that rewarded it."""

    hashes: NDArray[np.uint64]
    rows: IntArray


class Census(NamedTuple):
    """What is in a shard: what must be the same in all, and the queries of each task."""

    width: int
    dtype: str
    judge: str
    embedder: str
    queries: Mapping[str, NamedQueries]


class Shard:
    """The rewards of one file of queries; pickled as its path, and read when first asked.

    Every answer follows from the file and the question alone, so a shard that is read again answers the same. A file
    that was replaced since it was *seen*, by its size and the time of its last change, is refused. The other parameters
    are those of `Rewards.from_parquet`.
    """

    def __init__(
        self,
        folder: str,
        part: str,
        scale: Scale | str = "probability",
        seen: tuple[int, int] | None = None,
    ) -> None:
        self._parameters = folder, part, scale, seen or _seen(folder, part)
        # What was worked out last, and for what.
        self._learned: tuple[Any, dict[int, tuple[Rewards, Float64]]] = (None, {})
        self._problems: tuple[Any, dict[int, SharedProblem]] = (None, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, self._parameters

    def census(self) -> Census:
        """What is here."""
        rewards = self._rewards
        queries = {
            task: NamedQueries(*np.unique(self._names[rewards.tasks == task], return_counts=True))
            for task in np.unique(rewards.tasks).tolist()
        }
        return Census(rewards.width, rewards.query_vectors.dtype.str, rewards.judge, rewards.embedder, queries)

    def drawn(self, last: Mapping[str, int], labelled: Sequence[str]) -> Rewards | None:
        """The rewards of queries whose hash is at most the *last* of their task, and of *labelled* ones, if any."""
        rewards = self._rewards
        tasks, task = np.unique(rewards.tasks, return_inverse=True)
        most = np.array([last[name] for name in tasks.tolist()], dtype=np.uint64)
        rows = np.flatnonzero((self._names <= most[task]) | np.isin(rewards.query_ids, list(labelled)))
        return rewards.take(rows) if rows.size else None

    def voices(self, plan: ShardPlan) -> list[dict[str, float]]:
        """Of each group, the voices of each task."""
        sums: list[dict[str, float]] = [{} for _ in plan.groups]
        for row, (rewards, voices) in self._of_groups(plan).items():
            tasks, task = np.unique(rewards.tasks, return_inverse=True)
            sums[row] = dict(zip(tasks.tolist(), np.bincount(task, voices).tolist(), strict=True))
        return sums

    def evaluate(
        self, plan: ShardPlan, shares: Sequence[Mapping[str, float]], rows: Sequence[int], offsets: Float64
    ) -> tuple[Float64, Float64]:
        """Its part of the data terms (G,) and of their gradients (G, d) at *offsets* (G, d) of the groups at *rows*.

        *shares* holds, of each group of the plan, the weight of one voice of each task.
        """
        if self._problems[0] != (plan, shares):
            problems = {}
            for row, (rewards, voices) in self._of_groups(plan).items():
                tasks, task = np.unique(rewards.tasks, return_inverse=True)
                weights = voices * np.array([shares[row][name] for name in tasks.tolist()])[task]
                loss = Loss.of(Grid.of(rewards), plan.recipe)
                problems[row] = SharedProblem.of(rewards, loss, weights[None], 0.0)
            self._problems = (plan, shares), problems
        value, gradient = np.zeros(len(rows)), np.zeros(offsets.shape)
        for place, row in enumerate(rows):
            if row in self._problems[1]:
                at = self._problems[1][row].evaluate(offsets[place : place + 1])
                value[place], gradient[place] = at.value[0], at.gradient[0]
        return value, gradient

    def private(self, plan: ShardPlan, evidence: Evidence | None) -> list[Offset]:
        """The private offset of each query of the one group of *plan*, on *evidence*."""
        if (rewards := self._rewards_of(plan.groups[0])) is None:
            return []
        if not plan.gated or evidence is None:
            rewards = one_row_each(rewards)
            return private_offsets(rewards, private_optima(rewards, plan.recipe), plan.recipe)
        rewards = Voices.of(rewards).rewards
        return private_offsets(rewards, private_optima(with_neighbours(rewards), plan.recipe), plan.recipe, evidence)

    @cached_property
    def _rewards(self) -> Rewards:
        folder, part, scale, seen = self._parameters
        rewards = Rewards.from_parquet(folder, part=part, scale=scale)
        if _seen(folder, part) != seen:
            raise DataError(
                f"{Path(folder, 'queries', part)}: expected the file that the fit began with, found another"
            )
        return rewards.bounded(MOST_CANDIDATES)

    @cached_property
    def _names(self) -> NDArray[np.uint64]:
        """(n,) a hash of the task and the name of each query: its rows from several sources share it."""
        names = zip(self._rewards.tasks, self._rewards.query_ids, strict=True)
        return np.frombuffer(
            b"".join(blake2b("\0".join(name).encode(), digest_size=8).digest() for name in names), np.uint64
        )

    def _rewards_of(self, group: ShardGroup) -> Rewards | None:
        """The rewards of a group; None where there is none."""
        rewards = self._rewards
        if group.task is not None:
            if not (rewards.tasks == group.task).any():
                return None
            rewards = of_task(rewards, group.task)
        named = np.repeat(rewards.sources != "", rewards.depths)
        unheard = named & (not group.sources)
        if group.withheld:
            copies = rewards.same_documents
            withheld = np.isin(copies, copies[np.isin(rewards.doc_ids[rewards.candidates], group.withheld)])
            unheard |= withheld & (named | (not group.sources))
        return None if unheard.all() else rewards.only(~unheard)

    def _of_groups(self, plan: ShardPlan) -> dict[int, tuple[Rewards, Float64]]:
        """By row of the plan what each group is learned from: rewards, and how many voices each query has."""
        if self._learned[0] != (key := plan[1:]):
            learned = {}
            for row, group in enumerate(plan.groups):
                if (rewards := self._rewards_of(group)) is None:
                    continue
                if plan.gated:
                    voices = Voices.of(rewards)
                    learned[row] = with_neighbours(voices.rewards), voices.weights
                else:
                    learned[row] = rewards, np.ones(len(rewards))
            self._learned = key, learned
        return self._learned[1]


def _seen(folder: str, part: str) -> tuple[int, int]:
    status = Path(folder, "queries", part).stat()
    return status.st_size, status.st_mtime_ns
