"""One file of rewarded queries, where it is held: what a fit over many of them asks of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import of_task, private_offsets, private_optima
from tttembed_rag.fitting.shared import SharedProblem
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.private import private_around
from tttembed_rag.gate.thresholds import MOST_CANDIDATES
from tttembed_rag.offsets.values import Evidence, Offset
from tttembed_rag.rewards import Rewards
from tttembed_rag.scales import Scale
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.copies import row_hashes
from tttembed_rag.vectors.rows import Float64

# Bits of a query's place that a hash of its names fills, below those of its vector.
_NAME_BITS = np.uint64((1 << 20) - 1)


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """Queries that share an offset.

    Attributes:
        task: Theirs; None for the queries of all tasks.

        withheld: Names of documents that are taken as unjudged.
    """

    task: str | None
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How shared offsets are learned.

    Attributes:
        recipe: The recipe, without a warm start.

        groups: The queries of each offset.

        gated: Whether voices are counted and neighbours join, as the gate has it.

        source_voices: How many voices a source has near any query.
    """

    recipe: Recipe
    groups: tuple[SharedGroup, ...]
    gated: bool
    source_voices: float = 1.0


class Census(NamedTuple):
    """What is in a shard.

    Attributes:
        width: Of the vectors.

        dtype: Of the query vectors.

        judge: Fingerprint of the one judge.

        embedder: Name of the embedding model that the vectors come from; empty where it is not known.

        counts: Rewarded queries of each task.

        places: Of each task, the first places at which its queries stand in the order in which samples are drawn.
    """

    width: int
    dtype: str
    judge: str
    embedder: str
    counts: Mapping[str, int]
    places: Mapping[str, NDArray[np.uint64]]


class _Learned(NamedTuple):
    """What a shared offset is learned from: rewards, how much each query counts, the tasks and the task of each."""

    rewards: Rewards
    voices: Float64
    tasks: tuple[str, ...]
    task: IntArray

    @classmethod
    def of(cls, rewards: Rewards, voices: Float64) -> _Learned:
        """Of *rewards* whose queries count as many *voices*."""
        tasks, task = np.unique(rewards.tasks, return_inverse=True)
        return cls(rewards, voices, tuple(tasks.tolist()), task)


class Shard:
    """The rewards of one file of queries; pickled as its path, and read when first asked.

    Every answer follows from the file and the question alone, so a shard that is read again answers the same.

    Args:
        folder: A folder of `Rewards.to_parquet`.

        part: The name of a file in ``queries/``.

        scale: The scale of the rewards.

        scratch: Whether query vectors are kept in a temporary file instead of memory.
    """

    def __init__(
        self, folder: str | os.PathLike[str], part: str, scale: Scale | str = "probability", *, scratch: bool = False
    ) -> None:
        self._given: dict[str, Any] = {"scale": scale, "part": part, "scratch": scratch}
        self._folder = os.fspath(folder)
        self._learned: tuple[Any, dict[int, _Learned]] = (None, {})
        self._problems: tuple[Any, dict[int, SharedProblem]] = (None, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Shard, **self._given), (self._folder,)

    def census(self, most: int) -> Census:
        """What is here, with the first *most* places of each task."""
        rewards = self._rewards
        tasks, counts = np.unique(rewards.tasks, return_counts=True)
        places = {task: np.sort(self._places[rewards.tasks == task])[:most] for task in tasks.tolist()} if most else {}
        found = dict(zip(tasks.tolist(), counts.tolist(), strict=True))
        dtype = rewards.query_vectors.dtype.str
        return Census(rewards.width, dtype, rewards.judge, rewards.embedder, found, places)

    def drawn(self, below: Mapping[str, int], labelled: Sequence[str]) -> Rewards | None:
        """The rewards of queries whose place is *below* that of their task, and of *labelled* ones; None for none."""
        rewards = self._rewards
        tasks, task = np.unique(rewards.tasks, return_inverse=True)
        most = np.array([below[name] for name in tasks.tolist()], dtype=np.uint64)
        rows = np.flatnonzero((self._places < most[task]) | np.isin(rewards.query_ids, list(labelled)))
        return rewards.take(rows) if rows.size else None

    def voices(self, plan: ShardPlan) -> list[dict[str, float]]:
        """Of each group, the voices of each task: its rewarded queries where no gate counts voices."""
        learned, sums = self._learn(plan), list[dict[str, float]]()
        for row in range(len(plan.groups)):
            mine = learned.get(row)
            counts = [] if mine is None else zip(mine.tasks, np.bincount(mine.task, mine.voices).tolist(), strict=True)
            sums.append(dict(counts))
        return sums

    def evaluate(
        self,
        plan: ShardPlan,
        shares: Sequence[Mapping[str, float]],
        objective: str,
        rows: Sequence[int],
        offsets: Float64,
    ) -> list[tuple[int, Float64, Float64]]:
        """Its part of the data terms at *offsets* of those groups at *rows* that it has queries of.

        Args:
            plan: How they are learned.

            shares: Of each group, the weight of one voice of each task.

            objective: What is minimised.

            rows: Groups of the plan.

            offsets: (G, d) one for each of *rows*.

        Returns:
            The place among *rows*, the value (1,) and the gradient (1, d) of each.
        """
        problems = self._problems_of(plan, shares, objective)
        parts = []
        for place, row in enumerate(rows):
            if row in problems:
                at = problems[row].evaluate(offsets[place : place + 1])
                parts.append((place, at.value, at.gradient))
        return parts

    def private(self, plan: ShardPlan, served: Sequence[Offset | None], evidence: Evidence | None) -> list[Offset]:
        """The private offset of each query of the groups, around what each group is *served*, on *evidence*."""
        offsets: list[Offset] = []
        for group, around in zip(plan.groups, served, strict=True):
            if (rewards := self._of(group)) is None:
                continue
            if evidence is None:
                rewards = one_row_each(rewards)
                offsets += private_offsets(rewards, *private_optima(rewards, plan.recipe), plan.recipe)
            else:
                offsets += private_around(Case(rewards, plan.recipe, plan.source_voices), around, evidence)
        return offsets

    @cached_property
    def _rewards(self) -> Rewards:
        return Rewards.from_parquet(self._folder, **self._given).bounded(MOST_CANDIDATES)

    @cached_property
    def _places(self) -> NDArray[np.uint64]:
        """(n,) where each query stands in the order of samples: copies of a text together, ties by their names."""
        rewards = self._rewards
        names = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), rewards.sources.tolist(), strict=True)
        below = np.array([crc32("\0".join(name).encode()) for name in names], dtype=np.uint64) & _NAME_BITS
        return np.asarray((row_hashes(rewards.queries) & ~_NAME_BITS) | below)

    def _of(self, group: SharedGroup) -> Rewards | None:
        """The rewards of a group; None where there is none."""
        rewards = self._rewards
        if group.task is not None:
            if not (rewards.tasks == group.task).any():
                return None
            rewards = of_task(rewards, group.task)
        if not group.withheld:
            return rewards
        copies = rewards.same_documents
        out = np.isin(rewards.doc_ids[rewards.candidates], group.withheld)
        kept = ~np.isin(copies, copies[out])
        return rewards.only(kept) if kept.any() else None

    def _learn(self, plan: ShardPlan) -> dict[int, _Learned]:
        """What each group is learned from, by its row; kept for *plan*."""
        if self._learned[0] != plan:
            found = {}
            for row, group in enumerate(plan.groups):
                if (rewards := self._of(group)) is None:
                    continue
                if plan.gated:
                    case = Case(rewards, plan.recipe, plan.source_voices)
                    found[row] = _Learned.of(case.widened, case.voices)
                else:
                    found[row] = _Learned.of(rewards, np.ones(len(rewards)))
            self._learned = plan, found
        return self._learned[1]

    def _problems_of(
        self, plan: ShardPlan, shares: Sequence[Mapping[str, float]], objective: str
    ) -> dict[int, SharedProblem]:
        """The data term of each group by its row; the last one asked for is kept."""
        if self._problems[0] != (plan, shares, objective):
            found = {}
            for row, mine in self._learn(plan).items():
                weights = mine.voices * np.array([shares[row][name] for name in mine.tasks])[mine.task]
                loss = plan.recipe.loss(Grid.of(mine.rewards), objective)
                found[row] = SharedProblem.of(mine.rewards, loss, weights[None], 0.0, plan.recipe.device)
            self._problems = (plan, shares, objective), found
        return self._problems[1]
