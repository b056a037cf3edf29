"""A frozen embedding model gets better at a retrieval task of yours from rewards: a BEIR folder, shown.

Half of the queries may be rewarded, the other half is only measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tttembed_rag.demo.callables import collect_callables
from tttembed_rag.demo.report import SHOWN, BudgetLine, ShownQuery, sentence, write_report
from tttembed_rag.embedders.local import minilm
from tttembed_rag.evaluate.collection import Collection, pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS, Dataset
from tttembed_rag.evaluate.experiment import ExperimentPlan, Row, run
from tttembed_rag.evaluate.explaining import moves_between
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors
from tttembed_rag.gate.deciding import fit
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Offset
from tttembed_rag.report.heldout import HeldOut, Lists, extremes, summed_up, traffic_of
from tttembed_rag.report.moving import lists_of
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.scales import Scale
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

_EMBEDDER = "all-MiniLM-L6-v2"
# Tokens read of a text.
_TEXT_TOKENS = 128
# Task success is known for every listed callable at no cost, so the whole list is rewarded.
_DEPTH = 30
_HOLDOUT = 0.5
# Documents of each search that a list may show, at this dose or another.
_LISTED = 30


def run_demo(
    data: Path,
    vectors: str | None,
    rewards: str,
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    say: Callable[[str], None],
    *,
    interactive: bool = False,
) -> list[dict[str, Any]]:
    """Run the demo, say it line by line, and return its rows.

    Args:
        data: A BEIR folder.

        vectors: Its stored vectors; None embeds its texts.

        rewards: Its stored scores, or ``qrels``.

        scale: Scale of the scores.

        seeds: Splits into rewarded and held-out queries.

        out: Folder of the report and the offsets, created if absent.

        say: Function that takes each line.

        interactive: Whether the report has a slider for the dose, and the script that it needs.
    """
    plan = ExperimentPlan(depth=_DEPTH, seeds=tuple(seeds), holdout=_HOLDOUT, scopes=("task", "query"))
    out.mkdir(parents=True, exist_ok=True)
    collection = _collection(data, vectors, rewards, scale, say)
    texts = collection.dataset
    judge = "task success, simulated by the labels" if collection.simulated else collection.judge
    say(f"{len(texts.documents)} documents, {len(texts.queries)} queries, rewards: {judge}")

    pool = len(texts.queries) - round(_HOLDOUT * len(texts.queries))
    budgets = (*(size for size in (8, 16, 32, 64, 128) if size < pool), pool)
    rows = list(run([collection], replace(plan, rewarded=budgets)))
    lines = [_line([row for row in rows if row.rewarded == budget]) for budget in budgets]
    say("")
    say(f"Queries nobody judged: nDCG@10 on the held-out half, mean of {len(seeds)} splits")
    say("rewarded     raw    plain rule    with gate  [95% of queries]   worst split  published")
    for line in lines:
        say(str(line))
    say("")
    say(f"Queries that were judged ({budgets[-1]} at depth {_DEPTH}): nDCG@10 on the rewarded half")
    judged = {
        name: _mean([row for row in rows if row.rewarded == budgets[-1] and row.population == "rewarded"], scope)
        for name, scope in (("raw", "raw"), ("direct rerank", "rerank"), ("private offsets", "query"))
    }
    say("  ".join(f"{name} {value:.3f}" for name, value in judged.items()))

    largest = [row for row in rows if row.rewarded == budgets[-1] and row.scope == "task" and row.gated]
    seed = next((row.seed for row in largest if row.published), seeds[0])
    offsets, examples, held_out = _look_closer(collection, seed, judge)
    task = offsets[f"task:{texts.name}"]
    say("")
    say(f"The offset of split {seed}, {task.n} rewarded queries: {task.evidence}")
    for example in examples:
        say("")
        say(f"{example.title}: {example.query!r}  nDCG@10 {example.before:.2f} -> {example.after:.2f}")
        for direction, moves in (("rose", example.rose), ("fell", example.fell)):
            say(f"  {direction}: {'; '.join(map(sentence, moves)) or 'nothing'}")

    offsets.save(out / "offsets.safetensors")
    page = out / "report.html"
    write_report(page, texts.name, judge, lines, judged, task, held_out, rows, interactive=interactive)
    say("")
    say(f"Report: {page}   Offsets: {out / 'offsets.safetensors'}")
    return [row.as_dict() for row in rows]


def standard_library() -> Dataset:
    """The standard library's callables and the requests they answer."""
    callables = collect_callables()
    table = resources.files("tttembed_rag.demo").joinpath("requests.tsv").read_text(encoding="utf-8")
    queries, qrels = {}, {}
    for number, line in enumerate(table.splitlines()[1:]):
        request, answers = line.split("\t")
        relevant = {callables.canonical[name]: 1.0 for name in answers.split(",") if name in callables.canonical}
        if relevant:  # another Python version may lack a callable
            queries[f"request-{number}"] = request
            qrels[f"request-{number}"] = relevant
    return Dataset("python-standard-library", callables.texts, queries, qrels)


def _collection(data: Path, vectors: str | None, rewards: str, scale: Scale, say: Callable[[str], None]) -> Collection:
    dataset = load_beir(data)
    scores = load_scores(data, rewards) if rewards != QRELS else None
    if scores is not None:
        dataset = dataset.only(scores)
    if vectors:
        docs, queries = load_vectors(data, vectors, dataset)
    else:
        say(f"Embedding {len(dataset.documents)} documents with {_EMBEDDER} ...")
        model = minilm(max_tokens=_TEXT_TOKENS, progress=sys.stderr.isatty())
        docs = model.embed_documents(list(dataset.documents.values()))
        queries = model.embed_queries(list(dataset.queries.values()))
    embedder = vectors or _EMBEDDER
    return Collection.of(dataset, docs, queries, embedder=embedder, judge=rewards, scores=scores, scale=scale)


def _line(rows: Sequence[Row]) -> BudgetLine:
    """The held-out rows of one budget."""
    held = [row for row in rows if row.population == "heldout"]
    gated = [row for row in held if row.scope == "task" and row.gated]
    return BudgetLine(
        rewarded=gated[0].rewarded,
        raw=_mean(held, "raw"),
        plain=float(np.mean([row.ndcg10 for row in held if row.scope == "task" and not row.gated])),
        gated=float(np.mean([row.ndcg10 for row in gated])),
        worst=min(row.delta for row in gated),
        low=float(np.mean([row.ci_low for row in gated])),
        high=float(np.mean([row.ci_high for row in gated])),
        published=sum(row.published for row in gated),
        seeds=len(gated),
    )


def _mean(rows: Sequence[Row], scope: str) -> float:
    """Mean nDCG@10 of a scope, gated where it has a gate."""
    return float(
        np.mean([row.ndcg10 for row in rows if row.scope == scope and (row.gated or scope in ("raw", "rerank"))])
    )


def _look_closer(collection: Collection, seed: int, judge: str) -> tuple[Offsets, list[ShownQuery], HeldOut]:
    """The gated task offset of one split, its effect on three held-out queries, and on all of them."""
    pool, held = split(collection, seed, _HOLDOUT)
    offsets = fit(pooled_rewards([collection], [pool], _DEPTH), scope="task")
    task = collection.dataset.name
    shifted = offsets.apply(collection.query_vectors, task=task)
    after = collection.measure(shifted, held)
    held_out = _held_out(collection, held, shifted, after, offsets.find(task), f"split {seed}, judge: {judge}")
    if offsets.find(task) is None:
        return offsets, [], held_out
    order = held[np.argsort((after - collection.raw)[held], kind="stable")]
    titled = {"Most improved": order[-1], "In the middle": order[len(order) // 2], "Most harmed": order[0]}
    examples = [_example(title, collection, int(q), shifted, after) for title, q in titled.items()]
    return offsets, examples, held_out


def _held_out(
    collection: Collection, held: IntArray, shifted: FloatArray, after: Float64, offset: Offset | None, which: str
) -> HeldOut:
    """What the *offset* does to the queries *held*: nDCG@10 by the labels, of a search in the whole collection."""
    lists = [collection.index.search(vectors[held], _LISTED)[1] for vectors in (collection.query_vectors, shifted)]
    summary = summed_up(
        collection.raw[held],
        after[held],
        collection.measure_reranked(held, _DEPTH)[held],
        measure="by the labels",
        method=f"Half of the queries are served by an offset that was learned from the other half ({which}).",
        traffic=traffic_of(lists[0][:, :SHOWN], lists[1][:, :SHOWN], len(collection.doc_ids)),
    )
    if offset is None:
        return summary

    def shown(place: int) -> Lists:
        query, rows = int(held[place]), np.union1d(lists[0][place], lists[1][place])
        query_id, vector = str(collection.query_ids[query]), collection.query_vectors[query]
        texts, labels = collection.dataset.documents, collection.dataset.qrels[query_id]
        candidates = [
            Candidate(name, collection.doc_vectors[row], texts[name], labels.get(name))
            for row in rows.tolist()
            for name in [str(collection.doc_ids[row])]
        ]
        served = Served(query_id, vector, candidates, collection.dataset.queries[query_id], collection.dataset.name)
        dosed = offset.dosed(vector / np.linalg.norm(vector))
        measured = float(collection.raw[query]), float(after[query])
        return lists_of(served, dosed, offset.key, before=measured[0], after=measured[1])

    worst, best = extremes((after - collection.raw)[held])
    return replace(summary, worst=tuple(map(shown, worst)), best=tuple(map(shown, best)))


def _example(title: str, collection: Collection, query: int, shifted: FloatArray, measured: Float64) -> ShownQuery:
    """The effect of the *shifted* query vectors on one query of the collection."""
    query_id, documents = str(collection.query_ids[query]), collection.dataset.documents
    both = np.stack([collection.query_vectors[query], shifted[query]])
    return ShownQuery(
        title=title,
        query=collection.dataset.queries[query_id],
        before=float(collection.raw[query]),
        after=float(measured[query]),
        moves=moves_between(documents, collection.index, both, collection.dataset.qrels[query_id], top=SHOWN),
    )
