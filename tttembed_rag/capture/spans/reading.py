"""What a span says of retrieval: the query, the documents that were shown, a reranker's scores, a base query vector.

Read are the spans of OpenInference (kinds RETRIEVER, RERANKER and EMBEDDING), and OpenTelemetry's own
(``gen_ai.operation.name`` is ``retrieval`` or ``search_memory``). Three rules keep what is learned honest:

- A retriever that asked another one hands on documents that were noted there: only the innermost counts.
- A text that was redacted or cut is never judged: it is looked up by its document's id, else left out.
- A reranker's scores have no scale of their own: they are read only of the reranker that the log was made for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, TypeAlias, TypeVar

import numpy as np
from cachetools import LRUCache

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.system.jsontext import parsed_json
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")
# Ids of documents to their whole texts, as many as are known.
TextsById: TypeAlias = Callable[[list[str]], Mapping[str, str]]

# The key in the metadata of a span, or of the run that it traces, that names the task; and the mark of steered vectors.
TASK_KEY, STEERED = "tttembed_task", "tttembed.steered"
_REDACTED = "__REDACTED__"
# OpenTelemetry's own operations that find something, and how attributes of each are called.
_GEN_AI = {"retrieval": "retrieval", "search_memory": "memory"}
_DOCUMENTS = ("retrieval.documents", "reranker.output_documents")
# What Haystack's instrumentation writes where a retriever was asked by a vector.
_A_VECTOR = re.compile(r"<\d+-dimensional vector>")
# Bytes of query vectors that are remembered at most.
_VECTORS_BYTES = 128 * 2**20
# Bytes of anything else that is remembered at most.
_OTHER_BYTES = 32 * 2**20
# Bytes that an entry takes beside its vector or texts.
_ENTRY_BYTES = 400
# Levels of attributes that are looked into.
_DEEPEST = 20


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A span that has ended, by its id, its trace, and the span around it; None for the outermost.

    Its attributes are named with dots, nested, or both. It began *at* a Unix second; None where that is not known.
    """

    span_id: str
    trace_id: str
    parent_id: str | None
    attributes: Mapping[str, Any]
    at: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Retrieval:
    """A query and the whole texts of documents that a span shows for it, each with its place among all of the span's.

    The scores are a reranker's, one for each document; None where a retriever found them. The base query vector (d,)
    and the task key are None where no span has them. The *source* gave the scores; empty is the reranker.
    """

    query: str
    documents: list[str]
    places: list[int]
    span: Span
    scores: list[float] | None = None
    vector: FloatArray | None = None
    task: str | None = None
    source: str = ""


@dataclass(slots=True)
class _Counts:
    nested: int = 0
    left_out: int = 0
    undeclared: int = 0


@dataclass
class Reader:
    """Reads retrievals from spans that are handed over children first, as they end.

    Its arguments are those of `TTTSpanProcessor`.

    Attributes:
        counts: Retrievers that only handed on (nested), documents and queries without a whole text (left_out), spans of
            rerankers that nothing was declared for (undeclared).
    """

    scores_of: str | None = None
    texts: TextsById | None = None
    cut_at: int | None = None
    vectors: bool = True
    counts: _Counts = field(default_factory=_Counts)

    def __post_init__(self) -> None:
        if self.cut_at is not None and self.cut_at < 1:
            raise InputError(f"cut_at: expected at least 1 character, got {self.cut_at}")
        # Spans that have a retriever with documents below them.
        self._around: LRUCache[tuple[str, str], None] = LRUCache(_OTHER_BYTES // _ENTRY_BYTES)
        self._query_vectors: LRUCache[tuple[str, str], tuple[str, FloatArray]] = LRUCache(
            _VECTORS_BYTES, _size_of_vector
        )
        # The texts that were embedded in a trace, two at most: only whether it is one is asked.
        self._embedded: LRUCache[str, frozenset[str]] = LRUCache(_OTHER_BYTES, _size_of_texts)

    def read(self, span: Span) -> Retrieval | None:
        """What *span* says was retrieved or reranked; None for all other spans."""
        fields = _flat(span.attributes)
        kind = str(fields.get("openinference.span.kind", "")).upper()
        if fields.get("gen_ai.operation.name") in _GEN_AI:
            kind = "RETRIEVER"
        nested = (span.trace_id, span.span_id) in self._around
        self._around.pop((span.trace_id, span.span_id), None)
        documents: list[dict[str, Any]] = []
        if kind == "RETRIEVER":
            documents = _documents(fields, "retrieval.documents") or _gen_ai_documents(fields)
            # LlamaIndex has a span without documents below that of every retriever: it stands for nothing.
            self.counts.left_out += isinstance(fields.get("retrieval.documents"), str)  # cut on the way
        if (nested or documents) and span.parent_id is not None:
            self._around[span.trace_id, span.parent_id] = None
        if kind == "EMBEDDING":
            self._note_vectors(span, fields)
        if kind == "RERANKER":
            return self._reranked(span, fields)
        if kind != "RETRIEVER":
            return None
        if nested:
            self.counts.nested += 1
            return None
        return self._retrieved(span, fields, documents)

    def _retrieved(self, span: Span, fields: dict[str, Any], documents: list[dict[str, Any]]) -> Retrieval | None:
        own = [fields.get(f"gen_ai.{name}.query.text") for name in _GEN_AI.values()]
        said = next(filter(None, own), _input(fields))
        if isinstance(said, str) and _A_VECTOR.fullmatch(said):  # then it is the trace's only embedded text
            embedded = self._embedded.get(span.trace_id) or frozenset()
            said = next(iter(embedded)) if len(embedded) == 1 else None
        query = self._whole(said)
        if query is None:
            self.counts.left_out += len(documents)
            return None
        texts = self._texts(documents)
        kept = [(place, text) for place, text in enumerate(texts) if text is not None]
        places, whole = [place for place, _ in kept], [text for _, text in kept]
        _, vector = self._query_vectors.get((span.trace_id, query), (query, None))
        return Retrieval(query, whole, places, span, vector=vector, task=_task(fields)) if whole else None

    def _reranked(self, span: Span, fields: dict[str, Any]) -> Retrieval | None:
        name = fields.get("reranker.model_name")
        if self.scores_of is None or self.scores_of not in ("*", name):
            self.counts.undeclared += 1
            return None
        query = self._whole(fields.get("reranker.query") or _input(fields))
        documents = _documents(fields, "reranker.output_documents")
        if query is None:
            self.counts.left_out += len(documents)
            return None
        texts = self._texts(documents)
        kept = [
            (place, text, score)
            for place, (document, text) in enumerate(zip(documents, texts, strict=True))
            if text is not None and (score := _number(document.get("score"))) is not None
        ]
        if not kept:
            return None
        places, whole, scores = ([row[column] for row in kept] for column in range(3))
        _, vector = self._query_vectors.get((span.trace_id, query), (query, None))
        return Retrieval(query, whole, places, span, scores, vector, _task(fields))  # type: ignore[arg-type]

    def _note_vectors(self, span: Span, fields: dict[str, Any]) -> None:
        """Remember a trace's embedded texts with their vectors: the first of a text is the innermost model's."""
        base = self.vectors and not fields.get(STEERED)
        number = 0
        while (vector := fields.get(f"embedding.embeddings.{number}.embedding.vector")) is not None:
            text = self._whole(fields.get(f"embedding.embeddings.{number}.embedding.text"))
            if text is not None:
                known = self._embedded.get(span.trace_id) or frozenset()
                if len(known) < 2:
                    _keep(self._embedded, span.trace_id, known | {text})
                key = span.trace_id, text
                if base and key not in self._query_vectors and (taken := _vector(vector)) is not None:
                    _keep(self._query_vectors, key, (text, taken))
            number += 1

    def _texts(self, documents: list[dict[str, Any]]) -> list[str | None]:
        """The whole text of each document; None where it cannot be had."""
        texts = [self._whole(document.get("content")) for document in documents]
        if self.texts is not None and None in texts:
            ids = {str(one["id"]) for one, text in zip(documents, texts, strict=True) if text is None and "id" in one}
            found = self.texts(sorted(ids)) if ids else {}
            texts = [
                found.get(str(one.get("id"))) if text is None else text
                for one, text in zip(documents, texts, strict=True)
            ]
        self.counts.left_out += texts.count(None)
        return texts

    def _whole(self, text: Any) -> str | None:
        """*text* if it is a text and was neither redacted nor cut."""
        if not isinstance(text, str) or not text.strip() or text == _REDACTED:
            return None
        return None if self.cut_at is not None and len(text) >= self.cut_at else text


def children_first(spans: Iterable[Span]) -> list[Span]:
    """*spans* in an order in which no span comes before one below it, those of a level by their time."""
    every = list(spans)
    parents = {(one.trace_id, one.span_id): one.parent_id for one in every}
    depths: dict[tuple[str, str | None], int] = {}

    def depth(span: Span) -> int:
        above: list[tuple[str, str | None]] = []
        key: tuple[str, str | None] = (span.trace_id, span.span_id)
        while key in parents and key not in depths:
            depths[key] = 0  # where parents go round in a circle, it is cut here
            above.append(key)
            key = (span.trace_id, parents[key])
        steps = depths.get(key, -1)
        for one in reversed(above):
            steps += 1
            depths[one] = steps
        return depths[span.trace_id, span.span_id]

    return sorted(every, key=lambda one: (-depth(one), one.at or 0.0))


def _flat(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by dotted names; lists of numbers stay whole."""
    flat: dict[str, Any] = {}

    def add(name: str, value: Any, depth: int = 0) -> None:
        if isinstance(value, Mapping) and depth < _DEEPEST:
            for key, below in value.items():
                add(f"{name}.{key}" if name else str(key), below, depth + 1)
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value) and depth < _DEEPEST:
            for number, below in enumerate(value):
                add(f"{name}.{number}", below, depth + 1)
        elif name in _DOCUMENTS and isinstance(value, str) and isinstance(listed := _parsed(value), list):
            add(name, listed, depth + 1)  # a table may hold them as JSON
        else:
            flat[name] = value.tolist() if hasattr(value, "tolist") else value

    for name, value in attributes.items():
        add(name, value.tolist() if hasattr(value, "tolist") else value)
    return flat


def _documents(fields: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The documents below *prefix*, in their order: id, content and score, as far as they are there."""
    by_place: dict[int, dict[str, Any]] = {}
    for name, value in fields.items():
        if name.startswith(prefix + "."):
            place, _, rest = name[len(prefix) + 1 :].partition(".")
            if place.isdecimal() and len(place) < 10:
                by_place.setdefault(int(place), {})[rest.removeprefix("document.")] = value
    return [by_place[place] for place in sorted(by_place)]


def _gen_ai_documents(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The documents of OpenTelemetry's own conventions, as JSON or as fields; those of a retrieval have no texts."""
    for name in ("gen_ai.retrieval.documents", "gen_ai.memory.records"):
        said = fields.get(name)
        if isinstance(said, str):
            said = _parsed(said)
            return [dict(one) for one in said if isinstance(one, Mapping)] if isinstance(said, list) else []
        if found := _documents(fields, name):
            return found
    return []


def _input(fields: Mapping[str, Any]) -> Any:
    """The query of a span's input: a text, or one of the usual names in JSON."""
    said = fields.get("input.value")
    if not isinstance(said, str) or "json" not in str(fields.get("input.mime_type", "")):
        return said
    parsed = _parsed(said)
    if parsed is None:
        return said
    if isinstance(parsed, dict):
        texts = {key: value for key, value in parsed.items() if isinstance(value, str)}
        named = next((texts[key] for key in ("query", "text", "question", "input") if key in texts), None)
        return named if named is not None or len(texts) != 1 else next(iter(texts.values()))
    return parsed if isinstance(parsed, str) else None


def _task(fields: Mapping[str, Any]) -> str | None:
    """The task key that the metadata of a span names."""
    metadata = fields.get("metadata")
    if isinstance(metadata, str):
        metadata = _parsed(metadata)
    named = metadata.get(TASK_KEY) if isinstance(metadata, dict) else None
    named = named or fields.get(TASK_KEY) or fields.get(f"metadata.{TASK_KEY}")
    return named if isinstance(named, str) else None


def _parsed(text: str) -> Any:
    """What *text* says in JSON; None where it is cut, too deep, or no JSON."""
    try:
        return parsed_json(text)
    except ValueError:
        return None


def _number(value: Any) -> float | None:
    """A finite number, else None."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:
        return None


def _vector(value: Any) -> FloatArray | None:
    """*value* in the precision that a store keeps, if it can be a query vector: documents count without one too."""
    try:
        with np.errstate(over="ignore"):
            vector = as_floats("vector", list(value)).astype(np.float32)
        return vector if vector.ndim == 1 and bool(checked_norms("vector", vector)) else None
    except (TypeError, OverflowError, VectorError):
        return None


def _keep(cache: LRUCache[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
    with suppress(ValueError):  # of a value that is larger than all that may be kept
        cache[key] = value


def _size_of_vector(kept: tuple[str, FloatArray]) -> int:
    return _ENTRY_BYTES + getsizeof(kept[0]) + kept[1].nbytes


def _size_of_texts(kept: frozenset[str]) -> int:
    return _ENTRY_BYTES + sum(map(getsizeof, kept))
