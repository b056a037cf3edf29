"""An offsets file: one safetensors file, checked field by field before anything in it is believed."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, OffsetFileError, VectorError
from tttembed_rag.offsets.evidence import Evidence, Verdict
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary
from tttembed_rag.offsets.skips import Skips
from tttembed_rag.offsets.values import Certificate, Offset
from tttembed_rag.vectors.checks import FloatArray

ItemT = TypeVar("ItemT")
Settings: TypeAlias = Mapping[str, str | float]

FORMAT_VERSION = 1
# What a file from elsewhere may weigh: a million offsets of width 1024 are 4 GB.
MAX_BYTES = 8 * 2**30
MAX_HEADER_BYTES = 2**20
_FORMAT = "tttembed-offsets"
# The setting that holds the salt of the digests by which a file names queries.
SALT = "salt"
# Tensors that hold the rows (d) of all local offsets, and the words of all rescorers, one after the other.
_OF_MAPS, _OF_WORDS = ("landmarks", "weights"), ("digests", "found")
# The largest number of queries, and of any other kind, that a file may name.
_MANY, _LARGEST = 2**31 - 1, sys.float_info.max
_COUNT, _VERDICTS = f"a whole number from 0 to {_MANY}", get_args(Verdict)
# The thread that reads a file releases the interpreter lock after this many records, for this many seconds: otherwise
# every query that is answered meanwhile would wait 5 ms for the lock.
_TURN, _PAUSE = 128, 1e-6
# Bytes that the record of an offset takes at least, and at most.
_SHORTEST_RECORD, _LONGEST_RECORD = 100, 2**16


def to_bytes(offsets: Sequence[Offset], width: int, settings: Settings) -> bytes:
    """The safetensors file of *offsets* of one *width*, and of the *settings* they were learned with.

    Raises:
        InputError: A field of an offset is not what `Evidence` and `Certificate` say.
    """
    from safetensors.numpy import save

    for offset in offsets:
        _check_known(offset)
    dtype = np.result_type(np.float32, *(offset.vector.dtype for offset in offsets))
    matrix = np.array([offset.vector for offset in offsets], dtype=dtype).reshape(len(offsets), width)
    records = [_record(offset) for offset in offsets]
    # The records are a tensor of bytes: a safetensors header is limited to 100 MB.
    tensors = {"vectors": matrix, "offsets": np.frombuffer(json.dumps(records).encode(), dtype=np.uint8)}
    if maps := [offset.map for offset in offsets if offset.map is not None]:
        # safetensors writes memory as it lies: rows one after the other.
        tensors |= {
            name: np.ascontiguousarray(np.concatenate([getattr(map_, name) for map_ in maps])) for name in _OF_MAPS
        }
    if words := [offset.rescorer.vocabulary for offset in offsets if offset.rescorer is not None]:
        tensors |= {name: np.concatenate([getattr(one, name) for one in words]) for name in _OF_WORDS}
    header = {"format": _FORMAT, "format_version": str(FORMAT_VERSION), "settings": json.dumps(dict(settings))}
    return save(tensors, metadata=header)


def digest_of(query_id: str, salt: str) -> str:
    """What a file calls the query *query_id*: whoever knows the id finds its offset, and nobody reads it there."""
    return hashlib.blake2b(f"{salt}\0{query_id}".encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def without_names(offsets: Collection[Offset], settings: Settings) -> tuple[list[Offset], Settings]:
    """*offsets* and *settings* as a file holds them: private offsets by digests of their queries' ids, and the salt."""
    if SALT in settings or all(offset.query_id is None for offset in offsets):
        return list(offsets), settings
    salt = secrets.token_hex(16)
    named = [
        offset if offset.query_id is None else replace(offset, query_id=digest_of(offset.query_id, salt))
        for offset in offsets
    ]
    return named, {**settings, SALT: salt}


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the file at *path*.

    Raises:
        OffsetFileError: There is no file, or it is too large to be an offsets file.
    """
    file = Path(path)
    if not file.is_file():
        raise OffsetFileError(f"{path}: expected an offsets file, found none")
    if (size := file.stat().st_size) > MAX_BYTES:
        raise OffsetFileError(f"{path}: expected at most {MAX_BYTES} bytes, got {size}")
    return file.read_bytes()


def from_bytes(data: bytes, name: str) -> tuple[list[Offset], int, Settings]:
    """The offsets, their width and their settings from the bytes of an offsets file; nothing in it is executed.

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
        pauses = _Pauses()
        matrix, text = tensors["vectors"], tensors["offsets"].tobytes()
        # A record is longer than this: more offsets than the text could hold are refused before it is parsed.
        if matrix.ndim != 2 or len(matrix) * _SHORTEST_RECORD > len(text):
            raise VectorError(f"vectors: expected one row per offset, got {matrix.shape} for {len(text)} bytes of them")
        if len(text) > (most := _LONGEST_RECORD * (1 + len(matrix))):
            raise InputError(f"offsets: expected at most {most} bytes about {len(matrix)} offsets, got {len(text)}")
        settings = _checked_settings(json.loads(header["settings"]))
        records = json.loads(text, object_hook=pauses)
        if not isinstance(records, list) or len(records) != len(matrix):
            raise OffsetFileError(f"{name}: expected one vector per offset, got {matrix.shape}, {len(records)}")
        if matrix.dtype.kind != "f" or not matrix.shape[1]:
            raise VectorError(f"vectors: expected floats of width 1 or more, got {matrix.dtype} {matrix.shape}")
        maps = _Rows(*(tensors.get(name, matrix[:0]) for name in _OF_MAPS))
        words = _Rows(*(tensors.get(name, np.empty(0, np.uint64)) for name in _OF_WORDS))
        offsets = [pauses(_from_record(*one, maps, words)) for one in zip(records, matrix, strict=True)]
        maps.check_all_used("landmarks, weights")
        words.check_all_used("digests, found")
    except (
        SafetensorError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as exc:
        if isinstance(exc, OffsetFileError):
            raise
        raise damaged(name, exc) from exc
    return offsets, matrix.shape[1], settings


def settings_of(head: bytes, name: str) -> Settings:
    """The settings of an offsets file, of which *head* is the beginning: at least its header.

    Raises:
        OffsetFileError: It is something else, damaged, or has a newer format.
    """
    try:
        return _checked_settings(json.loads(_header(name, head)["settings"]))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
        raise exc if isinstance(exc, OffsetFileError) else damaged(name, exc) from exc


def damaged(name: str, reason: Exception) -> OffsetFileError:
    """The error for a file that is damaged or foreign, for the *reason* that another error gave."""
    return OffsetFileError(f"{name}: expected an offsets file, got a damaged or foreign one ({reason})")


def _checked_settings(settings: Any) -> dict[str, str | float]:
    if not isinstance(settings, dict) or not all(isinstance(value, str | int | float) for value in settings.values()):
        raise InputError(f"settings: expected texts and numbers by name, got {settings!r:.80}")
    return settings


def _check_known(offset: Offset) -> None:
    """Refuse what is not what an offset and its evidence say it is: whoever shows them takes them on trust."""
    certificate = offset.certificate
    known: list[tuple[str, Any, bool, str]] = [
        ("task", offset.task, isinstance(offset.task, str | None), "a text or none"),
        ("query_id", offset.query_id, isinstance(offset.query_id, str | None), "a text or none"),
        ("alpha", offset.alpha, _is_number(offset.alpha), "a finite number"),
        ("n", offset.n, _is_count(offset.n), _COUNT),
        *_known_of(offset.evidence),
    ]
    if (rescorer := offset.rescorer) is not None:
        documents = rescorer.vocabulary.documents
        known += [*_known_of(rescorer.evidence), ("documents", documents, _is_count(documents), _COUNT)]
    if (skips := offset.skips) is not None:
        fits = len(skips.leads) == len(skips.lost) and _are_falling(skips.leads) and _are_falling(skips.lost[::-1])
        expected = "falling leads, as many losses that never fall, and a depth"
        known.append(("skips", skips, fits and _is_count(skips.depth), expected))
    if certificate is not None:
        numbers = (certificate.objective, certificate.gradient_norm, certificate.evaluations, certificate.residual or 0)
        fits = all(map(_is_number, numbers)) and isinstance(certificate.converged, bool)
        known.append(("certificate", certificate, fits, "three finite numbers and a verdict"))
    for name, value, fits, expected in known:
        if not fits:
            raise InputError(f"offsets: expected {expected} as {name} of {offset.key!r:.80}, got {value!r:.80}")


def _known_of(evidence: Evidence) -> list[tuple[str, Any, bool, str]]:
    """What evidence says by name, whether it may, and what is expected."""
    return [
        ("evidence.n", evidence.n, _is_count(evidence.n), _COUNT),
        ("gain", evidence.gain, evidence.gain is None or _is_number(evidence.gain), "a finite number or none"),
        ("interval", evidence.interval, _is_interval(evidence.interval), "two rising numbers or none"),
        ("verdict", evidence.verdict, evidence.verdict in _VERDICTS, f"one of {', '.join(_VERDICTS)}"),
        ("reason", evidence.reason, isinstance(evidence.reason, str), "a text"),
        ("code", evidence.code, isinstance(evidence.code, str), "a text"),
        ("withheld", evidence.withheld, _are_texts(evidence.withheld), "texts"),
        ("vouched", evidence.vouched, isinstance(evidence.vouched, str), "a text"),
        ("lost", evidence.lost, _are_falling(evidence.lost), "finite numbers that never rise"),
        ("against", evidence.against, isinstance(evidence.against, bool), "true or false"),
        ("trust", evidence.trust, _is_number(evidence.trust) and 0 <= evidence.trust <= 1, "a number in [0, 1]"),
        ("sources", evidence.sources, _is_count(evidence.sources, _LARGEST), "a count"),
        ("needed", evidence.needed, evidence.needed is None or _is_count(evidence.needed, _LARGEST), "a count or none"),
    ]


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def _are_falling(value: Any) -> bool:
    numbers = isinstance(value, tuple) and all(map(_is_number, value))
    return numbers and all(above >= below for above, below in pairwise(value))


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
    if length > len(data) - 8:
        raise ValueError("it does not begin with the length of its header")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
    header = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    if header.get("format") != _FORMAT:
        raise OffsetFileError(f"{name}: expected a safetensors file of format {_FORMAT}, got {header.get('format')!r}")
    if int(header["format_version"]) > FORMAT_VERSION:
        raise OffsetFileError(
            f"{name}: expected format version {FORMAT_VERSION} or older, got {header['format_version']}; "
            "upgrade tttembed-rag"
        )
    return dict(header)


class _Pauses:
    """Hands every item on, and after `_TURN` items releases the interpreter lock for `_PAUSE` seconds.

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
    parts: dict[str, Any] = {}
    if (map_ := offset.map) is not None:
        parts["map"] = {"bandwidth": map_.bandwidth, "rows": len(map_.landmarks)}
    if (rescorer := offset.rescorer) is not None:
        words = rescorer.vocabulary
        parts["rescorer"] = {
            "weights": rescorer.weights.tolist(),
            "rows": len(words.digests),
            "documents": words.documents,
            "length": words.length,
            "evidence": asdict(rescorer.evidence),
        }
    if offset.skips is not None:
        parts["skips"] = asdict(offset.skips)
    return {
        "scope": offset.scope,
        "task": offset.task,
        "query_id": offset.query_id,
        "alpha": offset.alpha,
        "n": offset.n,
        "evidence": asdict(offset.evidence),
        "certificate": asdict(offset.certificate) if offset.certificate else None,
        **parts,
    }


class _Rows:
    """Columns that hold rows of all offsets of a file, handed out in the order of their records."""

    def __init__(self, *columns: NDArray[Any]) -> None:
        if any(column.ndim == 0 for column in columns):
            raise VectorError("tensors: expected rows, got a single number")
        self._columns = columns
        self._taken = 0

    def take(self, count: Any) -> tuple[NDArray[Any], ...]:
        """The next *count* rows of each column."""
        if not _is_count(count):
            raise InputError(f"rows: expected {_COUNT}, got {count!r:.80}")
        rows = slice(self._taken, self._taken + count)
        self._taken = rows.stop
        return tuple(column[rows] for column in self._columns)

    def check_all_used(self, names: str) -> None:
        """Refuse rows that belong to no offset."""
        if {len(column) for column in self._columns} != {self._taken}:
            raise VectorError(f"{names}: expected {self._taken} rows, got {len(self._columns[0])}")


def _from_record(record: Mapping[str, Any], vector: FloatArray, maps: _Rows, words: _Rows) -> Offset:
    certificate = Certificate(**record["certificate"]) if record["certificate"] else None
    values = {name: record[name] for name in ("scope", "task", "query_id", "alpha", "n")}
    map_ = _map_of(one, maps) if (one := record.get("map")) else None
    evidence = _evidence_of(record["evidence"])
    rescorer = _rescorer_of(one, words) if (one := record.get("rescorer")) else None
    skips = Skips(tuple(one["leads"]), tuple(one["lost"]), one["depth"]) if (one := record.get("skips")) else None
    offset = Offset(
        vector=vector,
        evidence=evidence,
        certificate=certificate,
        map=map_,
        rescorer=rescorer,
        skips=skips,
        **values,
    )
    _check_known(offset)
    return offset


def _map_of(record: Mapping[str, Any], maps: _Rows) -> KernelMap:
    landmarks, weights = maps.take(record["rows"])
    return KernelMap(landmarks, weights, record["bandwidth"])


def _evidence_of(record: Mapping[str, Any]) -> Evidence:
    evidence = dict(record)
    evidence["withheld"], evidence["lost"] = tuple(evidence["withheld"]), tuple(evidence["lost"])
    evidence["interval"] = None if evidence["interval"] is None else tuple(evidence["interval"])
    return Evidence(**evidence)


def _rescorer_of(record: Mapping[str, Any], words: _Rows) -> Rescorer:
    digests, found = words.take(record["rows"])
    vocabulary = Vocabulary(digests, found, record["documents"], float(record["length"]))
    weights = np.array(record["weights"], dtype=np.float64)
    return Rescorer(weights, vocabulary, _evidence_of(record["evidence"]))
