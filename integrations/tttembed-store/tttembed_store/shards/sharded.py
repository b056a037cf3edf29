"""`fit` over a folder of Parquet shards, of which no process need hold more than its own.

    shards: value and gradient  ->  driver: sum in the order of the shards, solver, certificate, gate

Shared offsets are learned from all rewards: a round of the solver asks every shard for its part of the objective and
its gradient, G (d + 1) numbers for G offsets. Private offsets are learned shard by shard. The gate, and the local
offsets that it may publish, need statistics of each query beside those of all others; they are asked of a sample of
the queries that fits into the memory of the driver.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tttembed_rag.errors import DataError, InputError, RewardError, VectorError, check_count
from tttembed_rag.fitting.optima import lowest
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import recorded, solved_offset
from tttembed_rag.fitting.shared import SharedProblem
from tttembed_rag.gate.audit import Labels
from tttembed_rag.gate.case import gated
from tttembed_rag.gate.fit import check_options, fit
from tttembed_rag.gate.thresholds import RIDGE_STEP
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import AnyScope, Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64
from tttembed_store.shards.engines import Each, MapLike, check_engine, opened_engine
from tttembed_store.shards.parquet import parts
from tttembed_store.shards.shards import Census, NamedQueries, Shard, ShardGroup, ShardPlan

_log = logging.getLogger(__name__)

# Rewarded queries that the gate is asked on, at most. Up to this many, queries that ask nearly the same are found by
# comparing all with all (`vectors.copies`); with ten candidates of width 384 the gate of as many takes about 1 GB.
GATE_QUERIES = 20_000


def fit_sharded(
    folder: str | os.PathLike[str],
    *,
    engine: str | MapLike = "local",
    scope: AnyScope = "auto",
    trusted: bool | None = None,
    audit: Labels | None = None,
    gate: bool = True,
    recipe: Recipe = Recipe(),
    scale: Scale | str = "probability",
    gate_queries: int = GATE_QUERIES,
) -> Offsets:
    """Offsets learned from all rewards in *folder*, each published only if a sample of them supports it.

    With the gate, a folder of at most *gate_queries* rewarded queries is read and fitted as `fit` does. Of a larger one
    `fit` decides on a sample, as many queries of each task as of any other as far as it has them, and the evidence
    says so. Published constant offsets are then learned from all rewards, by the recipe that the gate asked about, and
    private ones from all queries of their task. Local offsets are those of the sample, and therefore need the gate.

    Args:
        folder: A folder of `Rewards.to_parquet`, or of another engine; each file of ``queries/`` is a shard, with all
            rows of its queries. Every process that holds a shard, and this one, read it under this path; copies on
            several machines keep the time of the last change.
        engine: ``local``; ``ray``, the cluster that this process is connected to, or one that is found or started;
            ``ray://HOST:PORT``; or a function like `map`, such as that of any `concurrent.futures.Executor`. Threads
            and Ray's actors hold their shards; a process pool reads a shard again in every round.
        scope: As for `fit`.
        trusted: As for `fit`; a folder does not keep it.
        audit: As for `fit`. The queries that labels name are in the sample, beside those that were drawn.
        gate: As for `fit`.
        recipe: As for `fit`.
        scale: The scale of the rewards; the log doubts it by what the gate sees.
        gate_queries: Rewarded queries that the gate and local offsets see at most, beside those of *audit*; >= 1. A
            query counts once for each source that rewarded it, and is seen with all of them or not at all.

    Returns:
        What `fit` returns. The same shards give the same bits, on whichever engine, if the machines are alike.

    Raises:
        DataError: There is no rewarded query, a file is damaged or replaced meanwhile, or rows of one query are in
            several files.
    """
    check_engine(engine)
    check_options(scope, gate=gate, audit=audit, trusted=trusted, recipe=recipe)
    check_count("gate_queries", gate_queries)
    rows = parts(folder)
    n = sum(rows.values())
    if not n:
        raise DataError(f"{os.fspath(folder)}: expected rewarded queries, found none in {len(rows)} files")
    fit_sample = partial(fit, scope=scope, gate=gate, audit=audit, trusted=trusted, recipe=recipe)
    if (gate or scope == "local") and n <= gate_queries:
        return fit_sample(Rewards.from_parquet(folder, scale=scale))
    if scope == "local" and not gate:
        raise InputError(
            f"gate: expected True with scope='local' and more than {gate_queries:,} rewarded queries, got False: local "
            "offsets are learned from a sample of that many"
        )
    shards = [Shard(os.fspath(folder), part, scale) for part, count in rows.items() if count]
    with opened_engine(engine, shards) as each:
        census = each("census")
        queries = _queries(census)
        width, dtype, judge, embedder, _ = census[0]
        plan = ShardPlan(recipe)
        if gate:
            sample = _sampled(each, queries, gate_queries, sorted({query for query, _ in audit or ()}))
            if doubt := Scale.parse(scale).doubt(sample.values):
                _log.warning("rewards: %s", doubt)
            note = f"asked of a sample of {len(sample):,} of {n:,} rewarded queries"
            decided = [replace(offset, evidence=offset.evidence.noted(note)) for offset in fit_sample(sample).values()]
            recipe = gated(recipe, sample)
            plan = ShardPlan(recipe, gated=True)
            offsets = _of_all(each, plan, decided, dtype)
        elif scope == "query":
            offsets = _private(each, plan, ShardGroup(None))
        else:
            tasks = [None] if scope == "global" else sorted(queries)
            start = np.zeros((len(tasks), width))
            offsets = _shared(each, plan._replace(groups=tuple(map(ShardGroup, tasks))), start, dtype)
        return recorded(offsets, judge, width, recipe, scope, embedder=embedder)


def _queries(census: Sequence[Census]) -> dict[str, NamedQueries]:
    """The queries of each task, of shards that fit together.

    Raises:
        VectorError, RewardError: They do not.
        DataError: Rows of one query are in several of them.
    """
    for name, error in (("width", VectorError), ("judge", RewardError), ("embedder", VectorError)):
        if len(got := sorted({getattr(shard, name) or "no name" for shard in census})) > 1:
            raise error(f"shards: expected one {name}, got {', '.join(map(str, got))}")
    queries = {}
    for task in sorted({task for shard in census for task in shard.queries}):
        of_shards = [shard.queries[task] for shard in census if task in shard.queries]
        hashes, rows = (np.concatenate(column) for column in zip(*of_shards, strict=True))
        order = np.argsort(hashes)
        queries[task] = NamedQueries(hashes[order], rows[order])
    if several := sum(np.count_nonzero(some.hashes[1:] == some.hashes[:-1]) for some in queries.values()):
        raise DataError(
            f"queries/: expected all rows of a query in one file, got {several:,} queries whose rows are in several"
            " (write the files sorted by query_id, or with Rewards.to_parquet)"
        )
    return queries


def _sampled(each: Each, queries: Mapping[str, NamedQueries], most: int, labelled: Sequence[str]) -> Rewards:
    """At most *most* rows, as many of each task as of any other as far as there are; and those of *labelled* queries.

    A query comes with the rows of all its sources. Of each task there is one query at least.
    """
    sums = {task: np.cumsum(some.rows) for task, some in queries.items()}

    def rows(of_task: int) -> int:
        return sum(int(some[_within(some, of_task)]) for some in sums.values())

    of_task = bisect_right(range(1, most + 1), most, key=rows)
    last = {task: int(some.hashes[_within(sums[task], of_task)]) for task, some in queries.items()}
    return Rewards.joined([part for part in each("drawn", last, labelled) if part is not None])


def _within(sums: IntArray, most: int) -> int:
    """The place of the last of the ascending *sums* that is at most *most*; that of the first where none is."""
    return max(0, int(np.searchsorted(sums, most, "right")) - 1)


def _of_all(each: Each, plan: ShardPlan, decided: Sequence[Offset], dtype: str) -> list[Offset]:
    """What a sample *decided* on, the constant and the private offsets that are served learned from all rewards."""
    shared = [offset for offset in decided if offset.query_id is None]
    again = [offset for offset in shared if offset.served and offset.scope != "local"]
    new: dict[str, Offset] = {}
    if again:
        constant = plan._replace(
            recipe=replace(plan.recipe, ridge=RIDGE_STEP * plan.recipe.ridge),
            groups=tuple(_group(offset.task, offset.evidence) for offset in again),
        )
        start = np.array([offset.vector for offset in again], dtype=np.float64)
        learned = _shared(each, constant, start, dtype, [offset.evidence for offset in again])
        new = {offset.key: offset for offset in learned}
    offsets = [new.get(offset.key, offset) for offset in shared]
    private = [offset for offset in decided if offset.query_id is not None]
    for task in dict.fromkeys(offset.task for offset in private):
        mine = [offset for offset in private if offset.task == task]
        published = next((offset.evidence for offset in mine if offset.served), None)
        if published is not None:
            mine = _private(each, plan, _group(task, published), published)
        offsets += mine
    return offsets


def _group(task: str | None, evidence: Evidence) -> ShardGroup:
    return ShardGroup(task, evidence.withheld, evidence.sources > 0)


def _private(each: Each, plan: ShardPlan, group: ShardGroup, evidence: Evidence | None = None) -> list[Offset]:
    """The private offset of each query of *group*, on *evidence*, in the order of shards."""
    parts = each("private", plan._replace(groups=(group,)), evidence)
    return [offset for part in parts for offset in part]


def _shared(
    each: Each, plan: ShardPlan, start: Float64, dtype: str, evidence: Sequence[Evidence | None] | None = None
) -> list[Offset]:
    """The offset of each group of *plan*, from *start* (G, d) on; ungated without *evidence*."""
    voices = [Counter[str]() for _ in plan.groups]
    for of_shard in each("voices", plan):
        for total, part in zip(voices, of_shard, strict=True):
            total.update(part)
    shares = [{task: 1.0 / (len(of_one) * count) for task, count in of_one.items()} for of_one in voices]

    def problem(recipe: Recipe) -> SharedProblem:
        of_recipe = plan._replace(recipe=recipe)
        block = _OfShards(each, of_recipe, shares, np.arange(len(shares)))
        return SharedProblem((block,), recipe.ridge / recipe.spread)

    solution = lowest(problem, plan.recipe, start)
    return [
        solved_offset(
            solution,
            row,
            group.task,
            max(1, round(sum(voices[row].values()))),
            plan.recipe,
            np.dtype(dtype),
            evidence[row] if evidence else None,
        )
        for row, group in enumerate(plan.groups)
    ]


@dataclass(frozen=True, slots=True)
class _OfShards:
    """The data term of all queries of the groups of a plan at some *rows*, each voice of a task with its *shares*."""

    each: Each
    plan: ShardPlan
    shares: Sequence[Mapping[str, float]]
    rows: IntArray

    def __call__(self, offsets: Float64, vv: Float64) -> tuple[Float64, Float64]:  # noqa: ARG002 (shards work it out)
        """The data terms (G,) and gradients (G, d) at *offsets* (G, d): one round, summed in the shards' order."""
        answers = self.each("evaluate", self.plan, self.shares, self.rows.tolist(), offsets)
        value, gradient = zip(*answers, strict=True)
        return np.asarray(sum(value)), np.asarray(sum(gradient))

    def take(self, rows: IntArray) -> _OfShards:
        """The same queries in some of the problems."""
        return replace(self, rows=self.rows[rows])
