"""A collection with vectors and a judge: its candidates, its graded rankings and its split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.datasets import QRELS, Dataset, Judgments
from tttembed_rag.evaluate.files import check_known, load_beir, load_scores, load_vectors
from tttembed_rag.evaluate.index import FaissIndex
from tttembed_rag.evaluate.measures import Graded
from tttembed_rag.offsets.orders import in_reward_order
from tttembed_rag.offsets.rescorer import Rescorer
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.vectors.bm25 import Keywords
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# The rows of a list in another order, given the rewards of some of them.
Order: TypeAlias = Callable[[Sequence[int], Mapping[int, float]], list[int]]

# Documents kept of a ranked list: direct rerank may lift any of them, nDCG@10 looks at the first 10.
LISTED = 100
# The constant of reciprocal rank fusion (Cormack et al. 2009), as search engines come with.
_FUSION = 60


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """A data set with its vectors, its index, its rewards and its base rankings.

    Attributes:
        dataset: Texts and labels.
        embedder: Name of the vectors.
        judge: Name of the rewards.
        scores: The judge's scores; for `QRELS` a pair without a label scores 0.
        simulated: Whether the rewards are relevance labels, not a judge's.
        scale: Scale of the scores.
        doc_vectors: (N, d).
        query_vectors: (M, d).
        index: Search over *doc_vectors*.
        graded: nDCG@10 of ranked documents.
        base: (M, 100) rows of documents in base order.
        raw: (M,) nDCG@10 of the base order.
        own: (M,) rows of the documents that the queries are, as `Dataset.own` says; no query finds itself.
        unjudged: Ids of documents that are no candidates: no reward is about them.
        sources: Scores by query id, source and document id, where *scores* are the means of what several sources said;
            empty for one judge.
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
    own: IntArray
    unjudged: frozenset[str] = frozenset()
    sources: Mapping[str, Judgments] = field(default_factory=dict)
    _candidates: dict[int, tuple[int, IntArray, Float64]] = field(default_factory=dict, init=False)

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
        sources: Mapping[str, Judgments] | None = None,
        scale: Scale | None = None,
    ) -> Collection:
        """Index and rank *dataset*; without *scores* its relevance labels act as the judge."""
        searched = FaissIndex.from_vectors(doc_vectors)
        doc_ids, query_ids = np.array(list(dataset.documents)), np.array(list(dataset.queries))
        graded = Graded.of(dataset.qrels, list(dataset.queries), list(dataset.documents))
        base = searched.search(query_vectors, LISTED, own=(own := dataset.own))[1]
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
            own,
            sources=sources or {},
        )

    @property
    def measured(self) -> NDArray[np.bool_]:
        """(M,) Whether a query has documents of different gains; the others are left out of every mean."""
        return self.graded.ideal > 0

    @property
    def judge_named(self) -> str:
        """The name of the judge for people, which says where it is simulated."""
        return f"{self.judge} (simulated judge)" if self.simulated else self.judge

    def search(self, query_vectors: FloatArray, rows: IntArray, k: int) -> tuple[FloatArray, IntArray]:
        """Cosine similarities and documents (m, k) of a new search with vectors (m, d) for the queries *rows* (m,)."""
        return self.index.search(query_vectors, k, own=self.own[rows])

    def candidates(self, query: int, depth: int) -> tuple[IntArray, Float64]:
        """The first *depth* judged documents of a query in base order, and their scores.

        Unjudged documents are skipped.
        """
        if query not in self._candidates or self._candidates[query][0] < depth:
            scores = self.scores.get(str(self.query_ids[query]), {})
            ranked = self.base[query]
            places = self._places(query, ranked, scores)
            if len(places) < depth:  # the judged ones lie deeper than the kept list
                row = np.array([query])
                ranked = self.search(self.query_vectors[row], row, len(self.index))[1][0]
                places = self._places(query, ranked, scores)
            rows = ranked[places[:depth]]
            self._candidates[query] = depth, rows, np.array([self._score(scores, doc) for doc in self.doc_ids[rows]])
        _, rows, values = self._candidates[query]
        return rows[:depth], values[:depth]

    def judged(self, depth: int = 1) -> IntArray:
        """The rows of the queries with judged documents."""
        rows = range(len(self.query_ids))
        return np.array([row for row in rows if len(self.candidates(row, depth)[0])], dtype=np.intp)

    def by_source(self, query: int, depth: int) -> list[tuple[str, IntArray, Float64]]:
        """The `candidates` of a query with their scores, once for each source; of one judge the source is empty."""
        rows, scores = self.candidates(query, depth)
        sources = self.sources.get(str(self.query_ids[query]), {})
        if not sources:
            return [("", rows, scores)]
        ids = self.doc_ids[rows].tolist()
        lists = []
        for source, of_source in sources.items():
            if judged := [place for place, document in enumerate(ids) if document in of_source]:
                lists.append((source, rows[judged], np.array([of_source[ids[place]] for place in judged])))
        return lists

    def _score(self, scores: Mapping[str, float], document: str) -> float:
        """The score of a document among those of a query; of a simulated judge no label, and one below 0, is 0."""
        return max(0.0, scores.get(document, 0.0)) if self.simulated else scores[document]

    def rewards_of(self, query_id: str, documents: Sequence[str]) -> dict[str, float]:
        """The rewards in [0, 1] of those among *documents* that were judged for a query."""
        scores = self.scores.get(query_id, {})
        judged = [doc for doc in documents if doc in scores]
        units = self.scale.to_unit(np.array([self._score(scores, doc) for doc in judged]))
        return dict(zip(judged, units.tolist(), strict=True))

    def _places(self, query: int, ranked: IntArray, scores: Mapping[str, float]) -> list[int]:
        documents = zip(ranked.tolist(), self.doc_ids[ranked].tolist(), strict=True)
        return [
            place
            for place, (row, doc) in enumerate(documents)
            if (self.simulated or doc in scores) and doc not in self.unjudged and row != self.own[query]
        ]

    def measure(self, query_vectors: FloatArray, rows: IntArray) -> Float64:
        """nDCG@10 (M,) of a new search with *query_vectors*, for *rows*; the others keep raw."""
        return self._measured(rows, self.search(query_vectors[rows], rows, 10)[1])

    def measure_reranked(self, rows: IntArray, depth: int) -> Float64:
        """nDCG@10 (M,) after direct rerank of *rows* at *depth*; the others keep raw."""
        return self.measure_reordered(rows, self.base[rows], depth, in_reward_order)

    def measure_rescored(self, query_vectors: FloatArray, rescorer: Rescorer) -> Float64:
        """nDCG@10 (M,) of a new search with all *query_vectors*, its first hundred in the order of *rescorer*."""
        documents = np.array(list(self.dataset.documents.values()), dtype=object)
        every = np.arange(len(self.raw))
        hits = zip(self.dataset.queries.values(), *self.search(query_vectors, every, LISTED), strict=True)
        lists = [rows[rescorer.order(query, documents[rows].tolist(), scores)] for query, scores, rows in hits]
        return self._measured(every, np.array(lists))

    def measure_hybrid(self) -> Float64:
        """nDCG@10 (M,) of reciprocal rank fusion of the base lists and those of BM25, a hundred documents each."""
        keywords = Keywords.of(list(self.dataset.documents.values()))
        lists = []
        for query, base, own in zip(self.dataset.queries.values(), self.base, self.own, strict=True):
            fused = np.zeros(len(self.index))
            fused[base] = 1.0 / (_FUSION + np.arange(1, len(base) + 1))
            scores = keywords.scores(query)
            if own >= 0:
                scores[own] = 0.0
            hits = np.argsort(-scores, kind="stable")[:LISTED]
            hits = hits[scores[hits] > 0]
            fused[hits] += 1.0 / (_FUSION + np.arange(1, len(hits) + 1))
            lists.append(np.argsort(-fused, kind="stable")[: len(base)])
        return self._measured(np.arange(len(self.raw)), np.array(lists))

    def measure_reordered(self, rows: IntArray, lists: IntArray, depth: int, order: Order) -> Float64:
        """nDCG@10 (M,) where each of *rows* is shown its list with the candidates at *depth* in another order."""
        queries = zip(rows.tolist(), lists, strict=True)
        return self._measured(rows, [reordered(ranked, *self.candidates(q, depth), order) for q, ranked in queries])

    def _measured(self, rows: IntArray, lists: Sequence[IntArray] | IntArray) -> Float64:
        """nDCG@10 (M,) where each of *rows* is shown its list; the others keep raw."""
        measured = self.raw.copy()
        if rows.size:
            measured[rows] = self.graded(rows, np.asarray(lists))
        return measured


def reordered(ranked: IntArray, candidates: IntArray, rewards: FloatArray, order: Order) -> IntArray:
    """The list (k,) with its rewarded documents in another *order*, within the places that they hold.

    *candidates* that the list lacks are left out. The *order* is `in_reward_order` for direct rerank (ties stay as they
    are; paper, appendix on budgets), and `in_fused_order` for judge and search together.
    """
    listed = np.isin(candidates, ranked)
    rewarded = dict(zip(candidates[listed].tolist(), rewards[listed].tolist(), strict=True))
    return np.array(order(ranked.tolist(), rewarded), dtype=ranked.dtype)


def check_workload(collections: Sequence[Collection]) -> None:
    """Refuse two collections of one name, vectors of several widths, and where most queries cannot be measured."""
    names = [collection.dataset.name for collection in collections]
    if len(set(names)) < len(names):
        raise DataError(f"data sets: expected different names, got {', '.join(names)}")
    if len(widths := sorted({collection.doc_vectors.shape[1] for collection in collections})) > 1:
        raise DataError(f"data sets: expected vectors of one width, got {widths}")
    for name, measured in zip(names, (collection.measured for collection in collections), strict=True):
        if 2 * measured.sum() < len(measured):
            got = f"{measured.sum()} of {len(measured)}; no list of the others is better than another"
            raise DataError(f"{name}: expected rewards that differ in at least half of the queries, got {got}")


def label_scale(dataset: Dataset) -> Scale:
    """The scale of the labels of *dataset* where they act as the judge."""
    return Scale("rubric", 0.0, max(1.0, *(max(grades.values()) for grades in dataset.qrels.values())))


def open_collection(folder: Path, *, vectors: str, rewards: str, scale: Scale, labels: bool = True) -> Collection:
    """The collection in a BEIR *folder* with its stored vectors and rewards.

    Queries without a score of the judge are left out, so that rewarded and held-out queries come from one
    population also where a judge saw the first few hundred queries alone. Without *labels* nothing is graded.
    """
    dataset = load_beir(folder, labels=labels or rewards == QRELS)
    scores = None if rewards == QRELS else load_scores(folder, rewards)
    if scores is not None:
        check_known(folder / "scores" / f"{rewards}.tsv", scores, dataset.documents)
        dataset = dataset.only(scores)
    docs, queries = load_vectors(folder, vectors, dataset)
    return Collection.of(dataset, docs, queries, embedder=vectors, judge=rewards, scores=scores, scale=scale)


def pooled_rewards(workload: Sequence[Collection], judged: Sequence[IntArray], depth: int) -> Rewards:
    """The rewards of the *judged* queries of every collection, its name as their task; a row for each source."""
    candidates, scores, queries, documents, tasks, ids, sources, names = [], [], [], [], [], [], [], []
    query_texts, doc_texts = list[str](), list[str]()
    first = 0
    for collection, judged_rows in zip(workload, judged, strict=True):
        lists = [(q, *of_source) for q in judged_rows.tolist() for of_source in collection.by_source(q, depth)]
        rows = np.array([q for q, *_ in lists], dtype=np.intp)
        documents_of = [docs for *_, docs, _ in lists]
        used, local = np.unique(np.concatenate([np.zeros(0, np.intp), *documents_of]), return_inverse=True)
        query_ids, judged_documents = collection.query_ids[rows].tolist(), collection.doc_ids[used].tolist()
        ends = np.cumsum([len(docs) for docs in documents_of])
        candidates += np.split(local + first, ends[:-1]) if lists else []
        scores += [collection.scale.to_unit(values) for *_, values in lists]
        sources += [source for _, source, *_ in lists]
        queries.append(collection.query_vectors[rows])
        documents.append(collection.doc_vectors[used])
        names += judged_documents
        tasks += [collection.dataset.name] * len(rows)
        ids += query_ids
        query_texts += [collection.dataset.queries[query] for query in query_ids]
        doc_texts += [collection.dataset.documents[doc] for doc in judged_documents]
        first += len(used)
    return Rewards.from_indexed(
        np.concatenate(queries),
        np.concatenate(documents),
        candidates,
        scores,
        tasks,
        ids,
        judge=" + ".join(sorted({collection.judge_named for collection in workload})),
        sources=sources,
        doc_ids=names,
        query_texts=query_texts,
        doc_texts=doc_texts,
    )


def split(collection: Collection, seed: int, holdout: float) -> tuple[IntArray, IntArray]:
    """(pool, held-out) query rows, shuffled by *seed*: those with a judged document, and those that can be measured."""
    order = np.random.default_rng(seed).permutation(len(collection.query_ids))
    held = max(1, round(holdout * len(order)))
    pool = np.array([q for q in order[held:].tolist() if len(collection.candidates(q, 1)[0])], dtype=np.intp)
    if not pool.size:
        raise DataError(f"{collection.dataset.name}: expected judged queries outside the held-out ones, got none")
    return pool, order[:held][collection.measured[order[:held]]]
