"""Rewards: judged candidates of observed queries as columns, and the scale their scores are on.

Candidates are rows of one matrix of unique documents; query q owns `candidates[starts[q]:
starts[q + 1]]`. Vectors are kept as they came (a memory-mapped matrix stays on disk); their norms
are kept beside them, so nothing is copied only to be normalised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError, RewardError, VectorError
from tttembed_rag.feedback import columns_of
from tttembed_rag.scales import Scale
from tttembed_rag.system.arrays import read_arrays, write_arrays
from tttembed_rag.vectors.checks import FloatArray, IntArray, as_floats, checked_norms, norms
from tttembed_rag.vectors.copies import near_copies, same_text
from tttembed_rag.vectors.rows import UnitRows

# The task of queries that name none: `apply(X)` and `apply(X, task=None)` look it up.
DEFAULT_TASK = "default"
# Products of float32 vectors with norms between these neither overflow nor vanish.
_SAFE_NORMS = (1e-15, 1e15)
# Rows of memory-mapped vectors checked at a time.
_CHECK_ROWS = 65_536


# What a file of rewards holds, and what follows from it: the norms.
_SAVED = ("query_vectors", "doc_vectors", "starts", "candidates", "values", "tasks", "query_ids")


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

        query_ids: n query ids, unique within a task.

        judge: Fingerprint of the one judge all rewards come from.
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
    ) -> Rewards:
        """Rewards of candidates given by their vectors.

        Args:
            query_vectors: (n, d) base query vectors.

            candidate_vectors: (n, k, d), or n arrays (k_q, d) when depths differ.

            rewards: (n, k), or n arrays (k_q,), on *scale*.

            tasks: n task keys; None puts all queries in one task.

            query_ids: n ids, unique within a task; None numbers the queries.

            scale: `Scale`, or its text: ``probability``, ``logit``, ``rubric:0,5``.

            judge: Fingerprint of the judge, or one per query (which must agree).
        """
        scores, starts = _ragged("rewards", rewards, np.float64)
        docs = _stacked("candidate_vectors", candidate_vectors, starts)
        candidates = np.arange(len(scores), dtype=np.intp)
        return cls._checked(
            query_vectors, docs, candidates, scores, starts, tasks, query_ids, scale, judge, "candidate_vectors"
        )

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
        """
        rows, starts = _ragged("candidates", candidates, np.intp)
        scores, score_starts = _ragged("rewards", rewards, np.float64)
        if not np.array_equal(starts, score_starts):
            raise InputError(
                "rewards: expected one reward per candidate, "
                f"got {_first_difference(np.diff(starts), np.diff(score_starts))}"
            )
        return cls._checked(
            query_vectors, doc_vectors, rows, scores, starts, tasks, query_ids, scale, judge, "doc_vectors"
        )

    @classmethod
    def from_texts(
        cls,
        feedback: Iterable[Sequence[Any]],
        *,
        embed_query: Callable[[str], ArrayLike],
        embed_documents: Callable[[list[str]], ArrayLike | Sequence[ArrayLike]],
        scale: Scale | str = "probability",
        judge: str = "unnamed",
    ) -> Rewards:
        """Rewards of texts, with the vectors that an embedding model gives them; a query's id is its text.

        Args:
            feedback: Rows (query, document, reward) or (query, document, reward, task); of several rewards of one pair
                the mean counts.

            embed_query: Text to *base* query vector (d,): the model itself, never a wrapper that adds offsets.

            embed_documents: Texts to document vectors, of the model the index was built with; asked once.

            scale: `Scale`, or its text: ``probability``, ``logit``, ``rubric:0,5``.

            judge: Fingerprint of the judge.
        """
        columns = columns_of(feedback, DEFAULT_TASK, embed_query, embed_documents)
        return cls.from_indexed(**columns, scale=scale, judge=judge)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one ``.npz`` file, whole or not at all."""
        write_arrays(path, {name: getattr(self, name) for name in _SAVED} | {"judge": np.array(self.judge)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rewards:
        """Read a file that `save` wrote; everything in it is checked again, and nothing executed.

        Raises:
            DataError: The file is something else, or damaged.
        """
        saved = read_arrays(path, (*_SAVED, "judge"), "a file that Rewards.save wrote")
        queries, documents, starts, candidates, values, tasks, ids, judge = saved
        rows, rewards = (np.split(column, starts[1:-1]) for column in (candidates, values))
        return cls.from_indexed(queries, documents, rows, rewards, tasks.tolist(), ids.tolist(), judge=str(judge))

    @classmethod
    def _checked(
        cls,
        query_vectors: ArrayLike,
        doc_vectors: ArrayLike,
        candidates: IntArray,
        scores: NDArray[np.float64],
        starts: IntArray,
        tasks: Sequence[str] | None,
        query_ids: Sequence[str] | None,
        scale: Scale | str,
        judge: str | Sequence[str],
        docs_name: str,
    ) -> Rewards:
        queries, docs = _matrix("query_vectors", query_vectors), _matrix(docs_name, doc_vectors)
        n, rewarded = len(queries), len(starts) - 1
        if not n:
            raise RewardError("rewards: expected at least one rewarded query, got none")
        if rewarded != n:
            raise InputError(f"rewards: expected one row per query, {n} in query_vectors, got {rewarded}")
        if queries.shape[1] != docs.shape[1]:
            raise VectorError(f"{docs_name}: expected width {queries.shape[1]} like query_vectors, got {docs.shape[1]}")
        if not (depths := np.diff(starts)).all():
            raise RewardError(
                f"rewards: expected at least one judged candidate per query, got none for query {depths.argmin()}"
            )
        _check_candidates(candidates, starts, len(docs))
        used = np.zeros(len(docs), dtype=bool)
        used[candidates] = True
        doc_norms = _norms_of_used(docs_name, docs, used)
        if 2 * used.sum() <= len(docs):
            # Most of this index was never judged: keep what was, or every fit would read all of it.
            candidates = (np.cumsum(used) - 1)[candidates]
            docs, doc_norms = docs[used], doc_norms[used]
        queries, query_norms = _tamed(queries, checked_norms("query_vectors", queries))
        docs, doc_norms = _tamed(docs, doc_norms)
        task_keys = _keys("tasks", tasks, n, [DEFAULT_TASK] * n)
        id_keys = _keys("query_ids", query_ids, n, [str(q) for q in range(n)])
        _check_unique(task_keys, id_keys)
        return cls(
            query_vectors=queries,
            doc_vectors=docs,
            query_norms=query_norms,
            doc_norms=doc_norms,
            starts=starts,
            candidates=candidates,
            values=(Scale.parse(scale) if isinstance(scale, str) else scale).to_unit(scores),
            tasks=task_keys,
            query_ids=id_keys,
            judge=_one_judge(judge, n),
        )

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
        return near_copies(self.queries)

    @cached_property
    def reach(self) -> NDArray[np.float64]:
        """(n,) how far the best reward of each query lies above its worst."""
        starts = self.starts[:-1]
        return np.asarray(np.maximum.reduceat(self.values, starts) - np.minimum.reduceat(self.values, starts))

    @cached_property
    def same_documents(self) -> IntArray:
        """A number for the document of each pair, the same for copies of one text."""
        used, place = np.unique(self.candidates, return_inverse=True)
        return same_text(self.documents.rows(_sliced(used)))[place]

    def take(self, rows: IntArray) -> Rewards:
        """The rewards of some queries, with only the documents they use; vectors in order are not copied."""
        if np.array_equal(rows, np.arange(len(self))):
            return self
        depths = self.depths[rows]
        starts = np.concatenate([[0], np.cumsum(depths)]).astype(np.intp)
        pairs = np.repeat(self.starts[:-1][rows] - starts[:-1], depths) + np.arange(starts[-1])
        used, local = np.unique(self.candidates[pairs], return_inverse=True)
        return Rewards(
            query_vectors=self.query_vectors[_sliced(rows)],
            doc_vectors=self.doc_vectors[_sliced(used)],
            query_norms=self.query_norms[rows],
            doc_norms=self.doc_norms[used],
            starts=starts,
            candidates=local.astype(np.intp),
            values=self.values[pairs],
            tasks=self.tasks[rows],
            query_ids=self.query_ids[rows],
            judge=self.judge,
        )


def _sliced(rows: IntArray) -> IntArray | slice:
    """The rows as a slice where they lie in order, so that indexing with them copies nothing."""
    first, count = int(rows[0]), len(rows)
    return slice(first, first + count) if np.array_equal(rows, np.arange(first, first + count)) else rows


def _matrix(name: str, value: ArrayLike) -> FloatArray:
    array = as_floats(name, value)
    if array.ndim != 2:
        raise VectorError(f"{name}: expected a matrix (rows, d), got shape {array.shape}")
    return array


def _ragged(name: str, value: Any, dtype: type[Any]) -> tuple[NDArray[Any], IntArray]:
    """One row per query, flat, with the starts of the rows; a matrix is a row per query."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise InputError(f"{name}: expected one row per query, got {type(value).__name__}")
    rows = [value.reshape(-1)] if (matrix := isinstance(value, np.ndarray) and value.ndim == 2) else list(value)
    try:
        arrays = [np.asarray(row) if len(row) else np.empty(0, dtype) for row in rows]
        flat = np.concatenate(arrays) if arrays else np.empty(0, dtype)
        if dtype is np.intp and flat.size and flat.dtype.kind not in "iu":
            raise InputError(f"{name}: expected integer rows of doc_vectors, got dtype {flat.dtype}")
        flat = flat.astype(dtype, copy=False)
    except InputError:
        raise
    except (TypeError, ValueError) as exc:
        raise InputError(f"{name}: expected one row of numbers per query, got {exc}") from exc
    if flat.ndim != 1:
        raise InputError(f"{name}: expected one row of numbers per query, got rows of shape {arrays[0].shape}")
    depths = [value.shape[1]] * len(value) if matrix else [len(array) for array in arrays]
    return flat, np.concatenate([[0], np.cumsum(depths)]).astype(np.intp)


def _stacked(name: str, value: Any, starts: IntArray) -> FloatArray:
    """Candidate vectors (n, k, d), or n blocks (k_q, d), as one (N, d) matrix in reward order."""
    depths = np.diff(starts)
    if not hasattr(value, "__len__") or len(value) != len(depths):
        got = f"{len(value)}" if hasattr(value, "__len__") else type(value).__name__
        raise InputError(f"{name}: expected one block per query, {len(depths)} in rewards, got {got}")
    if isinstance(value, np.ndarray) and value.ndim == 3 and (depths == value.shape[1]).all():
        return as_floats(name, value.reshape(-1, value.shape[-1]))
    blocks = [as_floats(name, block) for block in value]
    for q, block in enumerate(blocks):
        if block.ndim != 2 or len(block) != depths[q]:
            raise InputError(
                f"{name}: expected shape ({depths[q]}, d) for query {q}, one vector per reward, got {block.shape}"
            )
    if len(widths := sorted({block.shape[1] for block in blocks})) > 1:
        raise VectorError(f"{name}: expected vectors of one width, got widths {widths}")
    return np.concatenate(blocks) if blocks else np.empty((0, 0))


def _first_difference(expected: IntArray, got: IntArray) -> str:
    if len(expected) != len(got):
        return f"{len(got)} rows for {len(expected)} queries"
    q = int(np.argmax(expected != got))
    return f"{got[q]} rewards for {expected[q]} candidates in query {q}"


def _norms_of_used(name: str, vectors: FloatArray, used: NDArray[np.bool_]) -> FloatArray:
    """Norms of all vectors, those of unused rows 1, whatever is in them."""
    lengths = np.ones(len(vectors), dtype=vectors.dtype)
    for start in range(0, len(vectors), _CHECK_ROWS):
        rows = np.flatnonzero(used[start : start + _CHECK_ROWS]) + start
        if rows.size:
            lengths[rows] = norms(vectors[_sliced(rows)])
    bad = ~(np.isfinite(lengths) & (lengths > 0))
    if bad.any():
        row = int(np.argmax(bad))
        checked_norms(name, vectors[row : row + 1], first=row)
    return lengths


def _tamed(vectors: FloatArray, lengths: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Vectors and norms; divided once, by a copy, where products of such vectors would lose their digits."""
    low, high = _SAFE_NORMS
    if low < lengths.min() and lengths.max() < high:
        return vectors, lengths
    return (vectors / lengths[:, None]).astype(vectors.dtype), np.ones_like(lengths)


def _check_candidates(candidates: IntArray, starts: IntArray, documents: int) -> None:
    if candidates.min() < 0 or candidates.max() >= documents:
        raise InputError(
            f"candidates: expected rows 0 to {documents - 1} of doc_vectors, "
            f"got {candidates.min()} to {candidates.max()}"
        )
    if (np.diff(candidates) > 0).all():
        return
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pairs, counts = np.unique(owner * documents + candidates, return_counts=True)
    if (counts > 1).any():
        query, doc = divmod(int(pairs[np.argmax(counts > 1)]), documents)
        raise InputError(
            f"candidates: expected each document once per query, got document {doc} twice in query {query}"
        )


def _keys(name: str, value: Sequence[str] | None, n: int, default: Sequence[str]) -> NDArray[np.str_]:
    keys = default if value is None else value
    if isinstance(keys, str) or len(keys) != n:
        got = f"the string {keys!r}" if isinstance(keys, str) else f"{len(keys)}"
        raise InputError(f"{name}: expected one per query, {n} in query_vectors, got {got}")
    for row, key in enumerate(keys):
        if not isinstance(key, str) or not key:
            raise InputError(f"{name}: expected non-empty strings, got {key!r} at row {row}")
    return np.array(keys, dtype=np.str_)


def _check_unique(tasks: NDArray[np.str_], ids: NDArray[np.str_]) -> None:
    seen: set[tuple[str, str]] = set()
    for pair in zip(tasks.tolist(), ids.tolist(), strict=True):
        if pair in seen:
            raise InputError(f"query_ids: expected ids unique within a task, got {pair[1]!r} twice in task {pair[0]!r}")
        seen.add(pair)


def _one_judge(judge: str | Sequence[str], n: int) -> str:
    if isinstance(judge, str):
        return judge
    judges = sorted(set(judge))
    if len(judge) != n or len(judges) != 1:
        raise RewardError(f"judge: expected one judge for all {n} queries (calibrate before mixing), got {judges}")
    return judges[0]
