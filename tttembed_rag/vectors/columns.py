"""Columns of rewards as users hand them in: checked, with one clear line for what is wrong, and flat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError, RewardError, VectorError
from tttembed_rag.vectors.checks import FloatArray, IntArray, as_floats, checked_norms, norms

# Products of float32 vectors with norms between these neither overflow nor vanish.
_SAFE_NORMS = (1e-15, 1e15)
# Rows of queries, or of memory-mapped vectors, checked at a time.
_CHECK_ROWS = 65_536


def checked_columns(
    query_vectors: ArrayLike,
    doc_vectors: ArrayLike,
    candidates: IntArray,
    starts: IntArray,
    docs_name: str,
    *,
    default_task: str,
    judge: str | Sequence[str],
    tasks: Sequence[str] | None = None,
    query_ids: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
    query_texts: Sequence[str] | None = None,
    doc_texts: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The fields of `Rewards` but for the values, by name.

    Args:
        query_vectors: (n, d).
        doc_vectors: (u, d), of which those that nobody judged are left out where they are half or more.
        candidates: (N,) rows of *doc_vectors*.
        starts: (n + 1,) first pair of each query.
        docs_name: What a message calls *doc_vectors*.
        default_task: The task where none are given.
        judge: One name, or n that agree.
        tasks: n names; None is the default one.
        query_ids: n names; None numbers them.
        sources: n names, which may be empty; None is empty.
        doc_ids: u names; None numbers them.
        query_texts: n texts, and
        doc_texts: u texts; None where they are not known.

    Raises:
        VectorError: A vector is not what it should be.
        InputError: Numbers of rows, candidates or names are not what they should be.
        RewardError: There is no rewarded query, or one without candidates.
    """
    queries, docs = matrix("query_vectors", query_vectors), matrix(docs_name, doc_vectors)
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
    check_candidates(candidates, starts, len(docs))
    used = np.zeros(len(docs), dtype=bool)
    used[candidates] = True
    doc_norms = norms_of_used(docs_name, docs, used)
    doc_keys = names("doc_ids", doc_ids, len(docs), [str(row) for row in range(len(docs))], "document", of=docs_name)
    texts = _texts("doc_texts", doc_texts, len(docs))
    if 2 * used.sum() <= len(docs):
        # Most of this index was never judged: keep what was, or every fit would read all of it.
        candidates = (np.cumsum(used) - 1)[candidates]
        docs, doc_norms, doc_keys, texts = docs[used], doc_norms[used], doc_keys[used], texts[used]
    queries, query_norms = tamed(queries, checked_norms("query_vectors", queries))
    docs, doc_norms = tamed(docs, doc_norms)
    task_keys = names("tasks", tasks, n, [default_task] * n)
    id_keys = names("query_ids", query_ids, n, [str(q) for q in range(n)])
    source_keys = names("sources", sources, n, [""] * n, empty=True)
    check_unique(task_keys, id_keys, source_keys)
    return {
        "query_vectors": queries,
        "doc_vectors": docs,
        "query_norms": query_norms,
        "doc_norms": doc_norms,
        "starts": starts,
        "candidates": candidates,
        "tasks": task_keys,
        "query_ids": id_keys,
        "judge": one_judge(judge, n),
        "sources": source_keys,
        "doc_ids": doc_keys,
        "query_texts": _texts("query_texts", query_texts, n),
        "doc_texts": texts,
    }


def _texts(name: str, value: Sequence[str] | None, count: int) -> NDArray[np.object_]:
    """(count,) texts of any length; empty ones where there are none."""
    if value is None:
        return np.full(count, "", dtype=object)
    if isinstance(value, str) or len(value) != count:
        raise InputError(f"{name}: expected {count} texts, got {type(value).__name__} of {len(value)}")
    if wrong := [row for row, text in enumerate(value) if not isinstance(text, str)]:
        raise InputError(f"{name}: expected texts, got {value[wrong[0]]!r:.40} at row {wrong[0]}")
    return np.array(value, dtype=object)


def sliced(rows: IntArray) -> IntArray | slice:
    """The rows as a slice where they lie in order, so that indexing with them copies nothing."""
    first, count = int(rows[0]), len(rows)
    return slice(first, first + count) if np.array_equal(rows, np.arange(first, first + count)) else rows


def matrix(name: str, value: ArrayLike) -> FloatArray:
    """A matrix of floats, (rows, d)."""
    array = as_floats(name, value)
    if array.ndim != 2:
        raise VectorError(f"{name}: expected a matrix (rows, d), got shape {array.shape}")
    return array


def ragged(name: str, value: Any, dtype: type[Any]) -> tuple[NDArray[Any], IntArray]:
    """One row per query, flat, with the starts of the rows; a matrix is a row per query."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise InputError(f"{name}: expected one row per query, got {type(value).__name__}")
    rows = [value.reshape(-1)] if (rectangular := isinstance(value, np.ndarray) and value.ndim == 2) else list(value)
    if rows and not hasattr(rows[0], "__len__"):
        raise InputError(f"{name}: expected one row of numbers per query, got {type(rows[0]).__name__} per query")
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
    depths = [value.shape[1]] * len(value) if rectangular else [len(array) for array in arrays]
    return flat, np.concatenate([[0], np.cumsum(depths)]).astype(np.intp)


def stacked(name: str, value: Any, starts: IntArray) -> FloatArray:
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


def unequal(expected: IntArray, got: IntArray) -> str:
    """In words, the first query with another number of rewards than of candidates."""
    if len(expected) != len(got):
        return f"{len(got)} rows for {len(expected)} queries"
    q = int(np.argmax(expected != got))
    return f"{got[q]} rewards for {expected[q]} candidates in query {q}"


def norms_of_used(name: str, vectors: FloatArray, used: NDArray[np.bool_]) -> FloatArray:
    """Norms of all vectors, those of unused rows 1, whatever is in them."""
    lengths = np.ones(len(vectors), dtype=vectors.dtype)
    for start in range(0, len(vectors), _CHECK_ROWS):
        rows = np.flatnonzero(used[start : start + _CHECK_ROWS]) + start
        if rows.size:
            lengths[rows] = norms(vectors[sliced(rows)])
    bad = ~(np.isfinite(lengths) & (lengths > 0))
    if bad.any():
        row = int(np.argmax(bad))
        checked_norms(name, vectors[row : row + 1], first=row)
    return lengths


def tamed(vectors: FloatArray, lengths: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Vectors and norms; divided once, by a copy, where products of such vectors would lose their digits."""
    low, high = _SAFE_NORMS
    if low < lengths.min() and lengths.max() < high:
        return vectors, lengths
    return (vectors / lengths[:, None]).astype(vectors.dtype), np.ones_like(lengths)


def check_candidates(candidates: IntArray, starts: IntArray, documents: int) -> None:
    """Refuse rows that do not exist and a document that is twice in a query."""
    if candidates.min() < 0 or candidates.max() >= documents:
        raise InputError(
            f"candidates: expected rows 0 to {documents - 1} of doc_vectors, "
            f"got {candidates.min()} to {candidates.max()}"
        )
    if (np.diff(candidates) > 0).all():
        return
    for first in range(0, len(starts) - 1, _CHECK_ROWS):
        some = starts[first : first + _CHECK_ROWS + 1]
        owner = np.repeat(np.arange(first, first + len(some) - 1), np.diff(some))
        pairs, counts = np.unique(owner * documents + candidates[some[0] : some[-1]], return_counts=True)
        if (counts > 1).any():
            query, doc = divmod(int(pairs[np.argmax(counts > 1)]), documents)
            raise InputError(
                f"candidates: expected each document once per query, got document {doc} twice in query {query}"
            )


def names(
    name: str,
    value: Sequence[str] | None,
    n: int,
    default: Sequence[str],
    each: str = "query",
    *,
    of: str = "query_vectors",
    empty: bool = False,
) -> NDArray[np.str_]:
    """(n,) names, or the *default* where none are given."""
    if value is None:
        return np.array(default, dtype=np.str_)
    if isinstance(value, str) or len(value) != n:
        got = f"the string {value!r}" if isinstance(value, str) else f"{len(value)}"
        raise InputError(f"{name}: expected one per {each}, {n} in {of}, got {got}")
    for row, key in enumerate(value):
        if not isinstance(key, str) or not (key or empty):
            raise InputError(f"{name}: expected {'' if empty else 'non-empty '}strings, got {key!r} at row {row}")
    return np.array(value, dtype=np.str_)


def check_unique(tasks: NDArray[np.str_], ids: NDArray[np.str_], sources: NDArray[np.str_]) -> None:
    """Refuse an id that is twice in a task and source."""
    seen: set[tuple[str, str, str]] = set()
    for row in zip(tasks.tolist(), ids.tolist(), sources.tolist(), strict=True):
        if row in seen:
            of = f" from source {row[2]!r}" if row[2] else ""
            raise InputError(
                f"query_ids: expected ids unique within a task, got {row[1]!r} twice in task {row[0]!r}{of}"
            )
        seen.add(row)


def one_judge(judge: str | Sequence[str], n: int) -> str:
    """The one fingerprint that all queries share."""
    if isinstance(judge, str):
        return judge
    judges = sorted(set(judge))
    if len(judge) != n or len(judges) != 1:
        raise RewardError(f"judge: expected one judge for all {n} queries (calibrate before mixing), got {judges}")
    return judges[0]
