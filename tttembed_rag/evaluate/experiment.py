"""Fit on some queries of a workload, measure on others: the rows behind `tttembed eval`.

A workload is one or several collections, each one task. Per seed every collection's queries are
split into held-out queries and a pool; water-filling draws the rewarded queries from the pools.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.budget import water_fill
from tttembed_rag.errors import DataError, InputError
from tttembed_rag.evaluate.baselines import direct_rerank, fused
from tttembed_rag.evaluate.datasets import QRELS, Dataset, Judgments, load_beir, load_scores, load_vectors
from tttembed_rag.evaluate.intervals import mean_interval
from tttembed_rag.evaluate.measures import Float64, Graded
from tttembed_rag.fitting import ObjectiveName, SolverName
from tttembed_rag.gate import AnyScope, fit
from tttembed_rag.indexes import FaissIndex
from tttembed_rag.offsets import Offsets
from tttembed_rag.rewards import Rewards, Scale
from tttembed_rag.vectors import FloatArray, IntArray

Population: TypeAlias = Literal["heldout", "rewarded", "all"]
Baseline: TypeAlias = Literal["raw", "rerank", "fused"]

# Documents kept of a ranked list: direct rerank may lift any of them, nDCG@10 looks at the first 10.
_LISTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to fit and measure.

    Attributes:
        rewarded: Rewarded queries per task, each a cell of its own.

        depth: Rewarded candidates per query.

        seeds: Seeds of the split into rewarded and held-out queries.

        holdout: Share of each task's queries that are never rewarded, in (0, 1).

        scopes: Scopes fitted.

        baselines: Baselines measured; ``fused`` is direct rerank of what ``auto`` finds, search and judge
            weighing the same, for rewarded queries with a private offset.

        gates: With the gate, without, or both; ``auto`` is always gated.

        objective: Objective of the fit.

        solver: Solver of the fit.
    """

    rewarded: tuple[int, ...] = (16, 64, 200)
    depth: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)
    holdout: float = 0.3
    scopes: tuple[AnyScope, ...] = ("global", "task", "query", "auto")
    baselines: tuple[Baseline, ...] = ("raw", "rerank")
    gates: tuple[bool, ...] = (True, False)
    objective: ObjectiveName = "kd"
    solver: SolverName = "exact"

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
        for name, known in (("scopes", ("global", "task", "query", "auto")), ("baselines", ("raw", "rerank", "fused"))):
            if wrong := set(getattr(self, name)) - set(known):
                raise InputError(f"{name}: expected {', '.join(known)}, got {', '.join(sorted(wrong))}")

    @property
    def contestants(self) -> list[tuple[AnyScope, bool]]:
        """Every (scope, gated) pair to measure."""
        return [(scope, gated) for scope in self.scopes for gated in ((True,) if scope == "auto" else self.gates)]

    @property
    def fits(self) -> list[tuple[AnyScope, bool]]:
        """Every (scope, gated) pair to fit, each once."""
        fused_too: list[tuple[AnyScope, bool]] = [("auto", True)] if "fused" in self.baselines else []
        return list(dict.fromkeys([*self.contestants, *fused_too]))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured cell; nDCG@10 has linear gains, the interval is a paired bootstrap over queries."""

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
    published: bool
    reason: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """A data set with its vectors, its index, its rewards and its base rankings.

    Attributes:
        dataset: Texts and labels.

        embedder: Name of the vectors.

        judge: Name of the rewards.

        scores: The judge's scores; for `QRELS` a pair without a label scores 0.

        simulated: Whether the rewards are relevance labels, not a judge's.

        scale: What the scores mean.

        doc_vectors: (N, d).

        query_vectors: (M, d).

        index: Search over *doc_vectors*.

        graded: nDCG@10 of ranked documents.

        base: (M, 100) rows of documents in base order.

        raw: (M,) nDCG@10 of the base order.
    """

    dataset: Dataset
    embedder: str
    judge: str
    scores: Judgments
    simulated: bool
    scale: Scale
    doc_vectors: FloatArray
    query_vectors: FloatArray
    index: FaissIndex
    graded: Graded
    doc_ids: NDArray[np.str_]
    query_ids: NDArray[np.str_]
    base: IntArray
    raw: Float64
    _candidates: dict[int, tuple[int, IntArray, Float64]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        doc_vectors: FloatArray,
        query_vectors: FloatArray,
        *,
        embedder: str,
        judge: str = QRELS,
        scores: Judgments | None = None,
        scale: Scale | None = None,
        index: Literal["flat", "hnsw"] = "flat",
    ) -> Collection:
        """Index and rank *dataset*; without *scores* its relevance labels act as the judge."""
        searched = FaissIndex.from_vectors(doc_vectors, kind=index)
        doc_ids, query_ids = np.array(list(dataset.documents)), np.array(list(dataset.queries))
        graded = Graded.of(dataset.qrels, list(dataset.queries), list(dataset.documents))
        base = searched.search(query_vectors, _LISTED)[1]
        simulated = scores is None
        return cls(
            dataset,
            embedder,
            judge,
            dataset.qrels if scores is None else scores,
            simulated,
            label_scale(dataset) if simulated else scale or Scale(),
            doc_vectors,
            query_vectors,
            searched,
            graded,
            doc_ids,
            query_ids,
            base,
            graded(np.arange(len(base)), base),
        )

    @property
    def judge_named(self) -> str:
        """The judge as it is told to people: a simulated one is called so."""
        return f"{self.judge} (simulated judge)" if self.simulated else self.judge

    def candidates(self, query: int, depth: int) -> tuple[IntArray, Float64]:
        """The first *depth* judged documents of a query in base order, and their scores.

        An unjudged document is skipped and the next one taken.
        """
        if query not in self._candidates or self._candidates[query][0] < depth:
            self._candidates[query] = (depth, *self._judged(query, depth))
        _, rows, scores = self._candidates[query]
        return rows[:depth], scores[:depth]

    def _judged(self, query: int, depth: int) -> tuple[IntArray, Float64]:
        scores = self.scores.get(str(self.query_ids[query]), {})
        ranked = self.base[query]
        places = self._places(ranked, scores)
        if len(places) < depth:  # the judged ones lie deeper than the kept list
            ranked = self.index.search(self.query_vectors[query : query + 1], len(self.index))[1][0]
            places = self._places(ranked, scores)
        rows = ranked[places[:depth]]
        values = [max(0.0, scores.get(doc, 0.0)) if self.simulated else scores[doc] for doc in self.doc_ids[rows]]
        return rows, np.array(values)

    def _places(self, ranked: IntArray, scores: Mapping[str, float]) -> list[int]:
        return [place for place, doc in enumerate(self.doc_ids[ranked].tolist()) if self.simulated or doc in scores]

    def measure(self, query_vectors: FloatArray, rows: IntArray) -> Float64:
        """nDCG@10 (M,) of a new search with *query_vectors*, for *rows*; the others keep raw."""
        return self._measured(rows, self.index.search(query_vectors[rows], 10)[1])

    def measure_reranked(self, rows: IntArray, depth: int) -> Float64:
        """nDCG@10 (M,) after direct rerank of *rows* at *depth*; the others keep raw."""
        return self._measured(rows, [direct_rerank(self.base[q], *self.candidates(q, depth)) for q in rows.tolist()])

    def measure_fused(self, query_vectors: FloatArray, rows: IntArray, depth: int) -> Float64:
        """nDCG@10 (M,) of a new search fused with the rewards at *depth*, for *rows*; the others keep raw."""
        found = zip(rows.tolist(), self.index.search(query_vectors[rows], _LISTED)[1], strict=True)
        return self._measured(rows, [fused(ranked, *self.candidates(q, depth)) for q, ranked in found])

    def _measured(self, rows: IntArray, lists: Sequence[IntArray] | IntArray) -> Float64:
        """nDCG@10 (M,) where each of *rows* is shown its list; the others keep raw."""
        measured = self.raw.copy()
        if rows.size:
            measured[rows] = self.graded(rows, np.asarray(lists))
        return measured


def label_scale(dataset: Dataset) -> Scale:
    """The scale of the labels of *dataset* where they act as the judge."""
    return Scale("rubric", 0.0, max(1.0, *(max(grades.values()) for grades in dataset.qrels.values())))


def open_collection(
    folder: Path, *, vectors: str, rewards: str, scale: Scale, index: Literal["flat", "hnsw"] = "flat"
) -> Collection:
    """The collection in a BEIR *folder* with its stored vectors and rewards.

    Queries the judge never scored are left out: rewarded and held-out queries then come from one
    population, also where a judge only saw the first few hundred.
    """
    dataset = load_beir(folder)
    scores = None if rewards == QRELS else load_scores(folder, rewards)
    if scores is not None:
        dataset = dataset.only(scores)
    docs, queries = load_vectors(folder, vectors, dataset)
    return Collection.of(
        dataset, docs, queries, embedder=vectors, judge=rewards, scores=scores, scale=scale, index=index
    )


def run(workload: Sequence[Collection], plan: Plan) -> Iterator[Row]:
    """Every row of *plan* on a workload of one or several collections."""
    names = [collection.dataset.name for collection in workload]
    if len(set(names)) < len(names):
        raise DataError(f"data sets: expected different names, got {', '.join(names)}")
    if len(widths := sorted({collection.doc_vectors.shape[1] for collection in workload})) > 1:
        raise DataError(f"data sets: expected vectors of one width, got {widths}")
    for seed in plan.seeds:
        splits = [split(collection, seed, plan.holdout) for collection in workload]
        for rewarded in plan.rewarded:
            sizes = [len(pool) for pool, _ in splits]
            drawn = water_fill(sizes, sum(min(rewarded, size) for size in sizes))
            judged = [pool[rows] for (pool, _), rows in zip(splits, drawn, strict=True)]
            held = [held for _, held in splits]
            yield from _cell(workload, plan, seed, rewarded, judged, held)


def pooled_rewards(workload: Sequence[Collection], judged: Sequence[IntArray], depth: int) -> Rewards:
    """The rewards of the *judged* queries of every collection, its name as their task."""
    candidates, scores, queries, documents, tasks, ids = [], [], [], [], [], []
    first = 0
    for collection, rows in zip(workload, judged, strict=True):
        pairs = [collection.candidates(q, depth) for q in rows.tolist()]
        used, local = np.unique(np.concatenate([docs for docs, _ in pairs]) if pairs else [], return_inverse=True)
        ends = np.cumsum([len(docs) for docs, _ in pairs])
        candidates += np.split(local + first, ends[:-1]) if pairs else []
        scores += [collection.scale.to_unit(values) for _, values in pairs]
        queries.append(collection.query_vectors[rows])
        documents.append(collection.doc_vectors[used.astype(np.intp)])
        tasks += [collection.dataset.name] * len(rows)
        ids += collection.query_ids[rows].tolist()
        first += len(used)
    return Rewards.from_indexed(
        np.concatenate(queries),
        np.concatenate(documents),
        candidates,
        scores,
        tasks,
        ids,
        judge=" + ".join(sorted({collection.judge_named for collection in workload})),
    )


def split(collection: Collection, seed: int, holdout: float) -> tuple[IntArray, IntArray]:
    """(pool, held-out) query rows, shuffled by *seed*; the pool has only queries with a judged document."""
    order = np.random.default_rng(seed).permutation(len(collection.query_ids))
    held = max(1, round(holdout * len(order)))
    pool = np.array([q for q in order[held:].tolist() if len(collection.candidates(q, 1)[0])], dtype=np.intp)
    if not pool.size:
        raise DataError(f"{collection.dataset.name}: expected judged queries outside the held-out ones, got none")
    return pool, order[:held]


def _cell(
    workload: Sequence[Collection],
    plan: Plan,
    seed: int,
    rewarded: int,
    judged: Sequence[IntArray],
    held: Sequence[IntArray],
) -> Iterator[Row]:
    rewards = pooled_rewards(workload, judged, plan.depth)
    fitted = {(scope, gated): _fit(rewards, plan, scope, gated) for scope, gated in plan.fits}
    for collection, mine, heldout in zip(workload, judged, held, strict=True):
        everyone = np.arange(len(collection.raw))
        populations: dict[Population, IntArray] = {"heldout": heldout, "rewarded": mine, "all": everyone}
        budget = sum(len(collection.candidates(q, plan.depth)[0]) for q in mine.tolist())
        for outcome in _outcomes(collection, plan, mine, fitted):
            for population, members in populations.items():
                measured, raw = outcome.measured[members], collection.raw[members]
                low, high = mean_interval(measured - raw)
                yield Row(
                    dataset=collection.dataset.name,
                    embedder=collection.embedder,
                    rewards=collection.judge,
                    simulated=collection.simulated,
                    seed=seed,
                    rewarded=rewarded,
                    rewarded_queries=len(mine),
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
                    delta=float((measured - raw).mean()),
                    ci_low=low,
                    ci_high=high,
                    harmed_fraction=float((measured < raw - 1e-12).mean()),
                    published=outcome.published,
                    reason=outcome.reason,
                    seconds=outcome.seconds,
                )


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


def _fit(rewards: Rewards, plan: Plan, scope: AnyScope, gated: bool) -> _Fitted:
    began = time.perf_counter()
    offsets = fit(rewards, scope=scope, gate=gated, objective=plan.objective, solver=plan.solver)
    return _Fitted(offsets, time.perf_counter() - began)


def _outcomes(
    collection: Collection, plan: Plan, mine: IntArray, fitted: Mapping[tuple[AnyScope, bool], _Fitted]
) -> Iterator[_Outcome]:
    """nDCG@10 of every query under each baseline and each fit."""
    if "raw" in plan.baselines:
        yield _Outcome("raw", False, collection.raw, False, "no offset", 0.0, False)
    if "rerank" in plan.baselines:
        reranked = collection.measure_reranked(mine, plan.depth)
        yield _Outcome("rerank", False, reranked, False, "judged documents in reward order", 0.0, False)
    task = collection.dataset.name
    if "fused" in plan.baselines:
        offsets = fitted["auto", True].offsets
        believed = privately_served(collection, offsets, task, mine)
        measured, published = served_and_fused(collection, offsets, task, believed, plan.depth), bool(believed.size)
        reason = "judged documents by reward order and new search, where auto serves a private offset"
        yield _Outcome("fused", True, measured, published, reason, fitted["auto", True].seconds, True)
    for scope, gated in plan.contestants:
        offsets, seconds = fitted[scope, gated].offsets, fitted[scope, gated].seconds
        measured, published = served(collection, offsets, task)
        yield _Outcome(scope, gated, measured, published, _reason(offsets, task), seconds, True)


def served(collection: Collection, offsets: Offsets, task: str) -> tuple[Float64, bool]:
    """nDCG@10 of every query under *offsets*, and whether any of them was moved."""
    ids = collection.query_ids.tolist()
    moved = np.flatnonzero([offsets.find(task, query_id) is not None for query_id in ids])
    vectors = offsets.apply(collection.query_vectors, task=task, query_id=ids)
    return collection.measure(vectors, moved), bool(moved.size)


def privately_served(collection: Collection, offsets: Offsets, task: str, rows: IntArray) -> IntArray:
    """Those of the queries *rows* that *offsets* serve a private offset."""
    found = [offsets.find(task, query_id) for query_id in collection.query_ids[rows].tolist()]
    return rows[np.array([offset is not None and offset.scope == "query" for offset in found], dtype=np.bool_)]


def served_and_fused(collection: Collection, offsets: Offsets, task: str, rows: IntArray, depth: int) -> Float64:
    """nDCG@10 of every query where *rows* are fused; the others keep raw."""
    vectors = offsets.apply(collection.query_vectors, task=task, query_id=collection.query_ids.tolist())
    return collection.measure_fused(vectors, rows, depth)


def _reason(offsets: Offsets, task: str) -> str:
    """The evidence behind what *task* is served: its shared offset's, then its private ones'."""
    mine = [offset for offset in offsets.values() if offset.task in (task, None)]
    shared = max((offset for offset in mine if offset.query_id is None), key=lambda o: o.scope == "task", default=None)
    private = next((offset for offset in mine if offset.query_id is not None), None)
    parts = [f"{offset.scope} {offset.evidence}" for offset in (shared, private) if offset is not None]
    return "; ".join(parts) or "no offset for this task"
