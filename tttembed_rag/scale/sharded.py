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
from collections import Counter
from collections.abc import Sequence
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
from tttembed_rag.offsets.values import AnyScope, Evidence, Offset
from tttembed_rag.parquet import parts
from tttembed_rag.rewards import Rewards
from tttembed_rag.scale.engines import Engine, check_engine, opened_engine
from tttembed_rag.scale.shards import Census, Group, Plan, Shard
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
    ones from all queries of their task. Local offsets are those of the sample, and therefore need the gate.

    Copies of a query and its unjudged neighbours are looked for within a shard. All rows of one query, such as those of
    several sources, lie in one file of ``queries/``.

    Args:
        folder: A folder of `Rewards.to_parquet`, or of another engine; each file of ``queries/`` is a shard. The
            driver and every process that holds a shard read it under this path.

        engine: ``local``; ``ray``, the cluster that this process is connected to, or one that is found or started;
            ``ray://HOST:PORT``; or a function like `map`, such as that of any `concurrent.futures.Executor`. Threads
            and Ray's actors hold their shards; a process pool reads a shard again in every round.

        scope: As for `fit`.

        gate: False serves the paper's rule as it stands; ``auto`` needs the gate, and so does ``local`` of more than
            *gate_queries* queries.

        recipe: How offsets are learned; None for the paper's recipe. Shared offsets start from its warm start.

        scale: The scale of the rewards.

        gate_queries: Rewarded queries that the gate and local offsets see at most, beside those of *audit*; >= 1.

        scratch: Whether query vectors are kept in unnamed temporary files instead of memory, where a shard is held.

        source_voices: As for `fit`.

        audit: As for `fit`. The queries that labels name are in the sample, beside those that were drawn.

    Returns:
        What `fit` returns. The same shards give the same bits, on whichever engine, if the machines are alike.

    Raises:
        DataError: There is no rewarded query, a file is damaged, or rows of one query are in several files.
    """
    check_engine(engine)
    check_asked(scope, gate=gate, source_voices=source_voices, audit=audit)
    recipe = recipe or Recipe()
    if gate_queries < 1:
        raise InputError(f"gate_queries: expected at least 1, got {gate_queries}")
    rows = parts(folder)
    n = sum(rows.values())
    if not n:
        raise DataError(f"{os.fspath(folder)}: expected rewarded queries, found none in {len(rows)} files")
    options = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    options |= {"scope": scope, "gate": gate, "source_voices": source_voices, "audit": audit}
    if (gate or scope == "local") and n <= gate_queries:
        return fit(Rewards.from_parquet(folder, scale=scale), **options)
    if scope == "local" and not gate:
        raise InputError(
            f"gate: expected True with scope='local' and more than {gate_queries:,} rewarded queries, got False: local "
            "offsets are learned from a sample of that many"
        )
    shards = [Shard(folder, part, scale, scratch=scratch) for part, count in rows.items() if count]
    with opened_engine(engine, shards) as held:
        census = held.each("census", gate_queries if gate else 0)
        _check_alike(census)
        width, dtype, judge, embedder = census[0][:4]
        plan = Plan(replace(recipe, warm_start=None), ())
        if gate:
            sample = _sampled(held, census, gate_queries, sorted({query for query, _ in audit or ()}))
            note = f"; asked of a sample of {len(sample):,} of {n:,} rewarded queries"
            decided = [_noted(one, note) for one in fit(sample, **options).values()]
            recipe = gated(recipe, sample)
            plan = Plan(replace(recipe, warm_start=None), (), source_voices)
            offsets = _of_all(held, plan, decided, dtype)
        elif scope == "query":
            found = held.each("private", plan._replace(groups=(Group(None),)), None, None)
            offsets = [one for part in found for one in part]
        else:
            tasks = [None] if scope == "global" else sorted({task for one in census for task in one.counts})
            keys = ["global" if task is None else f"task:{task}" for task in tasks]
            start = np.concatenate([recipe.start(key, width) for key in keys])
            plan = plan._replace(groups=tuple(map(Group, tasks)))
            offsets = _shared(held, plan, start, dtype, [None] * len(tasks))
        return recorded(offsets, judge, width, recipe, scope, embedder)


def _of_all(held: Engine, plan: Plan, decided: Sequence[Offset], dtype: str) -> list[Offset]:
    """What a sample *decided* on, the constant and the private offsets that are served learned from all rewards."""
    shared = [one for one in decided if one.query_id is None]
    whole = next((one for one in shared if one.scope == "global" and one.served), None)
    # A task that gets the global offset has the global evidence.
    lent = [one for one in shared if whole and one.scope == "task" and one.evidence == whole.evidence]
    again = [one for one in shared if one.served and one.scope != "local" and one not in lent]
    new: dict[int, Offset] = {}
    if again:
        constant = plan._replace(
            recipe=replace(plan.recipe, ridge=RIDGE_STEP * plan.recipe.ridge),
            groups=tuple(Group(one.task, one.evidence.withheld) for one in again),
        )
        start = np.array([one.vector for one in again], dtype=np.float64)
        learned = _shared(held, constant, start, dtype, [one.evidence for one in again])
        new = {id(old): offset for old, offset in zip(again, learned, strict=True)}
        new |= {id(one): replace(new[id(whole)], scope="task", task=one.task) for one in lent}
    offsets = [new.get(id(one), one) for one in shared]
    private = [one for one in decided if one.query_id is not None]
    for task in dict.fromkeys(one.task for one in private):
        mine = [one for one in private if one.task == task]
        published = next((one.evidence for one in mine if one.served), None)
        if published is not None:
            around = next((one for one in offsets if one.query_id is None and one.task == task and one.served), None)
            group = plan._replace(groups=(Group(task, published.withheld),))
            mine = [one for part in held.each("private", group, around, published) for one in part]
        offsets += mine
    return offsets


def _shared(held: Engine, plan: Plan, start: Float64, dtype: str, evidence: Sequence[Evidence | None]) -> list[Offset]:
    """The offset of each group of *plan*, from *start* (G, d) on."""
    voices = [_summed(parts) for parts in zip(*held.each("voices", plan), strict=True)]
    shares = [{task: 1.0 / (len(of_one) * count) for task, count in of_one.items()} for of_one in voices]
    problem = ShardedProblem(held, plan, shares, np.arange(len(plan.groups)))
    kd = replace(problem, plan=plan._replace(recipe=replace(plan.recipe, objective="kd")))
    solution = lowest(problem, lambda: kd, plan.recipe, start)
    return [
        solved_offset(
            solution,
            row,
            "global" if group.task is None else "task",
            group.task,
            max(1, round(sum(voices[row].values()))),
            plan.recipe,
            np.dtype(dtype),
            evidence[row],
        )
        for row, group in enumerate(plan.groups)
    ]


@dataclass(frozen=True, slots=True)
class ShardedProblem:
    """The `Problem` of shared offsets whose data terms lie in shards.

    Attributes:
        held: The shards.

        plan: How the offsets are learned.

        shares: Of each group of the plan, the weight of one voice of each task.

        rows: The groups of the plan that are searched for.
    """

    held: Engine
    plan: Plan
    shares: Sequence[dict[str, float]]
    rows: IntArray

    def evaluate(self, offsets: Float64) -> Evaluation:
        """Objectives (G,) and gradients (G, d): one round, summed in the order of the shards."""
        ridge = self.plan.recipe.ridge
        value, gradient = ridge * np.vecdot(offsets, offsets), 2.0 * ridge * offsets
        for answer in self.held.each("evaluate", self.plan, self.shares, self.rows.tolist(), offsets):
            for place, part, of_part in answer:
                value[place] += part[0]
                gradient[place] += of_part[0]
        return Evaluation(value, gradient)

    def newton_step(self, offsets: Float64, at: Evaluation) -> None:
        """None: curvature is learned along the way."""

    def take(self, rows: IntArray) -> ShardedProblem:
        """Some of the problems."""
        return replace(self, rows=self.rows[rows])


def _check_alike(census: Sequence[Census]) -> None:
    """Refuse shards that do not fit together, and rows of one query in several of them."""
    for name, error in (("width", VectorError), ("judge", RewardError), ("embedder", VectorError)):
        if len(got := sorted({getattr(one, name) or "no name" for one in census})) > 1:
            raise error(f"shards: expected one {name}, got {', '.join(map(str, got))}")
    names = np.sort(np.concatenate([one.names for one in census]))
    if several := int(np.count_nonzero(names[1:] == names[:-1])):
        raise DataError(
            f"queries/: expected all rows of a query in one file, got {several:,} queries whose rows are in several"
            " (write the files sorted by query_id, or with Rewards.to_parquet)"
        )


def _summed(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """The sums of numbers by name, in the order of the parts."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part)  # type: ignore[arg-type]  # it adds any numbers
    return dict(sums)


def _sampled(held: Engine, census: Sequence[Census], most: int, labelled: Sequence[str]) -> Rewards:
    """At most *most* rewarded queries, as many of each task as of any other as far as there are; and *labelled* ones.

    Of each task there is one at least.
    """
    counts = _summed([one.counts for one in census])
    sizes = np.array(list(counts.values()))
    each = max(1, bisect_right(range(1, most + 1), most, key=lambda cap: int(np.minimum(sizes, cap).sum())))
    below = {}
    for task in counts:
        places = np.sort(np.concatenate([one.places[task] for one in census if task in one.places]))
        below[task] = int(places[each]) if each < len(places) else 2**64 - 1
    return Rewards.joined([part for part in held.each("drawn", below, labelled) if part is not None])


def _noted(offset: Offset, note: str) -> Offset:
    """The offset, whose evidence says what it was asked of."""
    return replace(offset, evidence=replace(offset.evidence, reason=offset.evidence.reason + note))
