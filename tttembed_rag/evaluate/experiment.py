"""Fit on some queries of a workload, measure on others: the rows behind `tttembed eval`.

A workload is one or several collections, each one task. Per seed every collection's queries are
split into held-out queries and a pool; water-filling draws the rewarded queries from the pools.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.collection import Collection, check_workload, pooled_rewards, split
from tttembed_rag.evaluate.intervals import mean_interval
from tttembed_rag.fitting.recipe import ObjectiveName, SolverName
from tttembed_rag.gate.deciding import fit
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope
from tttembed_rag.rewards import Rewards
from tttembed_rag.rewards.turns import water_fill
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

Population: TypeAlias = Literal["heldout", "rewarded", "all"]
# Least gain of direct rerank in nDCG@10 that has shares: those of less are ratios of noise.
LEAST_GAIN = 0.005
Baseline: TypeAlias = Literal["raw", "rerank", "fused", "hybrid"]
# `words` is `auto`, with what it finds sorted by the task's rescorer.
Measured: TypeAlias = AnyScope | Literal["words"]
_SCOPES = (*get_args(AnyScope), "words")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """The fits and baselines to measure.

    Attributes:
        rewarded: Rewarded queries per task, each a cell of its own.
        depth: Rewarded candidates per query.
        seeds: Seeds of the split into rewarded and held-out queries.
        holdout: Share of each task's queries that are never rewarded, in (0, 1).
        scopes: Scopes fitted.
        baselines: Baselines measured; ``rerank`` is direct rerank, as if every query were judged; ``fused`` is that of
            the search with ``auto``, search and judge weighing the same, for rewarded queries that it moves;
            ``hybrid`` is reciprocal rank fusion of the search and BM25, for which no judge is asked.
        gates: With the gate, without, or both; ``auto`` and ``words`` are always gated.
        objective: Objective of the fit.
        solver: Solver of the fit.
        trusted: Whether the judge is vouched for, as in `Rewards`.
    """

    rewarded: tuple[int, ...] = (16, 64, 200)
    depth: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)
    holdout: float = 0.3
    scopes: tuple[Measured, ...] = ("global", "task", "local", "query", "auto")
    baselines: tuple[Baseline, ...] = ("raw", "rerank")
    gates: tuple[bool, ...] = (True, False)
    objective: ObjectiveName = "kd"
    solver: SolverName = "exact"
    trusted: bool | None = None

    def __post_init__(self) -> None:
        if not 0 < self.holdout < 1:
            raise InputError(f"holdout: expected a share between 0 and 1, got {self.holdout}")
        for name, values in (("rewarded", self.rewarded), ("depth", (self.depth,))):
            if not values or min(values) < 1:
                raise InputError(f"{name}: expected numbers >= 1, got {values}")
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds: expected numbers >= 0, got {self.seeds}")
        if not (self.scopes or self.baselines):
            raise InputError("scopes: expected at least one scope or baseline, got none")
        for name, allowed in (("scopes", _SCOPES), ("baselines", get_args(Baseline))):
            if wrong := set(getattr(self, name)) - set(allowed):
                raise InputError(f"{name}: expected {', '.join(allowed)}, got {', '.join(sorted(wrong))}")

    @property
    def contestants(self) -> list[tuple[Measured, bool]]:
        """Every (scope, gated) pair to measure."""
        always = ("auto", "words")
        return [(scope, gated) for scope in self.scopes for gated in ((True,) if scope in always else self.gates)]

    @property
    def fits(self) -> list[tuple[AnyScope, bool]]:
        """Every (scope, gated) pair to fit, each once."""
        fused_too: list[tuple[AnyScope, bool]] = [("auto", True)] if "fused" in self.baselines else []
        learned = [(_learned(scope), gated) for scope, gated in self.contestants]
        return list(dict.fromkeys([*learned, *fused_too]))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured cell; nDCG@10 has linear gains, the interval is a paired bootstrap over queries.

    `rerank_delta` is what direct rerank at this depth would gain if every query of the population were judged, and
    `share` is `delta` over it: of the gain of a reranker, the part that is kept without asking it. It is None where
    direct rerank gains less than `LEAST_GAIN`.
    """

    dataset: str
    embedder: str
    rewards: str
    simulated: bool
    seed: int
    rewarded: int
    rewarded_queries: int
    depth: int
    budget: int
    scope: str
    objective: str | None
    solver: str | None
    gated: bool
    population: Population
    queries: int
    ndcg10: float
    raw_ndcg10: float
    delta: float
    ci_low: float
    ci_high: float
    harmed_fraction: float
    rerank_delta: float
    share: float | None
    published: bool
    reason: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)


def run(workload: Sequence[Collection], plan: ExperimentPlan) -> Iterator[Row]:
    """Every row of *plan* on a workload of one or several collections."""
    check_workload(workload)
    unlearned = [
        _Unlearned(
            collection.measure_reranked(np.arange(len(collection.raw)), plan.depth),
            collection.measure_hybrid() if "hybrid" in plan.baselines else None,
        )
        for collection in workload
    ]
    for seed in plan.seeds:
        for rewarded in plan.rewarded:
            yield from _cell(workload, unlearned, plan, seed, rewarded, *drawn(workload, plan, seed, rewarded))


def drawn(
    workload: Sequence[Collection], plan: ExperimentPlan, seed: int, rewarded: int
) -> tuple[list[IntArray], list[IntArray]]:
    """The rows of rewarded queries and of held-out ones, of each collection, in the split of a *seed*."""
    splits = [split(collection, seed, plan.holdout) for collection in workload]
    sizes = [len(pool) for pool, _ in splits]
    rows = water_fill(sizes, sum(min(rewarded, size) for size in sizes))
    return [pool[some] for (pool, _), some in zip(splits, rows, strict=True)], [held for _, held in splits]


def _cell(
    workload: Sequence[Collection],
    unlearned: Sequence[_Unlearned],
    plan: ExperimentPlan,
    seed: int,
    rewarded: int,
    judged: Sequence[IntArray],
    held: Sequence[IntArray],
) -> Iterator[Row]:
    rewards = replace(pooled_rewards(workload, judged, plan.depth), trusted=plan.trusted)
    fitted = {(scope, gated): _fit(rewards, plan, scope, gated) for scope, gated in plan.fits}
    for collection, baselines, rewarded_rows, heldout in zip(workload, unlearned, judged, held, strict=True):
        by_judge = baselines.rerank
        everyone = np.arange(len(collection.raw))
        populations: dict[Population, IntArray] = {"heldout": heldout, "rewarded": rewarded_rows, "all": everyone}
        budget = sum(len(collection.candidates(q, plan.depth)[0]) for q in rewarded_rows.tolist())
        for outcome in _outcomes(collection, plan, baselines, rewarded_rows, fitted):
            for population, members in populations.items():
                measured, raw = outcome.measured[members], collection.raw[members]
                low, high = mean_interval(measured - raw)
                delta, rerank_delta = float((measured - raw).mean()), float((by_judge[members] - raw).mean())
                yield Row(
                    dataset=collection.dataset.name,
                    embedder=collection.embedder,
                    rewards=collection.judge,
                    simulated=collection.simulated,
                    seed=seed,
                    rewarded=rewarded,
                    rewarded_queries=len(rewarded_rows),
                    depth=plan.depth,
                    budget=budget,
                    scope=outcome.scope,
                    objective=plan.objective if outcome.fitted else None,
                    solver=plan.solver if outcome.fitted else None,
                    gated=outcome.gated,
                    population=population,
                    queries=len(members),
                    ndcg10=float(measured.mean()),
                    raw_ndcg10=float(raw.mean()),
                    delta=delta,
                    ci_low=low,
                    ci_high=high,
                    harmed_fraction=float((measured < raw - 1e-12).mean()),
                    rerank_delta=rerank_delta,
                    share=delta / rerank_delta if rerank_delta >= LEAST_GAIN else None,
                    published=outcome.published,
                    reason=outcome.reason,
                    seconds=outcome.seconds,
                )


@dataclass(frozen=True, slots=True, eq=False)
class _Unlearned:
    """nDCG@10 (M,) of every query after direct rerank, and by a hybrid search where that is measured."""

    rerank: Float64
    hybrid: Float64 | None


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    offsets: Offsets
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    scope: str
    gated: bool
    measured: Float64
    published: bool
    reason: str
    seconds: float
    fitted: bool


def _fit(rewards: Rewards, plan: ExperimentPlan, scope: AnyScope, gated: bool) -> _Fitted:
    began = time.perf_counter()
    offsets = fit(rewards, scope=scope, gate=gated, objective=plan.objective, solver=plan.solver)
    return _Fitted(offsets, time.perf_counter() - began)


def _outcomes(
    collection: Collection,
    plan: ExperimentPlan,
    unlearned: _Unlearned,
    rewarded: IntArray,
    fitted: Mapping[tuple[AnyScope, bool], _Fitted],
) -> Iterator[_Outcome]:
    """nDCG@10 of every query under each baseline and each fit."""
    if "raw" in plan.baselines:
        yield _Outcome("raw", False, collection.raw, False, "no offset", 0.0, False)
    if "rerank" in plan.baselines:
        yield _Outcome("rerank", False, unlearned.rerank, False, "judged documents in reward order", 0.0, False)
    if unlearned.hybrid is not None:
        reason = "reciprocal rank fusion with BM25, no judge"
        yield _Outcome("hybrid", False, unlearned.hybrid, False, reason, 0.0, False)
    task = collection.dataset.name
    if "fused" in plan.baselines:
        offsets = fitted["auto", True].offsets
        moved = rewarded if offsets.find(task) is not None else rewarded[:0]
        measured, published = served_and_fused(collection, offsets, task, moved, plan.depth), bool(moved.size)
        reason = "judged documents by reward order and new search, where auto serves an offset"
        yield _Outcome("fused", True, measured, published, reason, fitted["auto", True].seconds, True)
    for scope, gated in plan.contestants:
        learned = fitted[_learned(scope), gated]
        offsets, rescorer = learned.offsets, learned.offsets.rescorer(task) if scope == "words" else None
        if rescorer is None:
            measured, published = served(collection, offsets, task)
        else:
            vectors = offsets.apply(collection.query_vectors, task=task)
            measured, published = collection.measure_rescored(vectors, rescorer), True
        reason = _reason(offsets, task, words=scope == "words")
        yield _Outcome(scope, gated, measured, published, reason, learned.seconds, True)


def _learned(scope: Measured) -> AnyScope:
    """The scope of the fit behind what is measured."""
    return "auto" if scope == "words" else scope


def served(collection: Collection, offsets: Offsets, task: str) -> tuple[Float64, bool]:
    """nDCG@10 of every query under *offsets*, and whether any of them was moved."""
    ids = collection.query_ids.tolist()
    moved = np.flatnonzero([offsets.find(task, query_id) is not None for query_id in ids])
    vectors = offsets.apply(collection.query_vectors, task=task, query_id=ids)
    return collection.measure(vectors, moved), bool(moved.size)


def served_and_fused(collection: Collection, offsets: Offsets, task: str, rows: IntArray, depth: int) -> Float64:
    """nDCG@10 of every query where *rows* are fused; the others keep raw."""
    vectors = offsets.apply(collection.query_vectors, task=task, query_id=collection.query_ids.tolist())
    return collection.measure_fused(vectors, rows, depth)


def _reason(offsets: Offsets, task: str, *, words: bool) -> str:
    """The evidence of what serves *task*, or would: of the shared offset, then of a private one; or of its words."""
    of_task = [offset for offset in offsets.values() if offset.task in (task, None)]
    ranks = {"global": 0, "task": 1, "local": 1}
    shared = max((o for o in of_task if o.query_id is None), key=lambda o: (ranks[o.scope], o.served), default=None)
    private = next((offset for offset in of_task if offset.query_id is not None), None)
    parts = [f"{offset.scope} {offset.evidence}" for offset in (shared, private) if offset is not None]
    if words and shared is not None and shared.rescorer is not None:
        parts = [f"words {shared.rescorer.evidence}"]
    return "; ".join(parts) or "no offset for this task"
