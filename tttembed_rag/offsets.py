"""Offsets: what was learned for each scope, on what evidence, and how it reaches a query vector.

An `Offsets` is immutable: lookups need no lock, and publishing means handing readers a new one.
On disk it is one safetensors file: the matrix of vectors, and a JSON header with everything else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, OffsetFileError, VectorError
from tttembed_rag.files import write_whole
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.vectors import FloatArray, as_floats, checked_norms, shift, shift_one

Scope: TypeAlias = Literal["global", "task", "query"]
Verdict: TypeAlias = Literal["published", "abstained", "ungated"]
Keys: TypeAlias = str | Sequence[str] | None
VectorT = TypeVar("VectorT", bound=NDArray[np.floating[Any]])
ItemT = TypeVar("ItemT")

FORMAT_VERSION = 1
# What a file from elsewhere may weigh: a million offsets of width 1024 are 4 GB.
MAX_BYTES = 8 * 2**30
MAX_HEADER_BYTES = 2**20
_FORMAT = "tttembed-offsets"
# The largest number of queries, and of any other kind, that a file may name.
_MANY, _LARGEST = 2**31 - 1, sys.float_info.max
_COUNT, _VERDICTS = f"a whole number from 0 to {_MANY}", get_args(Verdict)
# Items read between two pauses, and how long one is, in seconds: some hundred microseconds, and the least that can be.
_TURN, _PAUSE = 128, 1e-6


@dataclass(frozen=True, slots=True)
class Evidence:
    """What held-out rewards say an offset does.

    Attributes:
        n: Rewarded queries the gain was measured on.

        gain: Mean cross-fitted gain in reward-weighted nDCG@10; None where it was not measured.

        interval: 90 % interval of the change of nDCG@10 of the full search, where documents surface that nobody
            judged: wider than the gain's own; None where it was not measured.

        verdict: ``published`` or ``abstained`` by the gate, ``ungated`` where none was asked.

        reason: The verdict in words a person understands.

        needed: About how many more rewarded queries (tasks, where n counts tasks) would settle it, if the
            gain holds; None where that is unknown or nothing is open.
    """

    n: int
    gain: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str
    needed: int | None = None

    def __str__(self) -> str:
        held_out = ""
        if self.gain is not None and self.interval is not None:
            low, high = self.interval
            held_out = f"held-out gain {self.gain:+.3f} [{low:+.3f}, {high:+.3f}], "
        more = "" if self.needed is None else f"; about {self.needed} more would settle it if the gain holds"
        return f"{self.verdict}: {held_out}{self.reason}{more}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """How near the optimum of Eq. 6 the solver stopped.

    Attributes:
        objective: Objective at the offset, in nats.

        gradient_norm: Euclidean norm of the gradient there.

        evaluations: Evaluations of value and gradient spent.

        converged: Whether the gradient norm reached the tolerance.
    """

    objective: float
    gradient_norm: float
    evaluations: int
    converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class Offset:
    """One learned vector and all that is known about it.

    Attributes:
        scope: ``global``, ``task`` or ``query``.

        vector: (d,) the offset v; zero where the gate abstained.

        alpha: Dose in [0, 1], n / (n + kappa); 0 where the gate abstained.

        n: Rewarded queries it was learned from.

        evidence: What held-out rewards say it does.

        certificate: How near the optimum the solver stopped; None where nothing was kept.

        task: Its task; None for a global offset.

        query_id: Its query; None for a shared offset.
    """

    scope: Scope
    vector: FloatArray
    alpha: float
    n: int
    evidence: Evidence
    certificate: Certificate | None = None
    task: str | None = None
    query_id: str | None = None

    @property
    def key(self) -> str:
        """``global``, ``task:NAME``, ``query:ID`` or, for a named task, ``query:TASK/ID``.

        A slash inside a query's task or id is written %2F, so that no two queries share a key.
        """
        if self.scope != "query":
            return "global" if self.scope == "global" else f"task:{self.task}"
        parts = [self.query_id] if self.task == DEFAULT_TASK else [self.task, self.query_id]
        return "query:" + "/".join(str(part).replace("%", "%25").replace("/", "%2F") for part in parts)

    @property
    def served(self) -> bool:
        """Whether `Offsets.apply` uses it."""
        return self.evidence.verdict in ("published", "ungated")


class Offsets(Mapping[str, Offset]):
    """Learned offsets by key, with the lookup that serves them.

    A query gets its private offset if it has one, else its task's, else the global one, else its
    base vector, bit for bit. A task on which the gate abstained gets its base vector: the global
    offset was weighed there too.

    Args:
        offsets: The offsets, each key once.

        width: Width d of the vectors.

        settings: How they were learned, kept for the record.
    """

    def __init__(
        self, offsets: Iterable[Offset], *, width: int, settings: Mapping[str, str | float] | None = None
    ) -> None:
        self._width = width
        self.settings: dict[str, str | float] = dict(settings or {})
        self._offsets: dict[str, Offset] = {}
        self._shared: dict[str | None, Offset] = {}
        self._private: dict[tuple[str | None, str], Offset] = {}
        self._by_id: dict[str, Offset | None] = {}
        for offset in offsets:
            _check_offset(offset, width)
            if offset.key in self._offsets:
                raise InputError(f"offsets: expected each key once, got {offset.key!r} twice")
            self._offsets[offset.key] = offset
            if offset.query_id is None:
                self._shared[offset.task] = offset
                continue
            # The id alone finds a query too, as long as one task knows it.
            self._by_id[offset.query_id] = None if offset.query_id in self._by_id else offset
            if offset.served:
                self._private[offset.task, offset.query_id] = offset
        self._dosed: dict[tuple[str, np.dtype[Any]], FloatArray] = {}

    @property
    def width(self) -> int:
        """Width d of the vectors."""
        return self._width

    @property
    def has_private(self) -> bool:
        """Whether any private offset is served."""
        return bool(self._private)

    def __getitem__(self, key: str) -> Offset:
        """The offset of *key*; ``query:ID`` also finds a query of a named task by its id alone."""
        if key in self._offsets:
            return self._offsets[key]
        if key.startswith("query:") and (offset := self._by_id.get(key[len("query:") :])):
            return offset
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __repr__(self) -> str:
        served = sum(offset.served for offset in self._offsets.values())
        return f"Offsets({len(self)} offsets, {served} served, width {self._width})"

    def find(self, task: str | None = None, query_id: str | None = None) -> Offset | None:
        """The offset that serves a query, or None for its base vector."""
        if query_id is not None and (offset := self.find_private(task, query_id)) is not None:
            return offset
        offset = self._shared.get(task or DEFAULT_TASK) or self._shared.get(None)
        return offset if offset is not None and offset.served and offset.alpha > 0 else None

    def find_private(self, task: str | None, query_id: str) -> Offset | None:
        """The private offset that serves a query, or None; without a *task*, of the one task that knows the id."""
        if (offset := self._private.get((task or DEFAULT_TASK, query_id))) is not None:
            return offset
        offset = self._by_id.get(query_id) if task is None else None
        return offset if offset is not None and offset.served else None

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
        vectors = as_floats("X", X)
        if vectors.ndim not in (1, 2) or vectors.shape[-1] != self._width:
            raise VectorError(f"X: expected shape (m, {self._width}) or ({self._width},), got {vectors.shape}")
        if vectors.ndim == 2 and (_several(task) or _several(query_id)):
            shifted = self._apply_each(vectors, task, query_id)
        else:
            dosed = self._dose(self.find(_one("task", task), _one("query_id", query_id)), vectors.dtype)
            shifted = self._apply_all(vectors, dosed)
        if not isinstance(X, np.ndarray):
            return shifted.tolist()
        if shifted is vectors:
            return X.copy()
        return shifted.astype(X.dtype, copy=False) if X.dtype.kind == "f" else shifted

    def _apply_all(self, vectors: FloatArray, dosed: FloatArray | None) -> FloatArray:
        if vectors.ndim == 1 and (shifted := shift_one(vectors, dosed)) is not None:
            return shifted
        lengths = checked_norms("X", vectors)
        return vectors if dosed is None else shift(vectors, dosed, lengths)

    def _apply_each(self, vectors: FloatArray, task: Keys, query_id: Keys) -> FloatArray:
        lengths = checked_norms("X", vectors)
        tasks, ids = _each("task", task, len(vectors)), _each("query_id", query_id, len(vectors))
        rows: dict[str, list[int]] = {}
        for row, (one_task, one_id) in enumerate(zip(tasks, ids, strict=True)):
            if offset := self.find(one_task, one_id):
                rows.setdefault(offset.key, []).append(row)
        shifted = vectors.copy()
        for key, mine in rows.items():
            dosed = self._dose(self._offsets[key], vectors.dtype)
            shifted[mine] = shift(vectors[mine], dosed, lengths[mine])
        return shifted

    @overload
    def _dose(self, offset: None, dtype: np.dtype[Any]) -> None: ...
    @overload
    def _dose(self, offset: Offset, dtype: np.dtype[Any]) -> FloatArray: ...
    @overload
    def _dose(self, offset: Offset | None, dtype: np.dtype[Any]) -> FloatArray | None: ...
    def _dose(self, offset: Offset | None, dtype: np.dtype[Any]) -> FloatArray | None:
        if offset is None:
            return None
        dosed = self._dosed.get((offset.key, dtype))
        if dosed is None:
            dosed = self._dosed[offset.key, dtype] = (offset.alpha * offset.vector.astype(np.float64)).astype(dtype)
        return dosed

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, whole or not at all."""
        write_whole(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The safetensors file that `save` writes.

        Raises:
            InputError: What is known of an offset is not what `Evidence` and `Certificate` say.
        """
        from safetensors.numpy import save

        offsets = list(self._offsets.values())
        for offset in offsets:
            _check_known(offset)
        dtype = np.result_type(np.float32, *(offset.vector.dtype for offset in offsets))
        matrix = np.array([offset.vector for offset in offsets], dtype=dtype).reshape(len(offsets), self._width)
        records = [_record(offset) for offset in offsets]
        header = {"format": _FORMAT, "format_version": str(FORMAT_VERSION), "settings": json.dumps(self.settings)}
        # The records are a tensor of bytes: a safetensors header is limited to 100 MB.
        tensors = {"vectors": matrix, "offsets": np.frombuffer(json.dumps(records).encode(), dtype=np.uint8)}
        return save(tensors, metadata=header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Offsets:
        """Read a file that `save` wrote.

        Raises:
            OffsetFileError: The file is not an offsets file, is damaged, too large, or has a newer format.
        """
        file = Path(path)
        if not file.is_file():
            raise OffsetFileError(f"{path}: expected an offsets file, found none")
        if (size := file.stat().st_size) > MAX_BYTES:
            raise OffsetFileError(f"{path}: expected at most {MAX_BYTES} bytes, got {size}")
        return cls.from_bytes(file.read_bytes(), str(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "offsets") -> Offsets:
        """What `to_bytes` gave, from wherever it comes; nothing in it is executed.

        Args:
            data: A whole offsets file, at most `MAX_BYTES`, its header at most `MAX_HEADER_BYTES`.

            name: What to call it in errors.

        Raises:
            OffsetFileError: It is something else, damaged, too large, or has a newer format.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        if len(data) > MAX_BYTES:
            raise OffsetFileError(f"{name}: expected at most {MAX_BYTES} bytes, got {len(data)}")
        try:
            header = _header(name, data)
            tensors = load(data)
            in_turns = _Turns()
            matrix, records = tensors["vectors"], json.loads(tensors["offsets"].tobytes(), object_hook=in_turns)
            settings = _checked_settings(json.loads(header["settings"]))
            if matrix.ndim != 2 or len(records) != len(matrix):
                raise OffsetFileError(f"{name}: expected one vector per offset, got {matrix.shape}, {len(records)}")
            if matrix.dtype.kind != "f" or not matrix.shape[1]:
                raise VectorError(f"vectors: expected floats of width 1 or more, got {matrix.dtype} {matrix.shape}")
            offsets = (_from_record(record, vector) for record, vector in zip(records, matrix, strict=True))
            return cls(map(in_turns, offsets), width=matrix.shape[1], settings=settings)
        except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
            if isinstance(exc, OffsetFileError):
                raise
            raise OffsetFileError(f"{name}: expected an offsets file, got a damaged or foreign one ({exc})") from exc


def _check_offset(offset: Offset, width: int) -> None:
    if offset.vector.shape != (width,):
        raise VectorError(f"offsets: expected vectors of shape ({width},), got {offset.vector.shape} in {offset.key!r}")
    if not np.isfinite(offset.vector).all():
        raise VectorError(f"offsets: expected finite vectors, got NaN or infinity in {offset.key!r}")
    if not 0.0 <= offset.alpha <= 1.0:
        raise InputError(f"offsets: expected alpha in [0, 1], got {offset.alpha} in {offset.key!r}")
    if offset.scope not in ("global", "task", "query"):
        raise InputError(f"offsets: expected scope global, task or query, got {offset.scope!r}")
    if (offset.task is None) != (offset.scope == "global") or (offset.query_id is None) != (offset.scope != "query"):
        raise InputError(f"offsets: expected a task below global and a query id at query, got {offset.key!r}")


def _checked_settings(settings: Any) -> dict[str, str | float]:
    if not isinstance(settings, dict) or not all(isinstance(value, str | int | float) for value in settings.values()):
        raise InputError(f"settings: expected texts and numbers by name, got {settings!r:.80}")
    return settings


def _check_known(offset: Offset) -> None:
    """Refuse what is not what an offset and its evidence say it is: whoever shows them takes them on trust."""
    evidence, certificate = offset.evidence, offset.certificate
    known: list[tuple[str, Any, bool, str]] = [
        ("task", offset.task, isinstance(offset.task, str | None), "a text or none"),
        ("query_id", offset.query_id, isinstance(offset.query_id, str | None), "a text or none"),
        ("alpha", offset.alpha, _is_number(offset.alpha), "a finite number"),
        ("n", offset.n, _is_count(offset.n), _COUNT),
        ("evidence.n", evidence.n, _is_count(evidence.n), _COUNT),
        ("gain", evidence.gain, evidence.gain is None or _is_number(evidence.gain), "a finite number or none"),
        ("interval", evidence.interval, _is_interval(evidence.interval), "two rising numbers or none"),
        ("verdict", evidence.verdict, evidence.verdict in _VERDICTS, f"one of {', '.join(_VERDICTS)}"),
        ("reason", evidence.reason, isinstance(evidence.reason, str), "a text"),
        ("needed", evidence.needed, evidence.needed is None or _is_count(evidence.needed, _LARGEST), "a count or none"),
    ]
    if certificate is not None:
        numbers = (certificate.objective, certificate.gradient_norm, certificate.evaluations)
        fits = all(map(_is_number, numbers)) and isinstance(certificate.converged, bool)
        known.append(("certificate", certificate, fits, "three finite numbers and a verdict"))
    for name, value, fits, expected in known:
        if not fits:
            raise InputError(f"offsets: expected {expected} as {name} of {offset.key!r:.80}, got {value!r:.80}")


def _is_number(value: Any, least: float = -_LARGEST, most: float = _LARGEST) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_count(value: Any, most: float = _MANY) -> bool:
    return isinstance(value, int) and _is_number(value, 0, most)


def _is_interval(value: Any) -> bool:
    """Whether it has two bounds in order, which may be infinite where nothing bounds a gain; or is none."""
    if value is None:
        return True
    bounds = isinstance(value, tuple) and len(value) == 2 and all(_is_number(one, -np.inf, np.inf) for one in value)
    return bounds and value[0] <= value[1]


def _header(name: str, data: bytes) -> Mapping[str, str]:
    """The metadata of an offsets file of a format this version reads."""
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"a header of {length} bytes, at most {MAX_HEADER_BYTES} and the file's own size are allowed")
    header = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    if header.get("format") != _FORMAT:
        raise OffsetFileError(f"{name}: expected a safetensors file of format {_FORMAT}, got {header.get('format')!r}")
    if int(header["format_version"]) > FORMAT_VERSION:
        raise OffsetFileError(
            f"{name}: expected format version {FORMAT_VERSION} or older, got {header['format_version']}; "
            "upgrade tttembed-rag"
        )
    return dict(header)


class _Turns:
    """Gives items back, and other threads a turn now and then: else each of them waits 5 ms for one that computes.

    So queries are answered while a version with thousands of offsets is read.
    """

    def __init__(self) -> None:
        self._items = 0

    def __call__(self, item: ItemT) -> ItemT:
        self._items += 1
        if not self._items % _TURN:
            time.sleep(_PAUSE)
        return item


def _record(offset: Offset) -> dict[str, Any]:
    return {
        "scope": offset.scope,
        "task": offset.task,
        "query_id": offset.query_id,
        "alpha": offset.alpha,
        "n": offset.n,
        "evidence": asdict(offset.evidence),
        "certificate": asdict(offset.certificate) if offset.certificate else None,
    }


def _from_record(record: Mapping[str, Any], vector: FloatArray) -> Offset:
    evidence = dict(record["evidence"])
    evidence["interval"] = None if evidence["interval"] is None else tuple(evidence["interval"])
    certificate = Certificate(**record["certificate"]) if record["certificate"] else None
    values = {name: record[name] for name in ("scope", "task", "query_id", "alpha", "n")}
    offset = Offset(vector=vector, evidence=Evidence(**evidence), certificate=certificate, **values)
    _check_known(offset)
    return offset


def _several(keys: Keys) -> bool:
    return keys is not None and not isinstance(keys, str)


def _one(name: str, keys: Keys) -> str | None:
    if keys is None or isinstance(keys, str):
        return keys
    if hasattr(keys, "__len__") and len(keys) != 1:
        raise InputError(f"{name}: expected one for one query vector, got {len(keys)}")
    return _each(name, keys, 1)[0]


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
