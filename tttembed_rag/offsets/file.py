"""An offsets file: one safetensors file, checked field by field before anything in it is believed."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache, reduce
from itertools import count, pairwise
from typing import Any, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, OffsetFileError, VectorError
from tttembed_rag.offsets.evidence import Evidence, Verdict
from tttembed_rag.offsets.floor import Floor
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.offset import Certificate, Offset
from tttembed_rag.offsets.rerankskips import Skips
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary
from tttembed_rag.rewards.names import MAX_NAME, is_name

ItemT = TypeVar("ItemT")
Settings: TypeAlias = Mapping[str, str | float]
# What a field may be, and that in words.
Known: TypeAlias = tuple[Callable[[Any], bool], str]

FORMAT_VERSION = 1
# What a file from elsewhere may weigh: a million offsets of width 1024 are 4 GB.
MAX_BYTES = 8 * 2**30
MAX_HEADER_BYTES = 2**20
_FORMAT = "tttembed-offsets"
# The setting that holds the salt of the digests by which a file names queries.
SALT = "salt"
# Parts of an offset, and of these, whose fields stand in its record; arrays in them are rows of a tensor of their own,
# by the names of their fields, those of all offsets one after the other. The record says how many are of each.
_PARTS = {
    "evidence": Evidence,
    "certificate": Certificate,
    "map": KernelMap,
    "rescorer": Rescorer,
    "vocabulary": Vocabulary,
    "skips": Skips,
    "floor": Floor,
}
_ARRAYS = (
    *("map.landmarks", "map.weights", "floor.centre"),
    *("rescorer.weights", "rescorer.vocabulary.digests", "rescorer.vocabulary.frequencies"),
)
# Parts that are never none.
_NEEDED = ("evidence", "vocabulary")
# The largest number of queries, and of any other kind, that a file may name.
_MANY, _LARGEST = 2**31 - 1, sys.float_info.max
# The thread that reads a file releases the interpreter lock after this many objects, for this many seconds: otherwise
# every query that is answered meanwhile would wait 5 ms for the lock.
_TURN, _PAUSE = 128, 1e-6
# Bytes that the record of an offset takes at least, and at most.
_SHORTEST_RECORD, _LONGEST_RECORD = 100, 2**16


def _is_number(value: Any, least: float = -_LARGEST, most: float = _LARGEST) -> bool:
    if isinstance(value, int) and (isinstance(value, bool) or abs(value) > _LARGEST):
        return False
    return isinstance(value, int | float) and least <= value <= most


def _is_count(value: Any, most: float = _MANY) -> bool:
    return isinstance(value, int) and _is_number(value, 0, most)


def _is_falling(value: Any, least: float = -_LARGEST, most: float = _LARGEST) -> bool:
    numbers = isinstance(value, tuple) and all(_is_number(number, least, most) for number in value)
    return numbers and all(above >= below for above, below in pairwise(value))


def _is_interval(value: Any) -> bool:
    """Whether it has two bounds in order, which may be infinite where nothing bounds a gain."""
    return isinstance(value, tuple) and len(value) == 2 and _is_falling(value[::-1], -np.inf, np.inf)


def _or_none(known: Known) -> Known:
    fits, expected = known
    return lambda value: value is None or fits(value), f"{expected} or none"


_TEXT: Known = (lambda value: isinstance(value, str)), "a text"
_NAME: Known = (lambda value: isinstance(value, str) and is_name(value)), f"a name of at most {MAX_NAME} bytes"
_NUMBER: Known = _is_number, "a finite number"
# What the fields of an offset may be, by their annotations, and what some of them may be by name: whoever shows offsets
# and what is told of them takes them on trust. `Offsets` checks the arrays.
_KNOWN: Mapping[str, Known] = {
    "str": _TEXT,
    "str | None": _or_none(_TEXT),
    "float": _NUMBER,
    "float | None": _or_none(_NUMBER),
    "int": (_is_count, f"a whole number from 0 to {_MANY}"),
    "int | None": _or_none(((lambda value: _is_count(value, _LARGEST)), "a count")),
    "bool": ((lambda value: isinstance(value, bool)), "true or false"),
    "Verdict": ((lambda value: value in get_args(Verdict)), f"one of {', '.join(get_args(Verdict))}"),
    "tuple[str, ...]": ((lambda value: isinstance(value, tuple) and all(isinstance(x, str) for x in value)), "texts"),
    "tuple[float, ...]": (_is_falling, "finite numbers that never rise"),
    "tuple[float, float] | None": _or_none((_is_interval, "two rising numbers")),
    "Offset.task": _or_none(_NAME),
    "Offset.query_id": _or_none(_NAME),
    "Evidence.trust": ((lambda value: _is_number(value, 0, 1)), "a number in [0, 1]"),
    "Floor.weights": ((lambda value: isinstance(value, tuple) and all(map(_is_number, value))), "finite numbers"),
    **dict.fromkeys(
        ("Skips.lost", "Floor.lowest", "Floor.cosines", "Floor.lost"),
        ((lambda value: isinstance(value, tuple) and _is_falling(value[::-1])), "numbers that never fall"),
    ),
}


@cache
def _known_of(kind: Any) -> list[tuple[str, Known | None]]:
    """The fields of a *kind* of value by name, and what each may be, if that is said here."""
    return [
        (field.name, _KNOWN.get(f"{kind.__name__}.{field.name}") or _KNOWN.get(str(field.type)))
        for field in fields(kind)
    ]


def _check_known(value: Any, key: str, part: str = "") -> None:
    """Refuse fields of a *value*, the offset of a *key* or a *part* of it, that are not what they should be."""
    for name, known in _known_of(value.__class__):
        field = getattr(value, name)
        if known is not None and not known[0](field):
            raise InputError(f"offsets: expected {known[1]} as {part}{name} of {key!r:.80}, got {field!r:.80}")
        if known is None and is_dataclass(field):
            _check_known(field, key, f"{part}{name}.")
    cuts = [value.leads] if isinstance(value, Skips) else []
    cuts += [value.lowest, value.cosines] if isinstance(value, Floor) else []
    if any(len(rising) != len(value.lost) for rising in cuts):
        raise InputError(
            f"offsets: expected as many cuts as losses as {part.rstrip('.')} of {key!r:.80}, got {value!r:.80}"
        )


def to_bytes(offsets: Sequence[Offset], width: int, settings: Settings) -> bytes:
    """The safetensors file of *offsets* of one *width*, and of the *settings* they were learned with.

    Raises:
        InputError: A field of an offset is not what `Evidence` and `Certificate` say.
    """
    from safetensors.numpy import save

    for offset in offsets:
        _check_known(offset, offset.key)
    dtype = np.result_type(np.float32, *(offset.vector.dtype for offset in offsets))
    matrix = np.array([offset.vector for offset in offsets], dtype=dtype).reshape(len(offsets), width)
    rows: dict[str, list[NDArray[Any]]] = {}
    records = [_record(offset, rows) for offset in offsets]
    # The records are a tensor of bytes: a safetensors header is limited to 100 MB.
    tensors = {"vectors": matrix, "offsets": np.frombuffer(json.dumps(records).encode(), dtype=np.uint8)}
    # safetensors writes memory as it lies: rows one after the other.
    tensors |= {name: np.ascontiguousarray(np.concatenate(arrays)) for name, arrays in rows.items()}
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


@contextmanager
def checked(name: str) -> Iterator[None]:
    """A block that reads the file called *name*: what is wrong with it is an `OffsetFileError` in one line."""
    from safetensors import SafetensorError

    wrong = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
    try:
        yield
    except OffsetFileError:
        raise
    except (SafetensorError, *wrong) as exc:
        raise OffsetFileError(f"{name}: expected an offsets file, got a damaged or foreign one ({exc})") from exc


def from_bytes(data: bytes, name: str) -> tuple[list[Offset], int, Settings]:
    """The offsets, their width and their settings from the bytes of an offsets file, inside a block of `checked`."""
    from safetensors.numpy import load

    objects = count(1)

    def passed(item: ItemT) -> ItemT:
        """*item*, after others had their turn: see `_TURN`."""
        if not next(objects) % _TURN:
            time.sleep(_PAUSE)
        return item

    header, tensors = _header(name, data), load(data)
    matrix, text = tensors["vectors"], tensors["offsets"].tobytes()
    # A record is longer than this: more offsets than the text could hold are refused before it is parsed.
    if matrix.ndim != 2 or len(matrix) * _SHORTEST_RECORD > len(text):
        raise VectorError(f"vectors: expected one row per offset, got {matrix.shape} for {len(text)} bytes of them")
    if len(text) > (most := _LONGEST_RECORD * (1 + len(matrix))):
        raise InputError(f"offsets: expected at most {most} bytes about {len(matrix)} offsets, got {len(text)}")
    settings = _checked_settings(json.loads(header["settings"]))
    records = json.loads(text, object_hook=passed)
    if not isinstance(records, list) or len(records) != len(matrix):
        raise OffsetFileError(f"{name}: expected one vector per offset, got {matrix.shape}, {len(records)}")
    if matrix.dtype.kind != "f" or not matrix.shape[1]:
        raise VectorError(f"vectors: expected floats of width 1 or more, got {matrix.dtype} {matrix.shape}")
    rows = {name: _rows(name, records, tensors.get(name, np.empty(0))) for name in _ARRAYS}
    pairs = zip(records, matrix, strict=True)
    offsets = [passed(_from_record(Offset, record | {"vector": vector}, rows)) for record, vector in pairs]
    for offset in offsets:
        _check_known(offset, offset.key)
    return offsets, matrix.shape[1], settings


def _checked_settings(settings: Any) -> dict[str, str | float]:
    if not isinstance(settings, dict) or not all(isinstance(value, str | int | float) for value in settings.values()):
        raise InputError(f"settings: expected texts and numbers by name, got {settings!r:.80}")
    return settings


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


def _record(value: Any, rows: dict[str, list[NDArray[Any]]], of: str = "") -> dict[str, Any]:
    """The fields of a *value* for JSON: of an array only how many *rows* of the tensor of its name it gives."""
    record: dict[str, Any] = {}
    for name in (field.name for field in fields(value) if field.name != "vector"):
        part = getattr(value, name)
        if f"{of}{name}" in _ARRAYS:
            rows.setdefault(f"{of}{name}", []).append(part)
            part = len(part)
        record[name] = _record(part, rows, f"{of}{name}.") if is_dataclass(part) else part
    return record


def _rows(name: str, records: Sequence[Any], tensor: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows of the *tensor* of this *name* that each record with some has, in order: no row is left over."""
    *parts, last = name.split(".")
    owners = [reduce(lambda owner, part: owner and owner.get(part), parts, record) for record in records]
    counts = [owner[last] for owner in owners if owner]
    if wrong := [rows for rows in counts if not _is_count(rows)]:
        raise InputError(f"{name}: expected {_KNOWN['int'][1]}, got {wrong[0]!r:.80}")
    if len(tensor := np.atleast_1d(tensor)) != sum(counts):
        raise VectorError(f"{name}: expected {sum(counts)} rows, got {len(tensor)}")
    return iter(np.split(tensor, np.cumsum(counts)[:-1]))


def _from_record(
    kind: type[ItemT], record: Mapping[str, Any], rows: Mapping[str, Iterator[NDArray[Any]]], of: str = ""
) -> ItemT:
    """The value of a *kind* that a record tells of, with tuples where JSON has lists, and its arrays from *rows*."""
    values: dict[str, Any] = {}
    for name, value in record.items():
        if f"{of}{name}" in rows:
            values[name] = next(rows[f"{of}{name}"])
        elif name in _PARTS and (value is not None or name in _NEEDED):
            values[name] = _from_record(_PARTS[name], value, rows, f"{of}{name}.")
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)
