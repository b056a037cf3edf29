"""`fit` over a folder of Parquet shards, of which no process need hold more than its own.

    shards: value and gradient  ->  driver: sum in the order of the shards, solver, certificate, gate

Shared offsets are learned from all rewards: a round of the solver asks every shard for its part of the objective and
its gradient, G (d + 1) numbers for G offsets. Private offsets are learned shard by shard. The gate, and the local
offsets that it may publish, need statistics of each query beside those of all others; they are asked of a sample of
the queries that fits into the memory of the driver.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tttembed_rag.errors import DataError, InputError, RewardError, VectorError
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import lowest, recorded, solved_offset
from tttembed_rag.fitting.solver import Evaluation
from tttembed_rag.fitting.spreading import MapLike
from tttembed_rag.gate.audit import Labels
from tttembed_rag.gate.case import gated
from tttembed_rag.gate.deciding import check_asked, fit
from tttembed_rag.gate.thresholds import RIDGE_STEP
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope, Evidence, Offset, Scope
from tttembed_rag.parquet import parts
from tttembed_rag.rewards import Rewards
from tttembed_rag.scale.engines import Engine, check_engine, opened_engine
from tttembed_rag.scale.shards import Census, Shard, ShardPlan, SharedGroup
from tttembed_rag.scales import Scale
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Rewarded queries that the gate is asked on, at most. Up to this many, queries that ask nearly the same are found by
# comparing all with all (`vectors.copies`); with ten candidates of width 384 the gate of as many takes about 1 GB.
GATE_QUERIES = 20_000


def fit_sharded(
    folder: str | os.PathLike[str],
    *,
    engine: str | MapLike = "local",
    scope: AnyScope = "auto",
    gate: bool = True,
    recipe: Recipe | None = None,
    scale: Scale | str = "probability",
    gate_queries: int = GATE_QUERIES,
    scratch: bool = False,
    source_voices: float = 1.0,
    audit: Labels | None = None,
) -> Offsets:
    """Offsets learned from all rewards in *folder*, each published only if a sample of them supports it.

    With the gate, a folder of at most *gate_queries* rewarded queries is read and fitted as `fit` does. Of a larger one
    a sample is drawn: as many queries of each task as of any other, as far as it has them, whatever the shards. On the
    sample `fit` decides which offsets are published, and the evidence of each says how many queries it was asked of.
    Published constant offsets are then learned from all rewards, by the recipe that the gate asked about, and private
    ones from all queries of their task. Local offsets are those of the sample, with or without the gate.

    Copies of a query, its rows from several sources, and its unjudged neighbours are looked for within a shard: keep
    what belongs together in one file of ``queries/``. A query in two shards counts twice, and its private offset is
    that of the first.

    Args:
        folder: A folder of `Rewards.to_parquet`, or of another engine; each file of ``queries/`` is a shard. The
            driver and every process that holds a shard read it under this path.

        engine: ``local``; ``ray``, the cluster that this process is connected to, or one that is found or started;
            ``ray://HOST:PORT``; or a function like `map`, such as that of any `concurrent.futures.Executor`. Threads
            and Ray's actors hold their shards; a process pool reads a shard again in every round.

        scope: As for `fit`.

        gate: False serves the paper's rule as it stands; ``auto`` needs the gate.

        recipe: How offsets are learned; None for the paper's recipe. Shared offsets start from its warm start.

        scale: The scale of the rewards.

        gate_queries: Rewarded queries that the gate and local offsets see at most, beside those of *audit*; >= 1.

        scratch: Whether query vectors are kept in unnamed temporary files instead of memory, where a shard is held.

        source_voices: As for `fit`.

        audit: As for `fit`. The queries that labels name are in the sample, beside those that were drawn.

    Returns:
        What `fit` returns. The same shards give the same bits, on whichever engine, if the machines are alike.
    """
    check_engine(engine)
    check_asked(scope, gate=gate, source_voices=source_voices, audit=audit)
    recipe = recipe or Recipe()
    if gate_queries < 1:
        raise InputError(f"gate_queries: expected at least 1, got {gate_queries}")
    rows = parts(folder)
    if not any(rows.values()):
        raise DataError(f"{os.fspath(folder)}: expected rewarded queries, found none in {len(rows)} files")
    by_sample = gate or scope == "local"
    options = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    if by_sample and sum(rows.values()) <= gate_queries:
        whole = Rewards.from_parquet(folder, scale=scale)
        return fit(whole, scope=scope, gate=gate, source_voices=source_voices, audit=audit, **options)
    shards = [Shard(folder, part, scale, scratch=scratch) for part, count in rows.items() if count]
    with opened_engine(engine, shards) as held:
        census = _checked(held.each("census", gate_queries if by_sample else 0))
        task_counts = _summed([one.counts for one in census])
        if not by_sample:
            return _ungated(held, scope, recipe, census[0], sorted(task_counts))
        labelled = sorted({query for query, _ in audit or ()})
        sample = _sampled(held, census, task_counts, gate_queries, labelled)
        asked = f"asked of a sample of {len(sample):,} of {sum(rows.values()):,} rewarded queries"
        decided = fit(sample, scope=scope, gate=gate, source_voices=source_voices, audit=audit, **options)
        if not gate:
            offsets = [_noted(offset, asked.replace("asked", "learned")) for offset in decided.values()]
            return _of_all(offsets, census[0], recipe, scope)
        recipe = gated(recipe, sample)
        plan = ShardPlan(replace(recipe, warm_start=None), (), gated=True, source_voices=source_voices)
        shared = _relearned(
            held, plan, [_noted(one, asked) for one in decided.values() if one.query_id is None], sample
        )
        private = _private(held, plan, [_noted(one, asked) for one in decided.values() if one.query_id], shared)
        return _of_all([*shared, *private], census[0], recipe, scope)


def _ungated(held: Engine, scope: AnyScope, recipe: Recipe, census: Census, tasks: Sequence[str]) -> Offsets:
    """The paper's rule as it stands."""
    groups = (SharedGroup(None),) if scope in ("global", "query") else tuple(map(SharedGroup, tasks))
    plan = ShardPlan(replace(recipe, warm_start=None), groups, gated=False)
    if scope == "query":
        found = held.each("private", plan, [None], None)
        return _of_all(_first_of_each(found), census, recipe, scope)
    keys = ["global" if group.task is None else f"task:{group.task}" for group in groups]
    start = np.concatenate([recipe.start(key, census.width) for key in keys])
    offsets = _shared(held, plan, start, np.dtype(census.dtype), [None] * len(groups))
    return _of_all(offsets, census, recipe, scope)


def _of_all(offsets: list[Offset], census: Census, recipe: Recipe, scope: AnyScope) -> Offsets:
    """Offsets with the record of how they were learned, from shards of which one has *census*."""
    return recorded(offsets, census.judge, census.width, recipe, scope, census.embedder)


def _relearned(held: Engine, plan: ShardPlan, decided: Sequence[Offset], sample: Rewards) -> list[Offset]:
    """The shared offsets that were *decided* on, those constant ones that are served learned from all rewards."""
    whole = next((one for one in decided if one.scope == "global" and one.served), None)
    # A task that gets the global offset has the global evidence.
    lent = [
        one
        for one in decided
        if whole and one.scope == "task" and replace(one, scope="global").evidence == whole.evidence
    ]
    again = [one for one in decided if one.served and one.scope != "local" and one not in lent]
    if not again:
        return list(decided)
    groups = tuple(SharedGroup(one.task, one.evidence.withheld) for one in again)
    recipe = replace(plan.recipe, ridge=RIDGE_STEP * plan.recipe.ridge)
    start = np.array([one.vector for one in again], dtype=np.float64)
    dtype = sample.query_vectors.dtype
    learned = _shared(held, replace(plan, recipe=recipe, groups=groups), start, dtype, [one.evidence for one in again])
    new = {id(old): offset for old, offset in zip(again, learned, strict=True)}
    if whole is not None:
        new |= {id(one): replace(new[id(whole)], scope="task", task=one.task) for one in lent}
    return [new.get(id(one), one) for one in decided]


def _private(held: Engine, plan: ShardPlan, decided: Sequence[Offset], shared: Sequence[Offset]) -> list[Offset]:
    """The private offsets of all queries of the tasks in which those of the sample are served; else those *decided*."""
    offsets: list[Offset] = []
    for task in dict.fromkeys(one.task for one in decided):
        mine = [one for one in decided if one.task == task]
        published = next((one.evidence for one in mine if one.served), None)
        if published is None:
            offsets += mine
            continue
        around = next((one for one in shared if one.task == task and one.served), None)
        groups = (SharedGroup(task, published.withheld),)
        found = held.each("private", replace(plan, groups=groups), [around], published)
        offsets += _first_of_each(found)
    return offsets


def _first_of_each(found: Sequence[Sequence[Offset]]) -> list[Offset]:
    """The offsets of all shards, each key once: of a query in several shards, the offset of the first."""
    kept: dict[str, Offset] = {}
    for part in found:
        for one in part:
            kept.setdefault(one.key, one)
    return list(kept.values())


def _shared(
    held: Engine, plan: ShardPlan, start: Float64, dtype: np.dtype[np.floating], evidence: Sequence[Evidence | None]
) -> list[Offset]:
    """The offset of each group of *plan*, from *start* (G, d) on."""
    of_shards = held.each("voices", plan)
    voices = [_summed([of_shard[row] for of_shard in of_shards]) for row in range(len(plan.groups))]
    shares = [{task: 1.0 / (len(of_one) * count) for task, count in of_one.items()} for of_one in voices]
    rows = np.arange(len(plan.groups))
    problem = ShardedProblem(held, plan, shares, plan.recipe.objective, rows)
    solution = lowest(problem, lambda: replace(problem, objective="kd"), plan.recipe, start)
    offsets = []
    for row, (group, count, found) in enumerate(zip(plan.groups, voices, evidence, strict=True)):
        scope: Scope = "global" if group.task is None else "task"
        n = max(1, round(sum(count.values())))
        offsets.append(solved_offset(solution, row, scope, group.task, n, plan.recipe, dtype, found))
    return offsets


@dataclass(frozen=True, slots=True)
class ShardedProblem:
    """The `Problem` of shared offsets whose data terms lie in shards.

    Attributes:
        held: The shards.

        plan: How the offsets are learned.

        shares: Of each group of the plan, the weight of one voice of each task.

        objective: What is minimised.

        rows: The groups of the plan that are searched for.
    """

    held: Engine
    plan: ShardPlan
    shares: Sequence[dict[str, float]]
    objective: str
    rows: IntArray

    def evaluate(self, offsets: Float64) -> Evaluation:
        """Objectives (G,) and gradients (G, d): one round, summed in the order of the shards."""
        ridge = self.plan.recipe.ridge
        value, gradient = ridge * np.vecdot(offsets, offsets), 2.0 * ridge * offsets
        for answer in self.held.each("evaluate", self.plan, self.shares, self.objective, self.rows.tolist(), offsets):
            for place, part, of_part in answer:
                value[place] += part[0]
                gradient[place] += of_part[0]
        return Evaluation(value, gradient)

    def newton_step(self, offsets: Float64, at: Evaluation) -> None:
        """None: curvature is learned along the way."""

    def take(self, rows: IntArray) -> ShardedProblem:
        """Some of the problems."""
        return replace(self, rows=self.rows[rows])


def _checked(census: Sequence[Census]) -> Sequence[Census]:
    """The census, of shards that fit together."""
    widths, judges, models = ({getattr(one, name) for one in census} for name in ("width", "judge", "embedder"))
    if len(widths) > 1:
        raise VectorError(f"shards: expected vectors of one width, got {', '.join(map(str, sorted(widths)))}")
    if len(judges) > 1:
        raise RewardError(f"shards: expected rewards of one judge, got {', '.join(sorted(judges))}")
    if len(models) > 1:
        raise VectorError(
            f"shards: expected vectors of one embedder, got {', '.join(name or 'no name' for name in sorted(models))}"
        )
    return census


def _summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sums of numbers by name, in the order of the parts."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, number in part.items():
            sums[name] = sums.get(name, 0) + number
    return sums


def _sampled(
    held: Engine, census: Sequence[Census], counts: dict[str, float], most: int, labelled: Sequence[str]
) -> Rewards:
    """At most *most* rewarded queries, as many of each task as of any other as far as there are; and *labelled* ones.

    Of each task there is one at least.
    """
    sizes = np.array(list(counts.values()))
    each = max(1, bisect_right(range(1, most + 1), most, key=lambda cap: int(np.minimum(sizes, cap).sum())))
    below = {}
    for task in counts:
        places = np.sort(np.concatenate([one.places[task] for one in census if task in one.places]))
        below[task] = int(places[each]) if each < len(places) else 2**64 - 1
    return _together([part for part in held.each("drawn", below, labelled) if part is not None])


def _together(drawn: Sequence[Rewards]) -> Rewards:
    """Parts of the rewards of one folder as one."""
    ids = np.concatenate([part.doc_ids for part in drawn])
    doc_ids, first, row = np.unique(ids, return_index=True, return_inverse=True)
    begins = np.cumsum([0, *(len(part.doc_ids) for part in drawn)])
    pairs = [row[part.candidates + begin] for part, begin in zip(drawn, begins, strict=False)]
    return Rewards.from_indexed(
        np.concatenate([part.query_vectors for part in drawn]),
        np.concatenate([part.doc_vectors for part in drawn])[first],
        [one for part, of_part in zip(drawn, pairs, strict=True) for one in np.split(of_part, part.starts[1:-1])],
        [one for part in drawn for one in np.split(part.values, part.starts[1:-1])],
        [task for part in drawn for task in part.tasks.tolist()],
        [name for part in drawn for name in part.query_ids.tolist()],
        judge=drawn[0].judge,
        embedder=drawn[0].embedder,
        sources=[source for part in drawn for source in part.sources.tolist()],
        doc_ids=doc_ids.tolist(),
    )


def _noted(offset: Offset, note: str) -> Offset:
    """The offset, whose evidence says what it was asked of."""
    return replace(offset, evidence=replace(offset.evidence, reason=f"{offset.evidence.reason}; {note}"))
