"""Offsets: what was learned for each scope, on what evidence, and how it reaches a query vector.

An `Offsets` is immutable: lookups need no lock, and publishing means handing readers a new one.
On disk it is one safetensors file: the matrix of vectors, and a JSON header with everything else. It names no query:
what has private offsets is saved with digests of their queries' ids, and the salt of these among its settings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import (
    InputError,
    OffsetFileError,
    UnknownKey,
    VectorError,
    check_above_zero,
    check_count,
    check_share,
    check_text,
)
from tttembed_rag.offsets import file
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS, few
from tttembed_rag.offsets.floor import LOST, Floor
from tttembed_rag.offsets.offset import Offset, Scope
from tttembed_rag.offsets.rerankskips import Skips
from tttembed_rag.offsets.rescorer import Rescorer, checked_cosines
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.system.files import write_whole
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms, norms, safe_square, shift, shift_one
from tttembed_rag.vectors.copies import TYPICAL

Keys: TypeAlias = str | Sequence[str] | None
VectorT = TypeVar("VectorT", bound=NDArray[np.floating[Any]])

# Largest norm of an offset that is believed; query vectors have norm 1 here, and learned offsets are shorter than that.
_LONGEST = 100.0
# The spread of cosines (`Rewards.spread`) below which they lie close together: .25 under e5, about 1 under MiniLM.
_CROWDED = 0.5
# Keys that are named where one is missing.
_NAMED = 5


class Offsets(Mapping[str, Offset]):
    """Learned offsets by key, with the lookup that serves them.

    A query gets its private offset if it has one, else what is served of its task, the local offset before the
    constant one, else the global one, else its base vector, bit for bit. A task whose rewards speak against any offset
    gets its base vectors.

    Args:
        offsets: The offsets, each key once.
        width: Width d of the vectors.
        settings: How they were learned, kept for the record.

    Attributes:
        width: Width d of the vectors.
        tasks: The tasks that any of them is of.
        has_private: Whether any private offset is served.
    """

    def __init__(
        self, offsets: Iterable[Offset], *, width: int, settings: Mapping[str, str | float] | None = None
    ) -> None:
        self.width = width
        self._settings = dict(settings or {})
        self._offsets: dict[str, Offset] = {}
        self._shared: dict[str | None, Offset] = {}
        self._private: dict[tuple[str | None, str], Offset | None] = {}
        for offset in offsets:
            _check_offset(offset, width)
            if offset.key in self._offsets:
                raise InputError(f"offsets: expected each key once, got {offset.key!r} twice")
            self._offsets[offset.key] = offset
            if offset.query_id is None:
                # Of what a task has, the local offset before the constant one, and what is served before what is not.
                rival = self._shared.get(offset.task)
                if rival is None or (offset.served, offset.scope == "local") > (rival.served, rival.scope == "local"):
                    self._shared[offset.task] = offset
                continue
            self._private[offset.task, offset.query_id] = offset
            # The id alone finds a query too, as long as one task knows it.
            alone = (None, offset.query_id)
            self._private[alone] = None if alone in self._private else offset
        self.has_private = any(offset is not None and offset.served for offset in self._private.values())
        self.tasks = frozenset(offset.task for offset in self._offsets.values() if offset.task is not None)
        self._dosed: dict[tuple[str, np.dtype[Any]], FloatArray] = {}

    @property
    def settings(self) -> Mapping[str, str | float]:
        """How the offsets were learned, for the record; read only."""
        return MappingProxyType(self._settings)

    @property
    def crowded(self) -> str:
        """What is said where cosines lie close together, as people ask why all their scores are alike; else nothing."""
        spread = self._settings.get("spread")
        if not isinstance(spread, float) or spread >= _CROWDED:
            return ""
        return f"cosines: {1 - TYPICAL * spread:.2f} on average, so all scores are alike; it is their order that counts"

    def __getitem__(self, key: str) -> Offset:
        """The offset of *key*; ``query:ID`` also finds a query of a named task by its id alone."""
        if key in self._offsets:
            return self._offsets[key]
        if key.startswith("query:") and (offset := self._private.get((None, self._named(key.removeprefix("query:"))))):
            return offset
        # Those of the same name first.
        same = [name for name in (f"task:{key}", f"local:{key}", f"query:{key}") if name in self._offsets]
        shared = (offset.key for offset in self._shared.values())
        there = same or list(islice(dict.fromkeys(chain(shared, islice(self._offsets, _NAMED))), _NAMED))
        named = f"a key such as {', '.join(map(repr, there))}" if there else "no key of an empty one"
        raise UnknownKey(f"offsets: expected {named}, got {key!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __repr__(self) -> str:
        served = sum(offset.served for offset in self._offsets.values())
        return f"Offsets({len(self)} offsets, {served} served, width {self.width})"

    def find(self, task: str | None = None, query_id: str | None = None, *other_ids: str) -> Offset | None:
        """The offset that serves a query, or None for its base vector.

        Its private one comes first, that of the first of its ids that has one; without a *task*, that of the one task
        that knows the id.
        """
        for identifier in () if query_id is None else (query_id, *other_ids):
            name = self._named(identifier)
            for key in ((task or DEFAULT_TASK, name), (task, name)):  # without a task also by the id alone
                if (private := self._private.get(key)) is not None and private.served:
                    return private
        for offset in (self._shared.get(task or DEFAULT_TASK), self._shared.get(None)):
            if offset is not None and offset.served and offset.alpha > 0:
                return offset
            if offset is not None and offset.evidence.against:
                return None
        return None

    def why_base(self, task: str | None = None, *query_ids: str) -> str:
        """Why a query of *task* that no private offset serves keeps its base vector; empty where it does not.

        Where nothing else was learned of the task, the private offset of one of its *query_ids* says why.
        """
        task = task or DEFAULT_TASK
        if self.find(task) is not None:
            return ""
        if self.tasks and task not in self.tasks:
            known = few([repr(name) for name in sorted(self.tasks)])
            return f"nothing was learned of task {task!r}, but of {known}: were its rewards logged under another name?"
        own = (self._private.get((task, self._named(name))) for name in query_ids)
        offset = self._shared.get(task) or self._shared.get(None) or next(filter(None, own), None)
        if offset is not None:
            return f"{offset.key}: {offset.evidence}"
        private = " but private offsets, and none serves this query" * bool(self.tasks)
        return f"nothing was learned of task {task!r}{private}"

    def depth(
        self, task: str | None = None, *, today: int = 10, loss: float = CERTIFIED_LOSS, words: bool = False
    ) -> int:
        """How many of the first documents of a list of *task* need a reranker: 1 says that none does.

        Certified by held-out verdicts, with 90 % confidence: the list under the offset, so many of it reranked and the
        others left where they are, loses at most *loss* against the base list reranked *today* deep. Where that is not
        certified, so deep was not judged, or the task is served another's offset or none, it is *today*.

        Args:
            task: The task of the list.
            today: How many documents are reranked today, without offsets.
            loss: nDCG@10 in the judge's terms that may be lost on average.
            words: Whether your lists are sorted by the task's rescorer too, where it has one.

        Raises:
            InputError: *task* is no text, *today* below 1, *loss* not above 0, or *words* neither True nor False.
        """
        check_text("task", task)
        check_count("today", today)
        check_above_zero("loss", loss)
        if words not in (True, False):
            raise InputError(f"words: expected True or False, got {words!r}")
        if words and (rescorer := self.rescorer(task)) is not None:
            return rescorer.evidence.depth(today, loss)
        served = self.find(task)
        return today if served is None or served.task is None else served.evidence.depth(today, loss)

    def rescorer(self, task: str | None = None) -> Rescorer | None:
        """What sorts the candidates of a task's queries by their words, or None where the gate published nothing."""
        offset = self._offsets.get(f"local:{task or DEFAULT_TASK}")
        rescorer = None if offset is None else offset.rescorer
        return rescorer if rescorer is not None and rescorer.served else None

    def skips(self, task: str | None = None) -> Skips | None:
        """Which lists of a task need no reranker, sorted by `rescorer` where there is one; None where nobody knows."""
        offset = self._offsets.get(f"local:{task or DEFAULT_TASK}")
        offset = offset if offset is not None and offset.in_use else self.find(task)
        return None if offset is None else offset.skips

    def floor(self, task: str | None = None, lost: float = LOST) -> float | None:
        """The relevance below which no candidate of a task's query is an answer, or None where that is not certified.

        With 90 % confidence at most a share *lost* of the requests that have an answer are refused where the best of
        what the search found lies below it. None says that too few questions were judged, that nobody vouches for the
        judge, or that users gave the verdicts; `certificate` says how many are missing.

        Raises:
            InputError: *task* is no text, or *lost* no share of requests.
        """
        check_text("task", task)
        check_share("lost", lost)
        certificate = self.certificate(task)
        return None if certificate is None else certificate.cut(lost)

    def relevance(
        self,
        scores: ArrayLike,
        *,
        vector: ArrayLike | None = None,
        query: str | None = None,
        texts: Sequence[str] | None = None,
        task: str | None = None,
    ) -> NDArray[np.float64] | None:
        """(k,) how likely each candidate of a query is relevant, in the judge's terms; None where nothing is known.

        It is a probability for requests like those that were judged. Where `Offset.floor` was made without verdicts it
        sorts lists, and is none.

        Args:
            scores: (k,) cosine similarities of what was found to the vector that was searched with: with its offset.
            vector: (d,) the query's base vector; without it nothing says whether the query is like others of the task.
            query: Its text; with *texts* the words that a candidate shares with it count.
            texts: Texts of the k candidates.
            task: The task.

        Raises:
            InputError: There is not one finite score for each text.
            VectorError: *vector* is of another width.
        """
        if (floor := self.certificate(task)) is None:
            return None
        if (query is None) != (texts is None):
            raise InputError(f"query, texts: expected both or neither, got {query!r:.80}, {texts!r:.80}")
        cosines = checked_cosines(query or "", [""] * len(np.atleast_1d(scores)) if texts is None else texts, scores)
        if vector is not None:
            vector = self._checked(vector)
            if vector.ndim != 1:
                raise VectorError(f"vector: expected shape ({self.width},), got {vector.shape}")
        rescorer = self._shared[task or DEFAULT_TASK].rescorer
        known = None if rescorer is None or texts is None else rescorer.vocabulary
        return floor.relevance(known, query or "", texts or [], cosines, vector)

    def certificate(self, task: str | None = None) -> Floor | None:
        """The floor of a task, whose ``sentence()`` says what is certified; None where nobody vouches for one."""
        offset = self._shared.get(task or DEFAULT_TASK)
        return None if offset is None else offset.floor

    @overload
    def apply(self, X: VectorT, task: Keys = None, query_id: Keys = None) -> VectorT: ...
    @overload
    def apply(self, X: list[float], task: Keys = None, query_id: Keys = None) -> list[float]: ...
    @overload
    def apply(self, X: list[list[float]], task: Keys = None, query_id: Keys = None) -> list[list[float]]: ...
    def apply(self, X: Any, task: Keys = None, query_id: Keys = None) -> Any:
        """Query vectors with their offsets added: ``||x|| unit(unit(x) + alpha v)``.

        Ranking by the result equals ranking by x·z + alpha v·z. Absolute scores change, so a score
        threshold tuned on base vectors must be tuned again.

        Args:
            X: (m, d) or (d,) query vectors of any norm, as an array or as lists.
            task: The task of all, or one per query.
            query_id: The id of the one query, or one per query.

        Returns:
            The same shape, type and dtype; queries without an offset keep their vector, bit for bit.

        Raises:
            VectorError: A vector is NaN, infinite, zero or of another width.
        """
        if isinstance(task, str | None) and isinstance(query_id, str | None):
            return self.apply_found(X, self.find(task, query_id))
        vectors = self._checked(X)
        count = len(np.atleast_2d(vectors))
        rows: dict[Offset | None, list[int]] = {}
        for row, keys in enumerate(zip(_each("task", task, count), _each("query_id", query_id, count), strict=True)):
            rows.setdefault(self.find(*keys), []).append(row)
        if vectors.ndim == 1:
            return self.apply_found(X, next(iter(rows)))
        lengths, shifted = checked_norms("X", vectors), vectors.copy()
        for offset, mine in rows.items():
            if offset is not None:
                dosed = self._dosed_at(offset, vectors[mine], lengths[mine, None])
                shifted[mine] = shift(vectors[mine], dosed, lengths[mine])
        return _as_it_came(X, vectors, shifted)

    def apply_found(self, X: Any, offset: Offset | None) -> Any:
        """Query vectors with one *offset* of these added, as `apply` does with what it finds; None adds nothing."""
        vectors = self._checked(X)
        shifted: FloatArray | None = None
        with np.errstate(over="ignore", invalid="ignore"):
            square = safe_square(vectors) if vectors.ndim == 1 else None
        if square is not None:  # a few microseconds
            shifted = vectors
            if offset is not None:
                shifted = shift_one(vectors, self._dosed_at(offset, vectors, math.sqrt(square)), square)
        if shifted is None:
            lengths, shifted = checked_norms("X", vectors), vectors
            if offset is not None:
                shifted = shift(vectors, self._dosed_at(offset, vectors, lengths[..., None]), lengths)
        return _as_it_came(X, vectors, shifted)

    def _checked(self, X: Any) -> FloatArray:
        vectors = as_floats("X", X)
        if vectors.ndim not in (1, 2) or vectors.shape[-1] != self.width:
            raise VectorError(f"X: expected shape (m, {self.width}) or ({self.width},), got {vectors.shape}")
        return vectors

    def _dosed_at(self, offset: Offset, vectors: FloatArray, lengths: FloatArray | float) -> FloatArray:
        """Alpha v for *vectors* of these *lengths*, in their precision; of a constant offset it is worked out once."""
        dtype = vectors.dtype
        if offset.map is not None:
            return offset.dosed(vectors / lengths).astype(dtype, copy=False)
        if (dosed := self._dosed.get((offset.key, dtype))) is None:
            dosed = self._dosed[offset.key, dtype] = offset.dosed(vectors).astype(dtype)
        return dosed

    def _named(self, query_id: str) -> str:
        """What these offsets call a query: its id, or a digest of it where they were saved."""
        salt = self._settings.get(file.SALT)
        return query_id if salt is None else file.digest_of(query_id, str(salt))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, whole or not at all, in which no query is named.

        Queries with private offsets stand there by salted digests of their ids, by which they are found again.
        """
        offsets, settings = file.without_names(self.values(), self._settings)
        write_whole(path, file.to_bytes(offsets, self.width, settings))

    def to_bytes(self) -> bytes:
        """The offsets as a safetensors file, which names the queries of private offsets as these offsets do.

        Raises:
            InputError: A field of an offset is not what `Evidence` and `Certificate` say.
        """
        return file.to_bytes(list(self._offsets.values()), self.width, self._settings)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Offsets:
        """Read a file that `save` wrote.

        Raises:
            OffsetFileError: The file is not an offsets file, is damaged, too large, or has a newer format.
        """
        if not (source := Path(path)).is_file():
            raise OffsetFileError(f"{path}: expected an offsets file, found none")
        if (size := source.stat().st_size) > file.MAX_BYTES:
            raise OffsetFileError(f"{path}: expected at most {file.MAX_BYTES} bytes, got {size}")
        return cls.from_bytes(source.read_bytes(), str(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "offsets") -> Offsets:
        """The offsets in the bytes that `to_bytes` gave; nothing in them is executed.

        Args:
            data: A whole offsets file.
            name: What to call it in errors.

        Raises:
            OffsetFileError: It is something else, damaged, too large, or has a newer format.
        """
        with file.checked(name):
            offsets, width, settings = file.from_bytes(data, name)
            return cls(offsets, width=width, settings=settings)


def _as_it_came(X: Any, vectors: FloatArray, shifted: FloatArray) -> Any:
    """What became of the *vectors* of X, as a list or in the type of the array that X is."""
    if not isinstance(X, np.ndarray):
        return shifted.tolist()
    if shifted is vectors:
        return X.copy()
    return shifted.astype(X.dtype, copy=False) if X.dtype.kind == "f" else shifted


def _check_offset(offset: Offset, width: int) -> None:
    if offset.vector.shape != (width,):
        raise VectorError(f"offsets: expected vectors of shape ({width},), got {offset.vector.shape} in {offset.key!r}")
    if not np.isfinite(offset.vector).all():
        raise VectorError(f"offsets: expected finite vectors, got NaN or infinity in {offset.key!r}")
    if (length := float(norms(offset.vector))) > _LONGEST:
        raise VectorError(f"offsets: expected norms of at most {_LONGEST:g}, got {length:g} in {offset.key!r}")
    if not 0.0 <= offset.alpha <= 1.0:
        raise InputError(f"offsets: expected alpha in [0, 1], got {offset.alpha} in {offset.key!r}")
    if offset.scope not in get_args(Scope):
        raise InputError(f"offsets: expected scope {', '.join(get_args(Scope))}, got {offset.scope!r}")
    if (offset.task is None) != (offset.scope == "global") or (offset.query_id is None) != (offset.scope != "query"):
        raise InputError(f"offsets: expected a task below global and a query id at query, got {offset.key!r}")
    for name, part in (("map", offset.map), ("rescorer", offset.rescorer)):
        if part is not None and offset.scope != "local":
            raise InputError(f"offsets: expected a {name} at scope local alone, got one in {offset.key!r}")
    if offset.map is not None:
        offset.map.check(repr(offset.key), width)
    if offset.rescorer is not None:
        offset.rescorer.check(repr(offset.key))
    if offset.floor is not None:
        offset.floor.check(repr(offset.key), width)


def _each(name: str, keys: Keys, count: int) -> list[str | None]:
    if keys is None or isinstance(keys, str):
        return [keys] * count
    try:
        each: list[str | None] = list(keys)
    except TypeError as exc:
        raise InputError(f"{name}: expected a string, or one per query vector, got {keys!r}") from exc
    if len(each) != count:
        raise InputError(f"{name}: expected one per query vector, {count} in X, got {len(each)}")
    if wrong := [key for key in each if not (key is None or isinstance(key, str))]:
        raise InputError(f"{name}: expected strings, got {wrong[0]!r}")
    return each
