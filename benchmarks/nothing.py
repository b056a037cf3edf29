"""Does a floor refuse what has no answer, and how many answers does it lose?

    python benchmarks/nothing.py [--sets a,b] [--embedders minilm,e5] [--judges qrels,ce-minilm-multi]
        [--judged 100,200] [--seeds 0,1,2] [--cells CELLS.jsonl] [--json OUT.json] [--plot OUT.svg [--of IN.json]]

A collection's queries are judged ten deep with a declared judge, and at most 300 others are searched with their
offsets. An *alien* query is one of another collection, of 50 each (the four collections of tools are no aliens to each
other); a *hard* one is an own query whose right documents were taken out of the index. An answer is a document among
the first ten that the judge calls right, and it is lost where the query is refused. On *day one* the judged queries
have no verdicts. The *cosine of the header* is what the proxy hands out: a cut of the first cosine for each query.

Rivals have the same queries and the same bound (at most 5 % of the requests that have an answer are refused, 90 %; at
most 10 % where fewer than 45 were judged): a constant on the cosine, the first cosine less the median, the share of the
query's words that the best document has, and the judge, who is asked about the first three documents at every request:
with labels it is right in all that it sees, and of other judges' own score a constant is taken in the same way (they
were never asked about aliens). ECE is the expected calibration error of `relevance` in ten bins, in the judge's terms.
A curve has what each policy refuses at the cuts that lose so many answers, whoever may know these cuts.

A cell that stands in --cells is not measured twice. The whole table is about an hour on one core; LLMs graded the 43
queries of one collection alone:

    python benchmarks/nothing.py --cells CELLS.jsonl
    python benchmarks/nothing.py --cells CELLS.jsonl --embedders static,lsa --judges qrels
    python benchmarks/nothing.py --cells CELLS.jsonl --sets trec-dl19-passage --embedders minilm --judged 30 \
        --judges llama3.3-70b-4prompts-sum,llama3-8b-4prompts-sum,flant5large-4prompts-grade \
        --seeds 0,1,2,3,4,5,6,7,8,9 --json OUT.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from harm import HERE, NOISE, Bench, bench, has_vectors, judged
from scipy.special import betaincinv

from benchmarks.depth import SETS, scores_of
from tttembed_rag import Offsets, fit
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.gate.floors import first_floor
from tttembed_rag.offsets.floor import FEWEST, LIST, LOST, Floor, knowledge
from tttembed_rag.offsets.rescorer import Vocabulary

TOOLS = ("metatool", "seal-tools", "bfcl-functions", "apibench-hf")
QUERIES, ALIENS, BINS, FIRST = 300, 50, 10, 3
# The share that may be lost where fewer than `FEWEST` were judged.
MORE_LOST = 0.1
PARTS = ("certified", "lost", "requests lost", "lost by labels", "alien", "hard", "auroc alien", "auroc hard", "ece")
# What names a cell, and with its policy a line of the table.
CELL = ("embedder", "judge", "set", "judged", "seed")
LINE = ("embedder", "judge", "judged", "policy")
# Shares of answers lost at which a curve says what is refused.
LOSSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)
KINDS = ("alien", "hard")
# Policies that are drawn, by the classes of their lines.
DRAWN = {"floor": "ours", "constant cosine": "cosine", "words covered": "words", "first less median": "margin"}
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 345" role="img" aria-labelledby="t d" \
font-family="system-ui, sans-serif" font-size="13">
  <title id="t">Refused against lost</title>
  <desc id="d">Two panels. Across: the share of own answers that a cut loses. Up: the share of requests that it \
refuses, of alien ones on the left and of hard ones on the right. At five per cent, which is dashed, the line of the \
floor lies above those of a constant cosine, of words covered, and of the first cosine less the median. A dot is where \
the certified cut of each lies, left of the dashed line.</desc>
  <style>
    text {{ fill: #24292f; text-anchor: middle }} .left {{ text-anchor: end }} .right {{ text-anchor: start }}
    path {{ fill: none; stroke-width: 2 }} .zero {{ stroke: #d0d7de; stroke-width: 1 }}
    .bound {{ stroke: #cf222e; stroke-width: 1; stroke-dasharray: 5 4 }} .ours {{ stroke: #0969da }}
    .cosine {{ stroke: #57606a }} .words {{ stroke: #8c959f; stroke-dasharray: 7 4 }}
    .margin {{ stroke: #8c959f; stroke-dasharray: 2 3 }}
    .dot {{ fill: #ffffff; stroke-width: 2; stroke-dasharray: none }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e6edf3 }} .zero {{ stroke: #30363d }} .bound {{ stroke: #f85149 }} .ours {{ stroke: #4493f8 }}
      .cosine {{ stroke: #9198a1 }} .words {{ stroke: #6e7681 }} .margin {{ stroke: #6e7681 }} .dot {{ fill: #0d1117 }}
    }}
  </style>
  {parts}
</svg>
"""

# Query, texts, cosines and rows of what was found for it.
Found: TypeAlias = tuple[str, list[str], np.ndarray, np.ndarray]
# What a policy makes of a base vector and of what was found.
Score: TypeAlias = Callable[[np.ndarray, Found], float]


def searched(
    ground: Bench, vectors: np.ndarray, queries: Sequence[str], without: Sequence[set[int]] = ()
) -> list[Found]:
    """What a search with *vectors* finds, *without* some documents of each query."""
    similarities = vectors @ ground.unit_docs.T
    for row, gone in enumerate(without):
        similarities[row, list(gone)] = -2
    order = np.argsort(-similarities, axis=1)[:, :LIST]
    texts = np.array(list(ground.collection.dataset.documents.values()), dtype=object)
    return [
        (query, texts[rows].tolist(), found[rows], rows)
        for query, rows, found in zip(queries, order, similarities, strict=True)
    ]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors (m, d) at length 1."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def texts_of(ground: Bench, rows: np.ndarray) -> list[str]:
    """The texts of some queries."""
    return [ground.collection.dataset.queries[query] for query in ground.collection.query_ids[rows].tolist()]


def aliens_of(name: str, args: argparse.Namespace, embedder: str, seed: int) -> tuple[np.ndarray, list[str]]:
    """Vectors and texts of queries of other collections."""
    vectors, texts = [], []
    for other in SETS:
        if other == name or (name in TOOLS and other in TOOLS) or not has_vectors(args.data, other, embedder):
            continue
        ground = bench(args.data, args.cache, other, embedder, QRELS)
        rows = np.random.default_rng(seed).permutation(len(ground.collection.query_ids))[:ALIENS]
        vectors.append(unit(ground.collection.query_vectors[rows]))
        texts += texts_of(ground, rows)
    return np.concatenate(vectors), texts


def cut_of(scores: np.ndarray, answered: np.ndarray, lost: float) -> float:
    """The score below which at most a share *lost* of requests that have an answer are refused (90 %).

    Where hardly any has one, the requests are all that there are, as those of a floor.
    """
    lowest, refused = np.sort(scores[answered] if answered.sum() >= FEWEST else scores), 0
    while refused < len(lowest) and betaincinv(refused + 1, len(lowest) - refused, 0.9) <= lost:
        refused += 1
    return float(lowest[refused - 1]) if refused else -np.inf


def over_header(certificate: Floor, allowed: float, vector: np.ndarray, found: Found) -> float:
    """By how much the first cosine lies above the one that the proxy hands out with a query."""
    return float(found[2][0]) - (certificate.cosine(vector, allowed) or 0.0)


def auroc(above: np.ndarray, below: np.ndarray) -> float:
    """How likely one of those *above* has the higher score."""
    return float((above[:, None] > below).mean() + (above[:, None] == below).mean() / 2)


def calibration(likely: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error in bins of equal width."""
    of = np.minimum((likely * BINS).astype(int), BINS - 1)
    return float(sum(abs((likely - right)[of == place].sum()) for place in range(BINS)) / len(likely))


def cells(  # noqa: PLR0915 - one cell, from its split to its rows
    args: argparse.Namespace, embedder: str, judge: str, name: str, count: int, seed: int
) -> list[dict[str, Any]]:
    """A row for the floor, for day one and for each rival; none where the collection has fewer queries."""
    ground = bench(args.data, args.cache, name, embedder, QRELS if judge in NOISE else judge)
    collection, allowed = ground.collection, LOST if count >= FEWEST else MORE_LOST
    pool, _ = split(collection, seed, 0.3)
    if len(pool) < min(count, 150):
        return []
    pool = pool[:count]
    rewards = judged(pooled_rewards([collection], [pool], LIST), judge, seed)
    offsets = fit(replace(rewards, trusted=True))
    rows = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(collection.query_ids)), pool))[:QUERIES]
    scores = scores_of(ground, judge, seed)
    column = {document: place for place, document in enumerate(collection.doc_ids.tolist())}
    qrels = [collection.dataset.qrels[query] for query in collection.query_ids[rows].tolist()]
    highest = max(1.0, *(max(grades.values()) for grades in collection.dataset.qrels.values()))
    right = [{column[key]: grade / highest for key, grade in of.items() if grade > 0 and key in column} for of in qrels]
    own_vectors, own_texts = unit(collection.query_vectors[rows]), texts_of(ground, rows)
    alien_vectors, alien_texts = aliens_of(name, args, embedder, seed)

    def lists(live: Offsets) -> dict[str, list[tuple[np.ndarray, Found]]]:
        steered = unit(live.apply(own_vectors, task=name))
        alien = searched(ground, unit(live.apply(alien_vectors, task=name)), alien_texts)
        hard = searched(ground, steered, own_texts, [set(of) for of in right])
        own = searched(ground, steered, own_texts)
        vectors = {"own": own_vectors, "hard": own_vectors, "alien": alien_vectors}
        return {
            kind: list(zip(vectors[kind], found, strict=True))
            for kind, found in (("own", own), ("hard", hard), ("alien", alien))
        }

    def best_of(live: dict[str, list[tuple[np.ndarray, Found]]], score: Score) -> dict[str, np.ndarray]:
        return {kind: np.array([score(*one) for one in found]) for kind, found in live.items()}

    def row(policy: str, own: list, best: dict[str, np.ndarray], cut: float, **more: float) -> dict[str, Any]:
        by_labels = np.array(
            [any(of.get(int(place), 0) >= 0.5 for place in found[3]) for of, (_, found) in zip(right, own, strict=True)]
        )
        answered = np.array([(scores[row, found[3]] >= 0.5).any() for row, (_, found) in zip(rows, own, strict=True)])
        lost = best["own"] < cut
        cuts = np.quantile(best["own"][answered], LOSSES)
        return {
            "set": name, "embedder": embedder, "judge": judge, "judged": count, "seed": seed, "policy": policy,
            "queries": int(answered.sum()), "allowed": allowed, "certified": float(cut > -np.inf),
            "lost": float(lost[answered].mean()),
            "requests lost": float((answered & lost).mean()), "lost by labels": float(lost[by_labels].mean()),
            **{kind: float((best[kind] < cut).mean()) for kind in KINDS if kind in best},
            **{f"{kind} curve": (best[kind][:, None] < cuts).mean(axis=0).tolist() for kind in KINDS if kind in best},
            **{f"auroc {kind}": auroc(best["own"][by_labels], best[kind]) for kind in KINDS if kind in best},
            **more,
        }  # fmt: skip

    def relevance(live: Offsets) -> Callable[..., np.ndarray]:
        def known(vector: np.ndarray, found: Found) -> np.ndarray:
            query, texts, cosines, _ = found
            return live.relevance(cosines, vector=vector, query=query, texts=texts, task=name)

        return known

    table, found = [], lists(offsets)
    if offsets.certificate(name) is not None:
        ours, cut = relevance(offsets), offsets.floor(name, allowed)
        likely = np.concatenate([ours(*one) for one in found["own"]])
        liked = np.concatenate([scores[row, one[3]] >= 0.5 for row, (_, one) in zip(rows, found["own"], strict=True)])
        best = best_of(found, lambda *one: ours(*one).max())
        error = calibration(likely, liked)
        table.append(row("floor", found["own"], best, -np.inf if cut is None else cut, ece=error))
        certificate = offsets.certificate(name)
        cut, best = certificate.cosine(lost=allowed), best_of(found, partial(over_header, certificate, allowed))
        table.append(row("cosine of the header", found["own"], best, -np.inf if cut is None else 0.0))
    pool_vectors, pool_texts = unit(collection.query_vectors[pool]), texts_of(ground, pool)
    base = searched(ground, pool_vectors, pool_texts)
    day = first_floor(pool_vectors, [one[:3] for one in base], task=name)
    cut, first, plain = day.floor(name, allowed), relevance(day), lists(day)
    best = best_of(plain, lambda *one: first(*one).max())
    table.append(row("day one", plain["own"], best, -np.inf if cut is None else cut))
    known = Vocabulary.of(rewards.doc_texts.tolist())
    answers = np.array([(scores[row, one[3]] >= 0.5).any() for row, one in zip(pool, base, strict=True)])
    rivals: dict[str, Score] = {
        "constant cosine": lambda _, one: float(one[2][0]),
        "first less median": lambda _, one: float(one[2][0] - np.median(one[2])),
        "words covered": lambda _, one: float(knowledge(known, *one[:3])[:, 2].max()),
    }
    for policy, score in rivals.items():
        own = np.array([score(*one) for one in zip(pool_vectors, base, strict=True)])
        table.append(row(policy, plain["own"], best_of(plain, score), cut_of(own, answers, allowed)))
    asked = {
        kind: np.array([scores[row, one[3][:FIRST]].max() for row, (_, one) in zip(rows, plain[kind], strict=True)])
        for kind in ("own", "hard")
    }
    if judge in NOISE:  # it says of no alien that it has an answer
        asked["hard"], asked["alien"] = np.zeros(len(rows)), np.zeros(len(alien_texts))
    own = np.array([scores[row, one[3][:FIRST]].max() for row, one in zip(pool, base, strict=True)])
    table.append(row("judge of three", plain["own"], asked, 0.5 if judge in NOISE else cut_of(own, answers, allowed)))
    return table


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The means of some *rows*, and in how many of them more was lost than sampling explains."""
    parts = [part for part in PARTS if part in rows[0]]
    mean = {part: round(float(np.mean([row[part] for row in rows])), 4) for part in parts}
    parts = [part for part in (f"{kind} curve" for kind in KINDS) if part in rows[0]]
    curves = {part: np.mean([row[part] for row in rows], axis=0).round(4).tolist() for part in parts}
    most = [of + 1.645 * np.sqrt(of * (1 - of) / row["queries"]) for row in rows for of in (row["allowed"],)]
    broken = float(np.mean([row["lost"] > bound for row, bound in zip(rows, most, strict=True)]))
    named = {name: rows[0][name] for name in LINE}
    return {**named, "cells": len(rows), **mean, "broken": round(broken, 4), **curves}


def drawn(table: list[dict[str, Any]]) -> str:
    """An SVG of what is refused by what is lost: a line for each policy, with its certified cut as a dot."""
    most = max(row["judged"] for row in table)
    shown = [row for row in table if (row["embedder"], row["judge"], row["judged"]) == ("minilm", QRELS, most)]
    parts = []
    for left, kind in ((60, "alien"), (370, "hard")):

        def place(lost: float, refused: float, left: int = left) -> tuple[int, int]:
            return round(left + 240 * lost / LOSSES[-1]), round(270 - 230 * refused)

        for at in (0.0, 0.25, 0.5, 0.75, 1.0):
            parts.append(f'<path class="zero" d="M{left} {place(0, at)[1]} h240"/>')
            parts.append(f'<text x="{left - 6}" y="{place(0, at)[1] + 4}" class="left">{at:.0%}</text>')
        parts += [f'<text x="{place(at, 0)[0]}" y="287">{at:.0%}</text>' for at in (0.0, 0.05, 0.1, 0.15, 0.2)]
        parts.append(f'<path class="bound" d="M{place(LOST, 0)[0]} 270 V40"/>')
        parts.append(f'<text x="{left + 120}" y="30">{kind} requests refused</text>')
        parts.append(f'<text x="{left + 120}" y="308">answers lost</text>')
        for row in shown:
            if row["policy"] not in DRAWN:
                continue
            name = DRAWN[row["policy"]]
            line = " L".join("{} {}".format(*place(*one)) for one in zip(LOSSES, row[f"{kind} curve"], strict=True))
            x, y = place(row["lost"], row[kind])
            parts.append(f'<path class="{name}" d="M{line}"/><circle class="{name} dot" cx="{x}" cy="{y}" r="4"/>')
    for number, (policy, name) in enumerate(DRAWN.items()):
        parts.append(f'<path class="{name}" d="M{60 + 142 * number} 330 h18"/>')
        parts.append(f'<text x="{84 + 142 * number}" y="334" class="right">{policy}</text>')
    return SVG.format(parts="\n  ".join(parts))


def main() -> None:
    """Print a line for each policy, and write or draw them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE / ".cache")
    for name, default in (("sets", SETS), ("embedders", ("minilm", "e5")), ("judges", (QRELS, "ce-minilm-multi"))):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(default))
    for name, default in (("judged", [100, 200]), ("seeds", [0, 1, 2])):
        parser.add_argument(f"--{name}", type=lambda text: [int(part) for part in text.split(",")], default=default)
    parser.add_argument("--cells", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--of", type=Path, help="What --json wrote, to be drawn without being measured again.")
    args = parser.parse_args()
    table = json.loads(args.of.read_text()) if args.of else measured(args)
    if args.json:
        args.json.write_text("[\n" + ",\n".join(map(json.dumps, table)) + "\n]\n")
    if args.plot:
        args.plot.write_text(drawn(table))


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of all cells that were measured, now or before."""
    rows = (
        [json.loads(line) for line in args.cells.read_text().splitlines()]
        if args.cells and args.cells.is_file()
        else []
    )
    known = {tuple(row[name] for name in CELL) for row in rows}
    for cell in product(args.embedders, args.judges, args.sets, args.judged, args.seeds):
        if cell in known or not has_vectors(args.data, cell[2], cell[0]):
            continue
        rows += (fresh := cells(args, *cell))
        if args.cells:
            with args.cells.open("a") as out:
                out.writelines(json.dumps(row) + "\n" for row in fresh)
    rows.sort(key=lambda row: [row[name] for name in CELL])
    lines = {tuple(row[name] for name in LINE): [] for row in rows}
    for row in rows:
        lines[tuple(row[name] for name in LINE)].append(row)
    table = [summed(of) for of in lines.values()]
    for line in table:
        print(line)
    return table


if __name__ == "__main__":
    main()
