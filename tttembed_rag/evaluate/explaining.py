"""The effect of an offset on the results of one query, document by document: the rows behind `tttembed explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tttembed_rag.errors import DataError, InputError, check_count
from tttembed_rag.evaluate.collection import LISTED
from tttembed_rag.evaluate.datasets import QRELS, Dataset, Judgments
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors
from tttembed_rag.evaluate.index import FaissIndex
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.offsets.rescorer import Rescorer
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit

# Cosine above which two query vectors are one query's.
_SAME = 1 - 1e-5


@dataclass(frozen=True, slots=True)
class Move:
    """A document among the first results before or after.

    Attributes:
        document: Its id.
        text: Its title and text.
        rank_before: Its rank under the base vector, 1 is the best.
        rank: Its rank under the offset, and by words where a rescorer is published.
        score_before: Cosine similarity to the base vector.
        score: Cosine similarity to the query vector with the offset.
        reward: The judge's score for this query; None where it was not judged.
        words: Words that it shares with the query, the rarest first, where the task's rescorer sorted by them.
    """

    document: str
    text: str
    rank_before: int
    rank: int
    score_before: float
    score: float
    reward: float | None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mover:
    """A rewarded query that a local offset was learned from.

    Attributes:
        query_id: Its id; empty where the collection does not have it.
        text: Its text; empty likewise.
        share: Its share of the offset of the explained query; all shares sum to 1, a negative one pulls back.
    """

    query_id: str
    text: str
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """One query, the offset that served it, and the documents that moved.

    Attributes:
        moves: Documents among the first results before or after, best new rank first.
        movers: The rewarded queries that moved it, the largest share first; empty unless the offset is local.
    """

    text: str
    offset: Offset
    moves: tuple[Move, ...]
    movers: tuple[Mover, ...] = ()

    @property
    def rose(self) -> list[Move]:
        """Documents that rank higher now."""
        return [move for move in self.moves if move.rank < move.rank_before]

    @property
    def kept(self) -> list[Move]:
        """Documents that rank where they did."""
        return [move for move in self.moves if move.rank == move.rank_before]

    @property
    def fell(self) -> list[Move]:
        """Documents that rank lower now."""
        return [move for move in self.moves if move.rank > move.rank_before]


def explain(
    folder: Path,
    query_id: str,
    offsets: Offsets,
    *,
    vectors: str,
    rewards: str | None = None,
    task: str | None = None,
    top: int = 10,
) -> Explanation:
    """The effect of *offsets* on one query of a BEIR folder.

    Its stored *vectors* are searched; *rewards* names stored scores, or is `QRELS`. Without a *task* it is the one task
    of the offsets, or the folder's name where they know several. The *top* first results are looked at.

    Raises:
        DataError: The folder lacks a part, or does not know the query.
        InputError: The offsets have another width than the vectors, or none serves the query.
    """
    dataset = load_beir(folder, labels=False)
    docs, queries = load_vectors(folder, vectors, dataset)
    judgments = dataset.qrels if rewards == QRELS else load_scores(folder, rewards) if rewards else {}
    return explain_in(
        dataset, query_id, offsets, docs, queries, judgments, task=task or task_of(offsets, dataset.name), top=top
    )


def explain_in(
    dataset: Dataset,
    query_id: str,
    offsets: Offsets,
    docs: FloatArray,
    queries: FloatArray,
    judgments: Judgments,
    *,
    task: str,
    top: int = 10,
) -> Explanation:
    """The same of a *dataset* with the vectors of its *docs* (N, d) and *queries* (M, d), and what was said of them."""
    check_count("top", top)
    if query_id not in dataset.queries:
        labelled = " with labels" if dataset.qrels else ""
        raise DataError(f"{dataset.name}: expected a query{labelled}, got {query_id!r}")
    if offsets.width != docs.shape[1]:
        raise InputError(f"offsets: expected the width of the vectors, {docs.shape[1]}, got {offsets.width}")
    offset = _serving(offsets, task, query_id)
    place = list(dataset.queries).index(query_id)
    base = queries[place]
    both = np.stack([base, offsets.apply(base, task=task, query_id=query_id)])
    index = FaissIndex.from_vectors(docs)
    text, rewards = dataset.queries[query_id], judgments.get(query_id, {})
    own, rescorer = dataset.own[[place, place]], offsets.rescorer(task)
    moves = moves_between(dataset.documents, index, both, rewards, top=top, text=text, rescorer=rescorer, own=own)
    return Explanation(text, offset, moves, _movers(offset, base, dataset.queries, queries))


def task_of(offsets: Offsets, name: str) -> str:
    """The task of a query from a place called *name*: the one task of *offsets*, or *name* where they know several."""
    tasks = {offset.task for offset in offsets.values() if offset.task is not None}
    return tasks.pop() if len(tasks) == 1 else name


def _movers(offset: Offset, base: FloatArray, texts: Mapping[str, str], queries: FloatArray) -> tuple[Mover, ...]:
    """The rewarded queries that a local *offset* of the query vector *base* (d,) comes from, largest share first.

    An offset names none: they are known by their vectors among those of the *queries* (M, d) with these *texts*.
    """
    if offset.map is None or not (shares := offset.map.shares(unit(base))).any():
        return ()
    names = list(texts)
    nearest = FaissIndex.from_vectors(queries).search(offset.map.landmarks, 1)
    cosines, rows = (column[:, 0].tolist() for column in nearest)
    known = [names[row] if cosine > _SAME else "" for cosine, row in zip(cosines, rows, strict=True)]
    order = np.argsort(-np.abs(shares), kind="stable").tolist()
    return tuple(Mover(known[i], texts.get(known[i], ""), float(shares[i])) for i in order)


def _serving(offsets: Offsets, task: str, query_id: str) -> Offset:
    """The offset that serves the query, or whose rescorer does, or an error that says why none does."""
    if (offset := offsets.find(task, query_id)) is not None:
        return offset
    if offsets.rescorer(task) is not None:
        return offsets[f"local:{task}"]
    shared = offsets.get(f"task:{task}", offsets.get("global"))
    tasks = ", ".join(sorted({o.task for o in offsets.values() if o.task})) or "none"
    why = f"none of its task (tasks: {tasks})" if shared is None else f"{shared.key} {shared.evidence}"
    raise InputError(f"offsets: expected one that serves query {query_id!r} of task {task!r}, got {why}")


def moves_between(
    documents: Mapping[str, str],
    index: FaissIndex,
    both: FloatArray,
    rewards: Mapping[str, float],
    *,
    top: int,
    text: str = "",
    rescorer: Rescorer | None = None,
    own: IntArray | None = None,
) -> tuple[Move, ...]:
    """The moves of documents from the search with one query vector to the search with another, best new rank first.

    *documents* are texts by id in the order of the *index*, *both* (2, d) the vectors before and after. A *rescorer*
    sorts the first `LISTED` documents of the search after, by the query's *text*. *own* is that of `FaissIndex.search`.
    """
    similarities, rows = index.search(both, len(index), own=own)
    ids = list(documents)
    if rescorer is not None:
        listed = rows[1, :LISTED]
        order = rescorer.order(text, [documents[ids[row]] for row in listed.tolist()], similarities[1, :LISTED])
        rows[1, :LISTED], similarities[1, :LISTED] = listed[order], similarities[1, :LISTED][order]
    ranks, scores = np.empty(rows.shape, np.intp), np.empty(rows.shape)
    np.put_along_axis(ranks, rows, np.arange(len(index))[None], axis=1)
    np.put_along_axis(scores, rows, similarities, axis=1)
    shown = np.flatnonzero((ranks < top).any(axis=0))

    def shared(row: int) -> tuple[str, ...]:
        if rescorer is None or ranks[1, row] >= LISTED:
            return ()
        return tuple(rescorer.shared_words(text, documents[ids[row]]))

    return tuple(
        Move(
            document=ids[row],
            text=documents[ids[row]],
            rank_before=int(ranks[0, row]) + 1,
            rank=int(ranks[1, row]) + 1,
            score_before=float(scores[0, row]),
            score=float(scores[1, row]),
            reward=rewards.get(ids[row]),
            words=shared(row),
        )
        for row in shown[np.argsort(ranks[1, shown])].tolist()
    )
