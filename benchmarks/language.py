"""Language: what a query's own language pulls into its list, and what takes that away, with and without verdicts.

    python -m benchmarks.language [--seeds 0,...,11] [--pairs 0,...,5] [--data DIR] [--json OUT.json] [--detect]

XQuAD-R (development languages en, de, es, zh; multilingual e5): one pool holds every sentence in four languages, and a
question is answered by one sentence of each. Half of the questions, in all languages, are held out; of the others so
many are judged, ten candidates each of what was served. Measured are nDCG@10, and the part of the first ten that has
the language of the question, as MLAIRE does: a quarter is fair. `means` are offsets of languages' means (no verdict;
from documents alone, or with the queries that nobody judged), and what verdicts learn around them. `own` are users who
want their own language alone: the gate drops the means. `pairs` ask in one language and search another alone. Labels
are the judge: a simulation. With --detect languages are those that `language_of` finds, else those of the collection.
With --pairs come `words`: lists sorted by words too, in one pool and in that of the language alone. Five minutes on one
core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from tttembed_rag import Offsets, Rewards, fit
from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.serving.languages import language_means, language_of
from tttembed_rag.vectors.checks import unit

HERE = Path(__file__).resolve().parent
DEPTH, SORTED, JUDGED, JUDGED_PAIRS = 10, 50, (16, 64, 150), (16, 64)
DISCOUNT = 1.0 / np.log2(np.arange(2, 12))
Means = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Pool:
    """Documents and questions of several languages; *relevant* is (M, N), *question* the same in every language."""

    texts: np.ndarray
    asked: np.ndarray
    documents: np.ndarray
    of_document: np.ndarray
    queries: np.ndarray
    of_query: np.ndarray
    relevant: np.ndarray
    question: np.ndarray
    tasks: np.ndarray
    detected: np.ndarray

    @classmethod
    def read(cls, folder: Path, *, detect: bool) -> Pool:
        """The pool of a BEIR folder whose ids begin with a language."""
        dataset = load_beir(folder)
        documents, queries = (unit(vectors) for vectors in load_vectors(folder, "e5", dataset))
        names = [np.array([key.partition(":") for key in keys]) for keys in (dataset.documents, dataset.queries)]
        row = {key: place for place, key in enumerate(dataset.documents)}
        relevant = np.zeros((len(queries), len(documents)), dtype=bool)
        for place, grades in enumerate(dataset.qrels.values()):
            relevant[place, [row[key] for key, grade in grades.items() if grade > 0]] = True
        tasks, detected = names[1][:, 0], names[0][:, 0]
        if detect:
            tasks = np.array([language_of(text) or "" for text in dataset.queries.values()])
            detected = np.array([language_of(text) or "" for text in dataset.documents.values()])
        texts = [np.array(list(some.values()), dtype=object) for some in (dataset.documents, dataset.queries)]
        return cls(
            *texts, documents, names[0][:, 0], queries, names[1][:, 0], relevant, names[1][:, 2], tasks, detected
        )

    def found(self, vectors: np.ndarray, rows: np.ndarray, documents: np.ndarray | None = None) -> np.ndarray:
        """The first ten documents (rows, 10) of *vectors* (M, d) for the queries *rows*."""
        near = vectors[rows] @ (self.documents if documents is None else documents).T
        return np.argsort(-near, axis=1, kind="stable")[:, :DEPTH]

    def measured(self, found: np.ndarray, rows: np.ndarray, relevant: np.ndarray | None = None) -> tuple[float, float]:
        """The mean nDCG@10 of lists, and the part of them that has the language of the query."""
        of = (self.relevant if relevant is None else relevant)[rows]
        ideal = np.array([DISCOUNT[:count].sum() for count in np.minimum(of.sum(axis=1), DEPTH)])
        gained = np.take_along_axis(of, found, axis=1) @ DISCOUNT
        same = self.of_document[found] == self.of_query[rows][:, None]
        return float((gained / np.where(ideal > 0, ideal, 1.0))[ideal > 0].mean()), float(same.mean())

    def judged(
        self,
        rows: np.ndarray,
        found: np.ndarray,
        relevant: np.ndarray,
        tasks: list[str] | None,
        *,
        words: bool = False,
    ) -> Rewards:
        """Labels of what was *found* for the queries *rows*."""
        rewards = [relevant[row, documents].astype(float) for row, documents in zip(rows, found, strict=True)]
        ids = [str(row) for row in rows.tolist()]
        known = {"query_texts": self.asked[rows].tolist(), "doc_texts": self.texts.tolist()} if words else {}
        return Rewards.from_indexed(
            self.queries[rows], self.documents, list(found), rewards, tasks, ids, judge="labels (simulated)", **known
        )

    def of(self, documents: np.ndarray) -> Pool:
        """The pool with some of its *documents*, by rows, alone."""
        kept = {name: getattr(self, name)[documents] for name in ("texts", "documents", "of_document", "detected")}
        return replace(self, relevant=self.relevant[:, documents], **kept)

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(pool, held-out) rows of queries: a question is in one of them in all languages."""
        draw = np.random.default_rng(seed)
        questions = draw.permutation(np.unique(self.question))
        held = np.isin(self.question, questions[: len(questions) // 2])
        return draw.permutation(np.flatnonzero(~held)), np.flatnonzero(held)


def mixed(pool: Pool, seed: int) -> dict[str, tuple[float, float]]:
    """nDCG@10 and the part of the own language on held-out questions, by what is served."""
    rows, held = pool.split(seed)
    tasks = pool.tasks.tolist()
    every = np.arange(len(pool.queries))

    def served(offsets: Offsets | None, *, one: bool = False) -> np.ndarray:
        return pool.queries if offsets is None else offsets.apply(pool.queries, task=None if one else tasks)

    def measured(vectors: np.ndarray, documents: np.ndarray | None = None) -> tuple[float, float]:
        return pool.measured(pool.found(vectors, held, documents), held)

    own_mean = {name: pool.documents[pool.of_document == name].mean(axis=0) for name in np.unique(pool.of_document)}
    centred = unit(pool.documents - np.array([own_mean[name] for name in pool.of_document]))
    alone = language_means(pool.documents, pool.detected.tolist())
    means = language_means(pool.documents, pool.detected.tolist(), pool.queries[rows], pool.tasks[rows].tolist())
    results = {
        "raw": measured(pool.queries),
        "means off documents": measured(pool.queries, centred),
        "means, documents alone": measured(served(alone)),
        "means": measured(served(means)),
    }
    raw, started = pool.found(pool.queries, every), pool.found(served(means), every)
    same = pool.relevant & (pool.of_document == pool.of_query[:, None])  # what users of one language want
    for count in JUDGED:
        asked = rows[:count]
        of = [tasks[row] for row in asked]
        one = fit(pool.judged(asked, raw[asked], pool.relevant, None), trusted=True)
        each = fit(pool.judged(asked, raw[asked], pool.relevant, of), trusted=True)
        around = fit(pool.judged(asked, started[asked], pool.relevant, of), trusted=True, start=means)
        wanted = fit(pool.judged(asked, started[asked], same, of), trusted=True, start=means)
        results[f"one task, {count}"] = measured(served(one, one=True))
        results[f"a task per language, {count}"] = measured(served(each))
        results[f"means and verdicts, {count}"] = measured(served(around))
        results[f"own, {count}"] = pool.measured(pool.found(served(wanted), held), held, same)
    results["own, raw"] = pool.measured(raw[held], held, same)
    results["own, means"] = pool.measured(started[held], held, same)
    return results


def pairs(pool: Pool, seed: int) -> dict[str, tuple[float, float]]:
    """hit@5 and its spread over pairs of languages, where one is asked and another is searched alone."""
    rows, held = pool.split(seed)
    of_rows = pool.queries[rows], pool.tasks[rows].tolist()
    means = language_means(pool.documents, pool.detected.tolist(), *of_rows).apply(pool.queries, pool.tasks.tolist())
    hits: dict[str, list[float]] = {}
    for asked, searched in permutations(np.unique(pool.of_query).tolist(), 2):
        part = pool.of(np.flatnonzero(pool.of_document == searched))
        mine, theirs = (some[pool.of_query[some] == asked] for some in (rows, held))
        vectors = {"raw": pool.queries, "means": means}
        for count in JUDGED_PAIRS:
            found = part.found(pool.queries, mine[:count])
            offsets = fit(part.judged(mine[:count], found, part.relevant, None), trusted=True)
            vectors[str(count)] = offsets.apply(pool.queries)
        for name, moved in vectors.items():
            hit = np.take_along_axis(part.relevant[theirs], part.found(moved, theirs)[:, :5], axis=1).any(axis=1)
            hits.setdefault(name, []).append(float(hit[part.relevant[theirs].any(axis=1)].mean()))
    return {name: (float(np.mean(values)), float(np.std(values))) for name, values in hits.items()}


def words(pool: Pool, seed: int) -> dict[str, tuple[float, float]]:
    """nDCG@10 under the offset, and of the first fifty sorted by words: by language, in one pool and alone."""
    rows, held = pool.split(seed)
    results = {}
    names = np.unique(pool.of_query).tolist()
    alone = [(pool.of(np.flatnonzero(pool.of_document == name)), name) for name in names]
    for part, name in [(pool, ""), *alone]:
        mine, theirs = (some[pool.of_query[some] == name] if name else some for some in (rows, held))
        for count in JUDGED if not name else JUDGED_PAIRS:
            asked = mine[:count]
            tasks = pool.tasks.tolist() if not name else ["default"] * len(pool.queries)
            found = part.found(pool.queries, asked)
            given = [tasks[row] for row in asked]
            offsets = fit(part.judged(asked, found, part.relevant, given, words=True), trusted=True)
            vectors = offsets.apply(pool.queries, task=tasks)
            near = vectors[theirs] @ part.documents.T
            first = np.argsort(-near, axis=1, kind="stable")[:, :SORTED]
            by_words = first.copy()
            for place, row in enumerate(theirs.tolist()):
                if rescorer := offsets.rescorer(tasks[row]):
                    listed = first[place]
                    order = rescorer.order(pool.asked[row], part.texts[listed].tolist(), near[place, listed])
                    by_words[place] = listed[order]
            for own in [name] if name else names:
                some = pool.of_query[theirs] == own
                measured = (part.measured(lists[some, :DEPTH], theirs[some])[0] for lists in (first, by_words))
                results[f"{own}, {'alone' if name else 'one pool'}, {count}"] = tuple(measured)
    return results


def averaged(splits: Iterable[Mapping[str, tuple[float, float]]], second: str) -> dict[str, dict[str, float]]:
    """By what is served the means over splits, and the standard error of the first."""
    found: Means = {}
    for split in splits:
        for name, values in split.items():
            found.setdefault(name, []).append(values)
    return {name: _mean(np.array(values), second) for name, values in found.items()}


def _mean(values: np.ndarray, second: str) -> dict[str, float]:
    first, other = values.mean(axis=0).tolist()
    return {"mean": first, second: other, "least": float(values[:, 0].min())}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data" / "xquad-r-dev")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--detect", action="store_true", help="languages as language_of finds them")
    for name, count in (("seeds", 12), ("pairs", 6)):
        parser.add_argument(f"--{name}", type=_numbers, default=[*range(count)])
    args = parser.parse_args()
    pool = Pool.read(args.data, detect=args.detect)
    figures: dict[str, Any] = {
        "mixed": averaged((mixed(pool, seed) for seed in args.seeds), "own language"),
        "pairs": averaged((pairs(pool, seed) for seed in args.pairs), "deviation of pairs"),
        "words": averaged((words(pool, seed) for seed in args.pairs), "words"),
    }
    for part, rows in figures.items():
        print(part)
        for name, values in rows.items():
            print(f"  {name:<30}" + "".join(f"{key} {value:.3f}  " for key, value in values.items()))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
