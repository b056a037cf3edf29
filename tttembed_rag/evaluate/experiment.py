"""Fit on some queries of a workload, measure on others: the rows behind `tttembed eval`.

A workload is one or several collections, each one task. Per seed every collection's queries are
split into held-out queries and a pool; water-filling draws the rewarded queries from the pools.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.collection import LISTED, Collection, check_workload, pooled_rewards, split
from tttembed_rag.evaluate.measures import LEAST_GAIN, mean_interval
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.fit import fit
from tttembed_rag.judging.plan import water_fill
from tttembed_rag.offsets.offset import AnyScope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.offsets.orders import in_fused_order
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# One measured cell; every value is one of JSON.
Row: TypeAlias = dict[str, Any]
# Offsets by scope and whether they passed the gate, and the seconds that the fit took.
_Fits: TypeAlias = dict[tuple[AnyScope, bool], tuple[Offsets, float]]
Baseline: TypeAlias = Literal["raw", "rerank", "fused", "hybrid"]
# `words` is `auto`, with what it finds sorted by the task's rescorer.
Measured: TypeAlias = AnyScope | Literal["words"]
_SCOPES = (*get_args(AnyScope), "words")
# Baselines that nothing was learned for, and what a row says of them.
_UNLEARNED = {
    "raw": "no offset",
    "rerank": "judged documents in reward order",
    "hybrid": "reciprocal rank fusion with BM25, no judge",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    """The fits and baselines to measure.

    Attributes:
        rewarded: Rewarded queries per task, each a cell of its own.
        depth: Rewarded candidates per query.
        seeds: Seeds of the split into rewarded and held-out queries.
        holdout: Share of each task's queries that are never rewarded, in (0, 1).
        baselines: Baselines measured; ``rerank`` is direct rerank, as if every query were judged; ``fused`` is that of
            the search with ``auto``, search and judge weighing the same, for rewarded queries that it moves;
            ``hybrid`` is reciprocal rank fusion of the search and BM25, for which no judge is asked.
        gates: With the gate, without, or both; ``auto`` and ``words`` are always gated.
        trusted: Whether the judge is vouched for, as in `Rewards`.
        recipe: How offsets are learned.
    """

    rewarded: tuple[int, ...] = (16, 64, 200)
    depth: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)
    holdout: float = 0.3
    scopes: tuple[Measured, ...] = ("global", "task", "local", "query", "auto")
    baselines: tuple[Baseline, ...] = ("raw", "rerank")
    gates: tuple[bool, ...] = (True, False)
    trusted: bool | None = None
    recipe: Recipe = Recipe()

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


def run(workload: Sequence[Collection], plan: ExperimentPlan) -> Iterator[Row]:
    """Every row of *plan* on a workload of one or several collections.

    The interval is a paired bootstrap over queries. Those that cannot be measured are `left_out`, of all populations
    together; a population without any other has no row. `rerank_delta` is what direct rerank at this depth would gain
    if every query of the population were judged, and `share` is `delta` over it: of the gain of a reranker, the part
    that is kept without asking it. It is None where direct rerank gains less than `LEAST_GAIN`.
    """
    check_workload(workload)
    baselines = [
        {
            "raw": collection.raw,
            "rerank": collection.measure_reranked(np.arange(len(collection.raw)), plan.depth),
            **({"hybrid": collection.measure_hybrid()} if "hybrid" in plan.baselines else {}),
        }
        for collection in workload
    ]
    for seed in plan.seeds:
        for rewarded in plan.rewarded:
            yield from _cell(workload, baselines, plan, seed, rewarded)


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
    baselines: Sequence[Mapping[str, Float64]],
    plan: ExperimentPlan,
    seed: int,
    rewarded: int,
) -> Iterator[Row]:
    judged, held = drawn(workload, plan, seed, rewarded)
    rewards = replace(pooled_rewards(workload, judged, plan.depth), trusted=plan.trusted)
    fitted: _Fits = {}
    for scope, gated in plan.fits:
        began = time.perf_counter()
        offsets = fit(rewards, scope=scope, gate=gated, recipe=plan.recipe)
        fitted[scope, gated] = offsets, time.perf_counter() - began
    for collection, unlearned, rewarded_rows, heldout in zip(workload, baselines, judged, held, strict=True):
        everyone = np.arange(len(collection.raw))
        populations = {"heldout": heldout, "rewarded": rewarded_rows, "all": everyone}
        measured_rows = {name: rows[collection.measured[rows]] for name, rows in populations.items()}
        populations = {name: rows for name, rows in measured_rows.items() if len(rows)}
        of_collection = {
            "dataset": collection.dataset.name,
            "embedder": collection.embedder,
            "rewards": collection.judge,
            "simulated": collection.simulated,
            "seed": seed,
            "rewarded": rewarded,
            "rewarded_queries": len(rewarded_rows),
            "depth": plan.depth,
            "left_out": int((~collection.measured).sum()),
            "budget": sum(len(collection.candidates(q, plan.depth)[0]) for q in rewarded_rows.tolist()),
        }
        for outcome in _outcomes(collection, plan, unlearned, rewarded_rows, fitted):
            learned = outcome.scope not in unlearned
            for population, members in populations.items():
                measured, raw = outcome.measured[members], collection.raw[members]
                low, high = mean_interval(measured - raw)
                delta = float((measured - raw).mean())
                rerank_delta = float((unlearned["rerank"][members] - raw).mean())
                yield of_collection | {
                    "scope": outcome.scope,
                    "objective": plan.recipe.objective.name if learned else None,
                    "solver": plan.recipe.solver if learned else None,
                    "gated": outcome.gated,
                    "population": population,
                    "queries": len(members),
                    "ndcg10": float(measured.mean()),
                    "raw_ndcg10": float(raw.mean()),
                    "delta": delta,
                    "ci_low": low,
                    "ci_high": high,
                    "harmed_fraction": float((measured < raw - 1e-12).mean()),
                    "rerank_delta": rerank_delta,
                    "share": delta / rerank_delta if rerank_delta >= LEAST_GAIN else None,
                    "published": outcome.published,
                    "reason": outcome.reason,
                    "seconds": outcome.seconds,
                }


class _Outcome(NamedTuple):
    scope: str
    gated: bool
    measured: Float64
    published: bool
    reason: str
    seconds: float = 0.0


def _outcomes(
    collection: Collection, plan: ExperimentPlan, unlearned: Mapping[str, Float64], rewarded: IntArray, fitted: _Fits
) -> Iterator[_Outcome]:
    """nDCG@10 of every query under each baseline and each fit."""
    for name, reason in _UNLEARNED.items():
        if name in plan.baselines:
            yield _Outcome(name, False, unlearned[name], False, reason)
    task = collection.dataset.name
    if "fused" in plan.baselines:
        offsets, seconds = fitted["auto", True]
        moved = rewarded if offsets.find(task) is not None else rewarded[:0]
        measured = served_and_fused(collection, offsets, task, moved, plan.depth)
        reason = "judged documents by reward order and new search, where auto serves an offset"
        yield _Outcome("fused", True, measured, bool(moved.size), reason, seconds)
    for scope, gated in plan.contestants:
        offsets, seconds = fitted[_learned(scope), gated]
        rescorer = offsets.rescorer(task) if scope == "words" else None
        if rescorer is None:
            measured, published = served(collection, offsets, task)
        else:
            vectors = offsets.apply(collection.query_vectors, task=task)
            measured, published = collection.measure_rescored(vectors, rescorer), True
        yield _Outcome(scope, gated, measured, published, _reason(offsets, task, words=scope == "words"), seconds)


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
    lists = collection.search(vectors[rows], rows, LISTED)[1]
    return collection.measure_reordered(rows, lists, depth, in_fused_order)


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
