"""Rewards: judged candidates of observed queries as columns, and the scale their scores are on.

Candidates are rows of one matrix of unique documents; query q owns `candidates[starts[q]:
starts[q + 1]]`. Vectors are kept as they came (a memory-mapped matrix stays on disk); their norms
are kept beside them, so nothing is copied only to be normalised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import RewardError
from tttembed_rag.rewards.columns import check_paired, checked_columns, ragged, sliced, stacked, starts_of
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.rewards.texts import columns_of
from tttembed_rag.system.extensions import of_store
from tttembed_rag.vectors.checks import FloatArray, IntArray, shift
from tttembed_rag.vectors.copies import TYPICAL, near_copies, same_text
from tttembed_rag.vectors.probe import probe_of
from tttembed_rag.vectors.rows import UnitRows

# The least spread of cosines: that of vectors of one text is a matter of rounding. How many times as far others'
# candidates lie from a query as its own first ten (all-MiniLM-L6-v2), and how many pairs of these are looked at.
_LEAST_SPREAD, _OWN, _PAIRS = 1e-4, 1.75, 4096
_OF_DOCUMENTS = ("doc_vectors", "doc_norms", "doc_texts")
_OF_QUERIES = ("query_vectors", "query_norms", "tasks", "query_ids", "sources", "query_texts")


@dataclass(frozen=True, eq=False, repr=False)  # no slots: what is worked out once is kept
class Rewards:
    """Rewards in [0, 1] for candidates of n queries over u unique documents, width d.

    Build it with `from_arrays` or `from_indexed`, which check everything once.

    Attributes:
        query_vectors: (n, d) base query vectors, any norm.
        doc_vectors: (u, d) unique document vectors, any norm; judged ones, or up to twice as many.
        starts: (n + 1,) where each query's candidates begin.
        candidates: (N,) rows of *doc_vectors*.
        values: (N,) rewards in [0, 1].
        tasks: n task keys.
        query_ids: n query ids, unique within a task and source.
        judge: Fingerprint of the one judge all rewards come from.
        sources: Who gave the rewards of each of the n queries, such as a user; empty for the declared judge itself.
        doc_ids: u names of the documents.
        query_texts: n texts, empty where they are not known. No file keeps them.
        doc_texts: u texts, likewise: from the words that they share with queries a `Rescorer` is learned.
        embedder: Name of the embedding model that the vectors come from; empty where it is not known. Offsets carry it.
        trusted: Whether somebody vouches for the judge: True where it is declared, as its order is served or it passed
            its examination, False where nobody may; None leaves it to the data. No file keeps it.
        declared_by: What vouches for it, in words; empty where *trusted* was set by hand. No file keeps it.
        probe: Vectors of fixed texts by that model, as `Probe.to_json` writes them; empty where it was not asked for
            them. Offsets carry it too, and refuse another model by it.
    """

    query_vectors: FloatArray
    doc_vectors: FloatArray
    query_norms: FloatArray
    doc_norms: FloatArray
    starts: IntArray
    candidates: IntArray
    values: NDArray[np.float64]
    tasks: NDArray[np.str_]
    query_ids: NDArray[np.str_]
    judge: str
    sources: NDArray[np.str_]
    doc_ids: NDArray[np.str_]
    query_texts: NDArray[np.object_]
    doc_texts: NDArray[np.object_]
    embedder: str = ""
    trusted: bool | None = None
    declared_by: str = ""
    probe: str = ""

    @classmethod
    def from_arrays(
        cls,
        query_vectors: ArrayLike,
        candidate_vectors: ArrayLike | Sequence[ArrayLike],
        rewards: ArrayLike | Sequence[ArrayLike],
        tasks: Sequence[str] | None = None,
        query_ids: Sequence[str] | None = None,
        *,
        scale: Scale | str = "probability",
        judge: str | Sequence[str] = "unnamed",
        sources: Sequence[str] | None = None,
        embedder: str = "",
    ) -> Rewards:
        """Rewards of candidates given by their vectors.

        The *candidate_vectors* are (n, k, d) and the *rewards* (n, k), or n arrays (k_q, d) and (k_q,) when depths
        differ; all else is as in `from_indexed`.
        """
        scores, starts = ragged("rewards", rewards, np.float64)
        docs = stacked(name := "candidate_vectors", candidate_vectors, starts)
        columns = (query_vectors, docs, np.arange(len(scores)), scores, starts)
        named: dict[str, Any] = {"tasks": tasks, "query_ids": query_ids, "sources": sources, "judge": judge}
        return cls(**checked_columns(*columns, docs_name=name, scale=scale, embedder=embedder, **named))

    @classmethod
    def from_indexed(
        cls,
        query_vectors: ArrayLike,
        doc_vectors: ArrayLike,
        candidates: Sequence[ArrayLike] | ArrayLike,
        rewards: Sequence[ArrayLike] | ArrayLike,
        tasks: Sequence[str] | None = None,
        query_ids: Sequence[str] | None = None,
        *,
        scale: Scale | str = "probability",
        judge: str | Sequence[str] = "unnamed",
        sources: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
        query_texts: Sequence[str] | None = None,
        doc_texts: Sequence[str] | None = None,
        embedder: str = "",
    ) -> Rewards:
        """Rewards of candidates given as rows of one matrix of unique documents.

        Args:
            query_vectors: (n, d) base query vectors.
            doc_vectors: (u, d) document vectors, as many as there are. Judged ones are copied where they
                are less than half; a float32 or float64 memory map is otherwise read where it lies.
            candidates: Per query an int array (k_q,) of rows of *doc_vectors*, no row twice.
            rewards: Per query a float array (k_q,), on *scale*.
            tasks: n task keys; None puts all queries in one task.
            query_ids: n ids, unique within a task; None numbers the queries.
            scale: `Scale`, or its text: ``probability``, ``logit``, ``rubric:0,5``.
            judge: Fingerprint of the judge, or one per query (which must agree).
            sources: Who gave the rewards of each query, such as a user: several may reward the same query, each in a
                row of its own, and no source counts as more than one voice near any query. An empty name, and None for
                all, is the declared judge, whose every query counts.
            doc_ids: Names of all rows of *doc_vectors*; None numbers them.
            query_texts: n texts, and
            doc_texts: the texts of all rows of *doc_vectors*: with both, `fit` learns a `Rescorer` too.
            embedder: Name of the embedding model that the vectors come from: offsets carry it, and serve no other.
        """
        rows, starts = ragged("candidates", candidates, np.intp)
        scores, starts_of_scores = ragged("rewards", rewards, np.float64)
        check_paired(starts, starts_of_scores)
        named: dict[str, Any] = {"tasks": tasks, "query_ids": query_ids, "sources": sources, "doc_ids": doc_ids}
        named |= {"query_texts": query_texts, "doc_texts": doc_texts, "judge": judge, "embedder": embedder}
        return cls(**checked_columns(query_vectors, doc_vectors, rows, scores, starts, scale=scale, **named))

    @classmethod
    def from_texts(
        cls,
        feedback: Iterable[Sequence[Any] | Served],
        *,
        embed_query: Callable[[str], ArrayLike],
        embed_documents: Callable[[list[str]], ArrayLike | Sequence[ArrayLike]],
        scale: Scale | str = "probability",
        judge: str = "unnamed",
        embedder: str = "",
    ) -> Rewards:
        """Rewards of texts, with the vectors that an embedding model gives them; a query's id is its text.

        Args:
            feedback: Rows (query, document, reward[, task[, source]]); an empty task is the default one, an empty
                source the declared judge. Of several rewards of one pair by one source the mean counts. Served queries
                (`Served`) with the texts and rewards of their candidates are taken too.
            embed_query: Text to *base* query vector (d,): the model itself, never a wrapper that adds offsets.
            embed_documents: Texts to document vectors, of the model the index was built with; asked once.
            scale: `Scale`, or its text: ``probability``, ``logit``, ``rubric:0,5``.
            judge: Fingerprint of the judge.
            embedder: Name of the embedding model: offsets carry it, and serve no other.
        """
        columns = columns_of(feedback, embed_query, embed_documents)
        rewards = cls.from_indexed(**columns, scale=scale, judge=judge, embedder=embedder)
        return replace(rewards, probe=probe_of(embed_query))

    @classmethod
    def from_parquet(
        cls,
        folder: str | os.PathLike[str],
        *,
        scale: Scale | str = "probability",
        part: str | None = None,
    ) -> Rewards:
        """Rewards from a folder of Parquet files, written by `to_parquet` or by another engine; needs tttembed-store.

        Args:
            folder: Holds ``queries/`` and ``documents/``; `tttembed_store.shards.parquet` lists their columns.
            scale: The scale of their rewards; `to_parquet` writes probabilities.
            part: The name of one file in ``queries/``, which is read alone, with the documents that it names.

        Raises:
            DataError: The folder holds something else, or a file is damaged.
        """
        read_folder = of_store("read-folder", brings="reading Parquet is a part")
        columns = read_folder(folder, part=part)
        return cls(**checked_columns(**columns, docs_name="documents", scale=scale, whole=part is None))

    def to_parquet(self, folder: str | os.PathLike[str], *, shards: int = 1) -> None:
        """Write a new folder of Parquet files, whole or not at all; needs tttembed-store.

        Args:
            folder: A path where nothing is, or an empty folder.
            shards: Files of queries, and files of documents.
        """
        of_store("write-folder", brings="writing Parquet is a part")(folder, vars(self), shards)

    @classmethod
    def joined(cls, parts: Sequence[Rewards]) -> Rewards:
        """The rewards of *parts* of one set, each document once: one judge and embedder, no query in two of them."""
        ids = np.concatenate([part.doc_ids for part in parts])
        doc_ids, first, row = np.unique(ids, return_index=True, return_inverse=True)
        begins = np.cumsum([0, *(len(part.doc_ids) for part in parts)])
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("values", "depths", *_OF_QUERIES, *_OF_DOCUMENTS)
        }
        columns |= {name: columns[name][first] for name in _OF_DOCUMENTS}
        pairs = [row[part.candidates + at] for part, at in zip(parts, begins, strict=False)]
        starts = starts_of(columns.pop("depths"))
        return replace(parts[0], doc_ids=doc_ids, starts=starts, candidates=np.concatenate(pairs), **columns)

    def __len__(self) -> int:
        """Number of rewarded queries."""
        return len(self.query_vectors)

    def __repr__(self) -> str:
        tasks = len(np.unique(self.tasks))
        return f"Rewards({len(self)} queries of {tasks} tasks, {self.budget} pairs, width {self.width}, {self.judge})"

    @property
    def width(self) -> int:
        """Width d of the vectors."""
        return int(self.query_vectors.shape[1])

    @property
    def queries(self) -> UnitRows:
        """The unit query vectors."""
        return UnitRows(self.query_vectors, self.query_norms)

    @property
    def documents(self) -> UnitRows:
        """The unit document vectors."""
        return UnitRows(self.doc_vectors, self.doc_norms)

    @property
    def depths(self) -> IntArray:
        """(n,) judged candidates per query."""
        return np.diff(self.starts)

    @property
    def budget(self) -> int:
        """Rewarded (query, document) pairs."""
        return len(self.candidates)

    @cached_property
    def same_queries(self) -> IntArray:
        """(n,) a number for each query vector, the same whatever id it was logged under; see `same_text`."""
        return same_text(self.queries)

    @cached_property
    def near_queries(self) -> IntArray:
        """(n,) a number for each group of queries that ask nearly the same: see `near_copies`."""
        return near_copies(self.queries, self.spread)

    @cached_property
    def spread(self) -> float:
        """How far cosines spread under the embedder: about 1 with all-MiniLM-L6-v2, .25 with multilingual-e5-small.

        It is the mean of 1 - cosine of each query and each judged document, over `TYPICAL`. Each text counts once, and
        the candidates of a query, which lie nearer to it, `_OWN` times: so it is much the same for few queries.
        """
        query, pair = (np.unique(same, return_index=True)[1] for same in (self.same_queries, self.same_documents))
        sides = self.queries.rows(query), self.documents.rows(self.candidates[pair])
        means = (rows.weighted_sum(np.full((1, len(rows)), 1.0 / len(rows)))[0] for rows in sides)
        some = slice(None, None, 1 + self.budget // _PAIRS)
        owner = np.repeat(np.arange(len(self)), self.depths)[some]
        own = 1.0 - np.vecdot(self.queries.unit[owner], self.documents.rows(self.candidates[some]).unit).mean()
        share = self.budget / (len(self) * len(pair))
        return max(_LEAST_SPREAD, (1.0 - float(np.vecdot(*means)) + (_OWN - 1.0) * share * float(own)) / TYPICAL)

    @cached_property
    def reach(self) -> NDArray[np.float64]:
        """(n,) how far the best reward of each query lies above its worst."""
        starts = self.starts[:-1]
        return np.asarray(np.maximum.reduceat(self.values, starts) - np.minimum.reduceat(self.values, starts))

    @cached_property
    def same_documents(self) -> IntArray:
        """A number for the document of each pair, the same for copies of one text."""
        used, place = np.unique(self.candidates, return_inverse=True)
        return same_text(self.documents.rows(sliced(used)))[place]

    def take(self, rows: IntArray) -> Rewards:
        """The rewards of some queries, with only the documents they use; vectors in order are not copied."""
        if np.array_equal(rows, np.arange(len(self))):
            return self
        depths = self.depths[rows]
        starts = starts_of(depths)
        pairs = np.repeat(self.starts[:-1][rows] - starts[:-1], depths) + np.arange(starts[-1])
        used, local = np.unique(self.candidates[pairs], return_inverse=True)
        return replace(
            self,
            starts=starts,
            candidates=local.astype(np.intp),
            values=self.values[pairs],
            doc_ids=self.doc_ids[used],
            **{name: getattr(self, name)[sliced(used)] for name in _OF_DOCUMENTS},
            **{name: getattr(self, name)[sliced(rows)] for name in _OF_QUERIES},
        )

    def moved(self, offsets: FloatArray) -> Rewards:
        """The same rewards of the queries that *offsets* (n, d) move."""
        return replace(self, query_vectors=shift(self.query_vectors, offsets, self.query_norms))

    def bounded(self, most: int) -> Rewards:
        """The rewards with at most *most* candidates of each query: half of them its best, half of them its nearest.

        One query of thousands of candidates would cost more than all others, and say no more than its best ones and
        those that the retriever takes for them.
        """
        kept = np.ones(self.budget, dtype=bool)
        for query in np.flatnonzero(self.depths > most).tolist():
            pairs = np.arange(self.starts[query], self.starts[query + 1])
            near = self.documents.rows(self.candidates[pairs]).unit @ self.queries.rows(np.array([query])).unit[0]
            best = pairs[np.argsort(-self.values[pairs], kind="stable")][: most // 2]
            rest = pairs[np.argsort(-near, kind="stable")]
            kept[pairs] = False
            kept[best] = kept[rest[~np.isin(rest, best)][: most - len(best)]] = True
        return self.only(kept)

    def only(self, pairs: NDArray[np.bool_]) -> Rewards:
        """The rewards of some *pairs* (N,), with the queries that keep one.

        Raises:
            RewardError: No pair is kept.
        """
        if pairs.all():
            return self
        if not pairs.any():
            raise RewardError("rewards: expected one that is kept, got none")
        depths = np.add.reduceat(pairs.astype(np.intp), self.starts[:-1])
        starts = starts_of(depths)
        kept = replace(self, candidates=self.candidates[pairs], values=self.values[pairs], starts=starts)
        return kept.take(np.flatnonzero(depths))
