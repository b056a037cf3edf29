"""Questions made of the documents alone: what is learned from them, on the real queries of six collections.

    python benchmarks/written.py --judge cross-encoder:PATH [--scores CACHE.json] [--json OUT.json] [--data DIR]

A hundred documents of each collection give a question each: the title where it has four words or more, else the first
sentence where there are several, else the second half of the words; words are kept as they are. Two judges say what is
relevant among the first ten documents of a question: the document itself alone (*own answer*), or --judge, which also
knows better documents and hard negatives (*judged*). What is fitted, declared, is measured on all real queries, none of
which was used; beside it stands the held-out figure that `tttembed` prints of such a fit. Then the first real verdicts,
simulated by the labels: learned without it, on top of it, and on top of it where it helped the queries that these
verdicts are about. The model that writes questions better, a chat model, needs a network and was not tried.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tttembed_store.worker.trial import live_gains

from benchmarks.harm import HERE, HOLDOUT, Bench, bench
from tttembed_rag import Offsets, Rewards, fit
from tttembed_rag.embedders import Embedder, open_embedder
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.judges import Judge, open_judge

SETS = ("metatool", "seal-tools", "bfcl-functions", "cranfield", "scifact", "chroma-chunks")
QUESTIONS, DEPTH = 100, 10
# Real queries that were judged first.
FIRST = (16, 64)
SEEDS = (0, 1, 2)
# Words that a title or a sentence has at least to be a question.
LEAST_WORDS = 4
RESAMPLES = 2000


def written(title: str, text: str) -> tuple[str, str]:
    """The question that a document gives, and which part of it that is; empty where it is too short."""
    words = text.split()
    first, *more = re.split(r"(?<=[.!?])\s+", text.strip())
    parts = {"title": title, "first sentence": first if more else "", "second half": " ".join(words[len(words) // 2 :])}
    part = next((name for name, of in parts.items() if len(of.split()) >= LEAST_WORDS), "second half")
    return (parts[part], part) if len(parts[part].split()) >= LEAST_WORDS else ("", part)


def questions(folder: Path) -> tuple[list[str], list[str], str]:
    """Ids of a hundred documents of a collection, their questions, and the part that most of them are."""
    records = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    made = {str(r["_id"]): written(str(r.get("title") or ""), str(r.get("text") or "")) for r in records}
    usable = [document for document, (question, _) in made.items() if question]
    drawn = np.random.default_rng(0).permutation(len(usable))[:QUESTIONS].tolist()
    documents = [usable[row] for row in drawn]
    parts = [made[document][1] for document in documents]
    return documents, [made[document][0] for document in documents], max(set(parts), key=parts.count)


def candidates(b: Bench, vectors: np.ndarray, own: Sequence[int]) -> list[np.ndarray]:
    """The first ten documents of each question, its own among them."""
    found = b.collection.index.search(vectors, DEPTH)[1]
    return [rows if row in rows else np.append(rows[:-1], row) for rows, row in zip(found, own, strict=True)]


def rewards_of(
    b: Bench, texts: Sequence[str], vectors: np.ndarray, found: Sequence[np.ndarray], scores: Sequence[np.ndarray]
) -> Rewards:
    """The rewards of written questions, as those of a collection's queries are."""
    collection = b.collection
    used, places = np.unique(np.concatenate(found), return_inverse=True)
    documents = list(collection.dataset.documents.values())
    return Rewards.from_indexed(
        vectors,
        collection.doc_vectors[used],
        np.split(places, np.cumsum([len(rows) for rows in found])[:-1]),
        list(scores),
        [collection.dataset.name] * len(texts),
        [f"written {number}" for number in range(len(texts))],
        judge="written questions",
        doc_ids=collection.doc_ids[used].tolist(),
        query_texts=list(texts),
        doc_texts=[documents[row] for row in used],
    )


def judged(judge: Judge, cache: Path | None, name: str, pairs: Sequence[tuple[str, list[str]]]) -> list[np.ndarray]:
    """The rewards of a judge for the documents of each question, asked once and kept in *cache*."""
    kept: dict[str, Any] = json.loads(cache.read_text(encoding="utf-8")) if cache and cache.is_file() else {}
    if name not in kept:
        kept[name] = [[float(score or 0.0) for score in scores] for scores in judge.score_many(list(pairs))]
        if cache:
            cache.write_text(json.dumps(kept), encoding="utf-8")
    return [judge.scale.to_unit(np.array(scores)) for scores in kept[name]]


def interval(changes: np.ndarray) -> dict[str, float]:
    """Mean change with its 95 % interval by bootstrap over queries."""
    drawn = np.random.default_rng(0).integers(0, len(changes), (RESAMPLES, len(changes)))
    low, high = np.quantile(changes[drawn].mean(axis=1), [0.025, 0.975])
    return {"mean": float(changes.mean()), "low": float(low), "high": float(high)}


def told(b: Bench, offsets: Offsets) -> dict[str, Any]:
    """What is printed of a fit: its verdict, and the change on held-out questions with its interval."""
    task = b.collection.dataset.name
    evidence = (offsets.find(task) or offsets[f"local:{task}"]).evidence
    low, high = evidence.interval or (None, None)
    return {"verdict": evidence.verdict, "code": evidence.code, "mean": evidence.gain, "low": low, "high": high}


def change(b: Bench, offsets: Offsets, rows: np.ndarray) -> np.ndarray:
    """Change of nDCG@10 of real queries served by *offsets*."""
    return b.under(offsets, rows) - b.ndcg(rows, 0.0)


def first_verdicts(b: Bench, starts: dict[str, Offsets]) -> list[dict[str, Any]]:
    """What the first real verdicts gain held-out queries: alone, on top of each start, and where they chose it."""
    collection, found = b.collection, []
    for count in FIRST:
        for seed in SEEDS:
            pool, held = split(collection, seed, HOLDOUT)
            real = pooled_rewards([collection], [pool[:count]], DEPTH)
            alone = change(b, fit(real, trusted=True), held).mean()
            row: dict[str, Any] = {"verdicts": count, "seed": seed, "without": float(alone)}
            for name, start in starts.items():
                gained = live_gains(start, real)[0]
                over = stacked(b, start, real, held)
                helped = len(gained) > 0 and float(np.mean(gained)) > 0
                row[name] = {"on top": over, "helped": helped, "chosen": over if helped else float(alone)}
            found.append(row)
    return found


def stacked(b: Bench, start: Offsets, real: Rewards, held: np.ndarray) -> float:
    """Change on held-out queries of what is learned from *real* where queries were first moved by *start*."""
    collection, task = b.collection, b.collection.dataset.name
    ids = collection.query_ids.tolist()
    queries = start.apply(collection.query_vectors, task=task, query_id=ids)
    own = [ids.index(query) for query in real.query_ids]
    again = fit(replace(real, query_vectors=queries[own]), trusted=True)
    moved = again.apply(queries[held], task=task, query_id=[ids[row] for row in held])
    base = collection.query_vectors[held] / np.linalg.norm(collection.query_vectors[held], axis=1, keepdims=True)
    return float((b.ndcg(held, (moved - base) @ b.unit_docs.T) - b.ndcg(held, 0.0)).mean())


def measured(data: Path, name: str, embedder: Embedder, judge: Judge, cache: Path | None) -> dict[str, Any]:
    """The row of one collection."""
    b = bench(data, data, name, "minilm", QRELS)
    documents, texts, part = questions(data / name)
    places = {document: row for row, document in enumerate(b.collection.doc_ids.tolist())}
    own = [places[document] for document in documents]
    vectors = embedder.embed_queries(texts)
    found = candidates(b, vectors, own)
    contents = list(b.collection.dataset.documents.values())
    pairs = [(text, [contents[row] for row in rows]) for text, rows in zip(texts, found, strict=True)]
    scores = {
        "own answer": [(rows == row).astype(float) for rows, row in zip(found, own, strict=True)],
        "judged": judged(judge, cache, name, pairs),
    }
    everyone = np.arange(len(b.collection.raw))
    fits = {key: fit(rewards_of(b, texts, vectors, found, values), trusted=True) for key, values in scores.items()}
    return {
        "set": name,
        "questions": part,
        "own answer first": float(np.mean([rows[0] == row for rows, row in zip(found, own, strict=True)])),
        "real queries": len(everyone),
        "raw": float(b.ndcg(everyone, 0.0).mean()),
        "told": {key: told(b, offsets) for key, offsets in fits.items()},
        "true": {key: interval(change(b, offsets, everyone)) for key, offsets in fits.items()},
        "first": first_verdicts(b, fits),
    }


def _figure(of: dict[str, Any]) -> str:
    return f"{of['mean']:+.3f} [{of['low']:+.3f}, {of['high']:+.3f}]"


def lines(row: dict[str, Any]) -> str:
    """A row as lines."""
    parts = [f"{row['set']:<16}{row['questions']:<16}own first {row['own answer first']:.2f}  raw {row['raw']:.3f}"]
    for key, truth in row["true"].items():
        said = row["told"][key]
        printed, true = ("-" if of["mean"] is None else _figure(of) for of in (said, truth))
        parts.append(f"  {key:<12}{said['verdict']} {printed}; true {true}")
    for count in FIRST:
        mine = [one for one in row["first"] if one["verdicts"] == count]
        parts.append(f"  {count} verdicts: without {np.mean([one['without'] for one in mine]):+.3f}")
        for key in row["true"]:
            top, chosen = (np.mean([one[key][way] for one in mine]) for way in ("on top", "chosen"))
            parts.append(f"    on top of {key} {top:+.3f}, where they chose it {chosen:+.3f}")
    return "\n".join(parts)


def main() -> None:
    """Measure, print, and write the file that the page has its figures from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--judge", required=True)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    embedder, judge = open_embedder("minilm"), open_judge(options.judge)
    rows = []
    for name in options.sets.split(","):
        rows.append(measured(options.data, name, embedder, judge, options.scores))
        print(lines(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
