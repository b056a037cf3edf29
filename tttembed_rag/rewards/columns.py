"""Columns of rewards as users hand them in: checked, with one clear line for what is wrong, and flat."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError, RewardError, VectorError
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.vectors.checks import FloatArray, IntArray, as_floats, checked_norms, norms

_log = logging.getLogger(__name__)
# The task of queries that name none: `apply(X)` and `apply(X, task=None)` look it up.
DEFAULT_TASK = "default"
# Products of float32 vectors with norms between these neither overflow nor vanish.
_SAFE_NORMS = (1e-15, 1e15)
# Rows of queries, or of memory-mapped vectors, checked at a time.
_CHECK_ROWS = 65_536


def checked_columns(
    query_vectors: ArrayLike,
    doc_vectors: ArrayLike,
    candidates: IntArray,
    scores: NDArray[np.float64],
    starts: IntArray,
    *,
    scale: Scale | str,
    docs_name: str = "doc_vectors",
    whole: bool = True,
    judge: str | Sequence[str] = "unnamed",
    embedder: str = "",
    tasks: Sequence[str] | None = None,
    query_ids: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
    query_texts: Sequence[str] | None = None,
    doc_texts: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The fields of `Rewards` by name, of columns as `Rewards.from_indexed` takes them, but flat.

    The pairs of query q are those from ``starts[q]`` to ``starts[q + 1]`` of *candidates* (N,) and *scores* (N,).
    Documents that nobody judged are left out where they are half or more. Messages call *doc_vectors* by *docs_name*,
    and the log doubts the *scale* where the scores are the *whole* of some rewards.

    Raises:
        VectorError: A vector is not what it should be.
        InputError: Numbers of rows, candidates or names are not what they should be.
        RewardError: There is no rewarded query, or one without candidates, or a score is off the scale.
    """
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
    used = np.flatnonzero(np.bincount(candidates, minlength=len(docs)))
    doc_norms = _norms_of(docs_name, docs, used)
    doc_keys = _names("doc_ids", doc_ids, map(str, range(len(docs))), len(docs), docs_name)
    texts = _texts("doc_texts", doc_texts, len(docs), docs_name)
    if 2 * len(used) <= len(docs):
        # Most of this index was never judged: keep what was, or every fit would read all of it.
        candidates = np.searchsorted(used, candidates)
        docs, doc_norms, doc_keys, texts = docs[used], doc_norms[used], doc_keys[used], texts[used]
    queries, query_norms = _tamed(queries, checked_norms("query_vectors", queries))
    docs, doc_norms = _tamed(docs, doc_norms)
    named = {
        "tasks": _names("tasks", tasks, repeat(DEFAULT_TASK, n), n),
        "query_ids": _names("query_ids", query_ids, map(str, range(n)), n),
        "sources": _texts("sources", sources, n).astype(np.str_),
    }
    seen: set[tuple[str, str, str]] = set()
    for key in zip(*(column.tolist() for column in named.values()), strict=True):
        if key in seen:
            task, name, source = key
            of = f" from source {source!r}" if source else ""
            raise InputError(f"query_ids: expected ids unique within a task, got {name!r} twice in task {task!r}{of}")
        seen.add(key)
    judges = [judge] if isinstance(judge, str) else sorted(set(judge))
    if len(judges) != 1 or not (isinstance(judge, str) or len(judge) == n):
        raise RewardError(f"judge: expected one judge for all {n} queries (calibrate before mixing), got {judges}")
    declared = Scale.parse(scale)
    values = declared.to_unit(scores)
    if whole and (doubt := declared.doubt(values)):
        _log.warning("rewards: %s", doubt)
    return named | {
        "query_vectors": queries,
        "doc_vectors": docs,
        "query_norms": query_norms,
        "doc_norms": doc_norms,
        "starts": starts,
        "candidates": candidates,
        "values": values,
        "judge": judges[0],
        "doc_ids": doc_keys,
        "query_texts": _texts("query_texts", query_texts, n),
        "doc_texts": texts,
        "embedder": embedder,
    }


def starts_of(depths: ArrayLike) -> IntArray:
    """(n + 1,) where each of n rows of these *depths* begins, the rows flat."""
    return np.concatenate([[0], np.cumsum(depths)]).astype(np.intp)


def sliced(rows: IntArray) -> IntArray | slice:
    """The rows as a slice where they lie in order, so that indexing with them copies nothing."""
    first, count = int(rows[0]), len(rows)
    return slice(first, first + count) if np.array_equal(rows, np.arange(first, first + count)) else rows


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
    return flat, starts_of([value.shape[1]] * len(value) if rectangular else [len(array) for array in arrays])


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


def check_paired(candidates: IntArray, rewards: IntArray) -> None:
    """Refuse rows of candidates and of rewards that begin elsewhere: the first query with another number of them."""
    expected, got = np.diff(candidates), np.diff(rewards)
    if len(expected) != len(got):
        came = f"{len(got)} rows for {len(expected)} queries"
    elif (differ := expected != got).any():
        q = int(np.argmax(differ))
        came = f"{got[q]} rewards for {expected[q]} candidates in query {q}"
    else:
        return
    raise InputError(f"rewards: expected one reward per candidate, got {came}")


def _matrix(name: str, value: ArrayLike) -> FloatArray:
    array = as_floats(name, value)
    if array.ndim != 2:
        raise VectorError(f"{name}: expected a matrix (rows, d), got shape {array.shape}")
    return array


def _norms_of(name: str, vectors: FloatArray, used: IntArray) -> FloatArray:
    """Norms of all vectors, those of rows that are not *used* 1, whatever is in them."""
    lengths = np.ones(len(vectors), dtype=vectors.dtype)
    for first in range(0, len(used), _CHECK_ROWS):
        rows = used[first : first + _CHECK_ROWS]
        lengths[rows] = norms(vectors[sliced(rows)])
    if (bad := ~(np.isfinite(lengths) & (lengths > 0))).any():
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


def _texts(
    name: str, value: Sequence[str] | None, count: int, of: str = "query_vectors", *, empty: bool = True
) -> NDArray[np.object_]:
    """(count,) texts of any length, one for each row *of* some vectors; empty ones where none are given."""
    if value is None:
        return np.full(count, "", dtype=object)
    if isinstance(value, str) or len(value) != count:
        got = f"the string {value!r:.40}" if isinstance(value, str) else f"{len(value)}"
        each = "query" if of == "query_vectors" else "document"
        raise InputError(f"{name}: expected one per {each}, {count} in {of}, got {got}")
    for row, text in enumerate(value):
        if not isinstance(text, str) or not (text or empty):
            raise InputError(f"{name}: expected {'' if empty else 'non-empty '}strings, got {text!r:.40} at row {row}")
    return np.array(value, dtype=object)


def _names(
    name: str, value: Sequence[str] | None, default: Iterable[str], count: int, of: str = "query_vectors"
) -> NDArray[np.str_]:
    """(count,) names that are not empty, or the *default* ones where none are given."""
    names = [*default] if value is None else _texts(name, value, count, of, empty=False)
    return np.array(names, dtype=np.str_)
