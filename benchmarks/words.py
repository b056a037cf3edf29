"""Words beside vectors: what weights over BM25, learned from the same verdicts, add to the local offset, and when.

    python benchmarks/words.py [--embedders minilm,static,lsa] [--judges qrels+.05,static] [--cells OUT.jsonl] ...

Candidates are scored by f(q, d) = theta . [x.z, BM25, BM25 over the best of the list, log length, v(x).z], centred
within the query. Theta minimises the KL loss of Eq. 6 with a ridge around cosine and v(x) alone. Every cell is one
collection, embedder, judge, budget and seed; nDCG@10 is of the first `LISTED` of the raw search, sorted anew, for
queries nobody judged. Collections and embedders are those of `harm.py`. A judge named after an embedder, or `bm25`,
gives the scores of that retriever: it is real, and no better than what it judges. Labels as a judge are a simulation.
About a minute with MiniLM on one core.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array

from benchmarks import harm
from benchmarks.harm import CONFIRMATION, DEVELOPMENT, HERE, HOLDOUT, STORED, Bench, Cell, bench, judged
from tttembed_rag import Rewards
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.evaluate.files import load_beir
from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.objectives import PADDING, log_softmax, softmax
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.case import Case, gated
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import LEVEL, TYPICAL_FALL

DEPTH = 10
# Candidates of the raw search that are sorted anew, and held-out queries of a cell, at most.
LISTED, ASKED = 100, 200
# Okapi BM25, and the constant of reciprocal rank fusion, as engines come with.
K1, B, RRF = 1.2, 0.75, 60
# Weight of standardised BM25 in a hybrid search without verdicts: the best of .25, .5 and 1 on development.
HYBRID = 0.5
RETRIEVERS = ("bm25", "static", "lsa")
COSINE, OVERLAP, ALONG = 0, 1, 4
# Ridge of each weight, around cosine and v(x) alone: words need ten times the evidence.
RIDGE = np.array([1.5, 15, 15, 15, 1.5])
# Least mean correlation of cosine and BM25 within the first `LISTED` of a query, whatever a judge says of words. With
# MiniLM on development it is .14 to .28 where words mislead (metatool), .45 to .64 elsewhere.
AGREEMENT = 0.4
RULES = ("v", "words", "no agreement asked", "hybrid if agreed", "hybrid", "rrf", "direct")


@dataclass(frozen=True, eq=False)
class Words:
    """The tokens of a collection, counted.

    Attributes:
        documents: (N, V) counts.

        queries: (M, V) counts.

        lengths: (N,) tokens of each document.
    """

    documents: csr_array
    queries: csr_array
    lengths: np.ndarray

    @classmethod
    def of(cls, documents: Sequence[str], queries: Sequence[str]) -> Words:
        """The counts of texts."""
        vocabulary: dict[str, int] = {}
        rows = [
            [[vocabulary.setdefault(token, len(vocabulary)) for token in tokens(text)] for text in texts]
            for texts in (documents, queries)
        ]
        lengths = np.array([len(row) for row in rows[0]], dtype=np.float64)
        return cls(_counts(rows[0], len(vocabulary)), _counts(rows[1], len(vocabulary)), lengths)

    def bm25(self, rows: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """(rows, N) BM25 of all documents for some queries, by idf and mean length of the documents *seen*."""
        found = np.bincount(self.documents[seen].indices, minlength=self.documents.shape[1])
        idf = np.log1p((len(seen) - found + 0.5) / (found + 0.5))
        length = np.repeat(self.lengths / max(self.lengths[seen].mean(), 1.0), np.diff(self.documents.indptr))
        weights, asked = self.documents.copy(), self.queries[rows]
        weights.data = weights.data * (K1 + 1) / (weights.data + K1 * (1 - B + B * length))
        asked.data = asked.data * idf[asked.indices]
        return (asked @ weights.T).toarray()


def tokens(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, lower case."""
    return re.findall(r"[^\W_]+", text.lower())


def _counts(rows: Sequence[Sequence[int]], width: int) -> csr_array:
    """(n, width) how often each row holds each token."""
    columns = np.array([token for row in rows for token in row], dtype=np.int32)
    starts = np.cumsum([0, *map(len, rows)])
    counts = csr_array((np.ones(len(columns)), columns, starts), shape=(len(rows), width))
    counts.sum_duplicates()
    return counts


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of candidates and what is known of each.

    Attributes:
        features: (n, k, 5) x.z, BM25, BM25 over the best of the list, log length and v(x).z, centred within the query.

        present: (n, k) which slots hold a candidate.
    """

    features: np.ndarray
    present: np.ndarray

    @classmethod
    def of(cls, columns: Sequence[np.ndarray], present: np.ndarray) -> Lists:
        """The lists with x.z, BM25, lengths and v(x).z, each (n, k)."""
        cosine, overlap, lengths, along = columns
        best = np.where(present, overlap, 0).max(axis=1, keepdims=True)
        features = np.stack([cosine, overlap, overlap / np.maximum(best, 1e-9), np.log1p(lengths), along], axis=2)
        mean = (features * present[..., None]).sum(axis=1, keepdims=True) / present.sum(axis=1)[:, None, None]
        return cls(np.where(present[..., None], features - mean, 0.0), present)

    @property
    def spread(self) -> np.ndarray:
        """(5,) mean standard deviation of each feature within a query; of v(x).z, which adds to it, the cosine's."""
        spread = np.sqrt((self.features**2).sum(axis=1) / self.present.sum(axis=1)[:, None]).mean(axis=0)
        spread[ALONG] = spread[COSINE]
        return np.maximum(spread, 1e-9)

    @property
    def agreement(self) -> float:
        """Mean correlation of cosine and BM25 within a list; a list without shared words says 0."""
        cosine, overlap = self.features[..., COSINE], self.features[..., OVERLAP]
        size = np.sqrt((cosine**2).sum(axis=1) * (overlap**2).sum(axis=1))
        return float(np.divide((cosine * overlap).sum(axis=1), size, out=np.zeros_like(size), where=size > 0).mean())


@dataclass(frozen=True, eq=False)
class Learning:
    """The data term of theta: sum of w_q KL(p_q || softmax(theta . f_q)), and its ridge around *start*.

    Attributes:
        features: (n, k, 5) scaled.

        padding: (n, k) 0, or `PADDING` where absent.

        teacher: (n, k) p.

        weights: (n,) w.

        start: (5,) what theta is without evidence.
    """

    features: np.ndarray
    padding: np.ndarray
    teacher: np.ndarray
    weights: np.ndarray
    start: np.ndarray

    def take(self, rows: np.ndarray) -> Learning:
        """The same for some of the queries."""
        parts = (part[rows] for part in (self.features, self.padding, self.teacher, self.weights))
        return Learning(*parts, self.start)

    def losses(self, theta: np.ndarray) -> np.ndarray:
        """(n,) KL."""
        return (self.teacher * (np.log(self.teacher + 1e-300) - self._log_student(theta))).sum(axis=1)

    def objective(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient (5,) of what theta minimises."""
        pull = self.weights[:, None] * (np.exp(self._log_student(theta)) - self.teacher)
        away = theta - self.start
        value = float(self.weights @ self.losses(theta) + RIDGE @ away**2)
        return value, np.einsum("qk,qkp->p", pull, self.features) + 2 * RIDGE * away

    def solved(self) -> np.ndarray:
        """(5,) theta; the objective is convex."""
        return minimize(self.objective, self.start, jac=True, method="L-BFGS-B").x

    def held_out(self, fold: np.ndarray) -> np.ndarray:
        """(n,) KL of each query under the theta of the folds without it."""
        losses = np.empty(len(fold))
        for one in np.unique(fold):
            losses[fold == one] = self.take(fold == one).losses(self.take(fold != one).solved())
        return losses

    def _log_student(self, theta: np.ndarray) -> np.ndarray:
        return log_softmax(self.features @ theta + self.padding)


@lru_cache(maxsize=16)
def words_of(data: Path, name: str) -> tuple[Words, dict[str, int]]:
    """The words of a collection, and the row of each query in them."""
    dataset = load_beir(data / name)
    words = Words.of(list(dataset.documents.values()), list(dataset.queries.values()))
    return words, {query: row for row, query in enumerate(dataset.queries)}


def measure(cell: Cell, data: Path, cache: Path) -> dict[str, Any] | None:
    """Changes of nDCG@10 on held-out queries under every rule; None where too few queries can be judged."""
    source = cell.rewards if cell.rewards in STORED else QRELS
    b = bench(data, cache, cell.workload, cell.embedder, source)
    collection = b.collection
    pool, held = split(collection, cell.seed, HOLDOUT)
    if len(pool) < 0.75 * cell.breadth:
        return None
    pool, held = pool[: cell.breadth], held[:ASKED]
    words, row_of = words_of(data, cell.workload)
    query_rows = np.array([row_of[query] for query in collection.query_ids.tolist()])
    doc_row = {doc: row for row, doc in enumerate(collection.doc_ids.tolist())}
    rewards = pooled_rewards([collection], [pool], DEPTH)
    if cell.rewards in RETRIEVERS:
        scores = _retriever(cell, data, cache, collection.query_ids.tolist())
        rewards = _judged_by(scores, rewards, pool, np.array([doc_row[doc] for doc in rewards.doc_ids.tolist()]))
        first = collection.base[held][:, :DEPTH]
        direct = _resorted(b, held, first, np.take_along_axis(scores[held], first, axis=1))
    else:
        rewards = judged(rewards, cell.rewards, cell.seed)
        direct = collection.measure_reranked(held, DEPTH)[held]
    case = Case(rewards, gated(Recipe(), rewards))
    weights = case.voices * case.usable
    local = Local.of(case.widened, case.optima[0], case.recipe.kappa, weights=weights, groups=case.groups)
    out_of_fold, map_ = local.held_out(case.fold), local.map()

    def lists(rows: np.ndarray, slots: np.ndarray, present: np.ndarray, offsets: np.ndarray) -> Lists:
        overlap = np.take_along_axis(words.bm25(query_rows[rows], seen), slots, axis=1)
        cosine = np.take_along_axis(b.similarities[rows], slots, axis=1)
        along = np.matvec(b.unit_docs[slots], offsets.astype(np.float32))
        return Lists.of((cosine, overlap, words.lengths[slots], along), present)

    doc_rows = np.array([doc_row[doc] for doc in case.widened.doc_ids.tolist()])
    seen = np.unique(doc_rows[case.rewards.candidates])
    at = {query: row for row, query in enumerate(collection.query_ids.tolist())}
    asked = np.array([at[query] for query in case.rewards.query_ids.tolist()])
    present = case.grid.present
    known = lists(asked, np.where(present, doc_rows[case.grid.slots], 0), present, out_of_fold)
    learning = _learning(case, known)
    base, top = collection.base[:, :LISTED], collection.base[held][:, :LISTED]
    everywhere = np.ones_like(base, dtype=bool)
    agreement = lists(asked, base[asked], everywhere[asked], out_of_fold).agreement
    queries = collection.query_vectors[held]
    shown = lists(held, top, everywhere[held], map_(queries / np.linalg.norm(queries, axis=1, keepdims=True)))
    raw = collection.raw[held]
    theta = learning.solved() / known.spread
    below_v, fall_v = _falls(case, learning, out_of_fold)
    changes = {
        "v": _resorted(b, held, top, shown.features[..., COSINE] + shown.features[..., ALONG]),
        "words": _resorted(b, held, top, shown.features @ theta),
        **_hybrids(b, held, words.bm25(query_rows[held], np.arange(len(words.lengths)))),
        "direct": direct,
    }
    return {
        **asdict(cell),
        "believed": case.signal.believed and not case.signal.contradicts,
        "agreement": agreement,
        "fall of v": fall_v.mean,
        "fall of words below v": below_v.below(LEVEL),
        "theta": (theta * known.spread).tolist(),
        "ungated": {name: float((scored - raw).mean()) for name, scored in changes.items()},
    }


def served(row: Mapping[str, Any], rule: str) -> float:
    """The change of nDCG@10 of a cell under one of `RULES`."""
    changes = row["ungated"]
    if rule not in RULES[:4]:
        return changes[rule]
    alone = changes["v"] if row["believed"] and row["fall of v"] > 0 else 0.0
    agree = row["agreement"] >= AGREEMENT
    if rule == "hybrid if agreed":
        return changes["hybrid"] if agree else alone
    asked = rule == "no agreement asked" or (rule == "words" and agree)
    return changes["words"] if asked and row["believed"] and row["fall of words below v"] > 0 else alone


def _learning(case: Case, known: Lists) -> Learning:
    """What theta learns from: the judged candidates and their neighbours."""
    present = case.grid.present
    teacher = softmax(np.where(present, case.grid.rewards / case.recipe.teacher_temperature, PADDING))
    start = np.zeros(5)
    start[[COSINE, ALONG]] = known.spread[COSINE] / case.recipe.student_temperature
    padding = np.where(present, 0.0, PADDING)
    return Learning(known.features / known.spread, padding, teacher, case.voices, start)


def _falls(case: Case, learning: Learning, out_of_fold: np.ndarray) -> tuple[Gain, Gain]:
    """By how many nats words lower the mean held-out loss below v(x) alone, and v(x) below the cosine alone."""
    alone = case.falls(out_of_fold)
    cosine = np.where(np.arange(5) == COSINE, learning.start, 0.0)
    words = learning.losses(cosine) - alone - learning.held_out(case.fold)
    of = partial(Gain.of, weights=case.voices, groups=case.groups, typical=TYPICAL_FALL, most=float(case.voices.sum()))
    return of(words), of(alone)


def _resorted(b: Bench, rows: np.ndarray, top: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(rows,) nDCG@10 of the lists *top* (rows, k) in the order of *scores* (rows, k)."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    return b.collection.graded(rows, np.take_along_axis(top, order, axis=1))


def _hybrids(b: Bench, rows: np.ndarray, bm25: np.ndarray) -> dict[str, np.ndarray]:
    """nDCG@10 (rows,) of two hybrid searches that no judge was asked for."""
    cosine, top = b.similarities[rows], b.collection.base[rows][:, :LISTED]
    near, overlap = (np.take_along_axis(scores, top, axis=1) for scores in (cosine, bm25))
    near, overlap = (
        (x - x.mean(axis=1, keepdims=True)) / max(float(x.std(axis=1).mean()), 1e-9) for x in (near, overlap)
    )
    fused = np.zeros_like(bm25)
    for scores in (cosine, bm25):
        place = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
        fused += np.where((place < LISTED) & (scores > 0), 1 / (RRF + 1 + place), 0.0)
    best = np.argsort(-fused, axis=1, kind="stable")[:, :10]
    return {"hybrid": _resorted(b, rows, top, near + HYBRID * overlap), "rrf": b.collection.graded(rows, best)}


def _retriever(cell: Cell, data: Path, cache: Path, query_ids: Sequence[str]) -> np.ndarray:
    """(M, N) scores of the retriever that a cell's judge is named after."""
    if cell.rewards == "bm25":
        words, row_of = words_of(data, cell.workload)
        return words.bm25(np.array([row_of[query] for query in query_ids]), np.arange(len(words.lengths)))
    return bench(data, cache, cell.workload, cell.rewards, QRELS).similarities


def _judged_by(scores: np.ndarray, rewards: Rewards, pool: np.ndarray, doc_rows: np.ndarray) -> Rewards:
    """*rewards* as *scores* (M, N) give them, from the middle document (0) to the best of two thousand (1)."""
    low, high = np.quantile(scores[pool], [0.5, 0.9995])
    values = scores[np.repeat(pool, rewards.depths), doc_rows[rewards.candidates]]
    return replace(rewards, values=np.clip((values - low) / max(high - low, 1e-9), 0, 1.5).astype(np.float64))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print, for each embedder and judge, mean changes by rule and budget, and how far behind v(x) any collection is.

    Means are of collections, each the mean of its seeds; the worst is of a collection's mean minus that of v(x).
    """
    for embedder, judge in sorted({(row["embedder"], row["rewards"]) for row in rows}):
        mine = [row for row in rows if (row["embedder"], row["rewards"]) == (embedder, judge)]
        print(f"\n{embedder}, {judge} as judge: change of nDCG@10 (worst collection against v, cells below -.01)")
        for rule in RULES:
            line = f"  {rule:<20}"
            for breadth in sorted({row["breadth"] for row in mine}):
                of = [row for row in mine if row["breadth"] == breadth]
                means = {
                    name: np.mean([(served(r, rule), served(r, "v")) for r in of if r["workload"] == name], axis=0)
                    for name in {row["workload"] for row in of}
                }
                worst = min(float(mean[0] - mean[1]) for mean in means.values())
                harmed = np.mean([served(row, rule) < -0.01 for row in of])
                line += f"{breadth:>6}: {np.mean(list(means.values()), axis=0)[0]:+.3f} ({worst:+.3f}, {harmed:.0%})"
            print(line)


def main() -> None:
    """Measure what is missing and print the tables of both halves of the collections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--cells", type=Path, help="JSON lines, one per cell; read first, appended to")
    for name, values in {
        "sets": [*DEVELOPMENT, *CONFIRMATION],
        "embedders": ["minilm"],
        "judges": ["qrels+.05", "ce-minilm-multi"],
    }.items():
        parser.add_argument(f"--{name}", type=lambda s: s.split(","), default=values)
    for name, numbers in {"breadths": [16, 64, 200], "seeds": [0, 1, 2]}.items():
        parser.add_argument(f"--{name}", type=lambda s: [int(part) for part in s.split(",")], default=numbers)
    args = parser.parse_args()
    known = args.cells.read_text(encoding="utf-8").splitlines() if args.cells and args.cells.is_file() else []
    rows = {Cell(*(row[name] for name in Cell.__dataclass_fields__)): row for row in map(json.loads, known)}
    grid = product(args.sets, args.embedders, args.judges, args.breadths, [DEPTH], args.seeds)
    wanted = [Cell(*which) for which in grid]
    for cell in wanted:
        at_hand = cell.rewards in (*harm.NOISE, *RETRIEVERS, *harm.NO_SIGNAL, harm.UNASKED, harm.INVERTED)
        stored = (args.data / cell.workload / "scores" / f"{cell.rewards}.tsv").is_file()
        if cell in rows or not (at_hand or stored) or (row := measure(cell, args.data, args.cache)) is None:
            continue
        rows[cell] = row
        if args.cells:
            with args.cells.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")
    for half, names in {"development": DEVELOPMENT, "confirmation": CONFIRMATION}.items():
        if mine := [rows[cell] for cell in wanted if cell in rows and cell.workload in names]:
            print(f"\n{half}: {len(mine)} cells")
            show(mine)


if __name__ == "__main__":
    main()
