"""Spans as served queries: the query, the documents that were shown, a reranker's scores, a base query vector.

Read are the spans of OpenInference (kinds RETRIEVER, RERANKER and EMBEDDING), and OpenTelemetry's own
(``gen_ai.operation.name`` is ``retrieval`` or ``search_memory``). Three rules keep what is learned honest:

- A retriever that asked another one hands on documents that were noted there: only the innermost counts.
- A text that was redacted or cut is never judged: it is looked up by its document's id, else left out.
- A reranker's scores have no scale of their own: they are read only of the reranker that the log was made for.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, TypeAlias

import numpy as np
from cachetools import LRUCache

from tttembed_rag.errors import VectorError, check_count
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.system.jsontext import parsed_json
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms

# Ids of documents to their whole texts, as many as are known.
TextsById: TypeAlias = Callable[[list[str]], Mapping[str, str]]

# The key in the metadata of a span, or of the run that it traces, that names the task; and the mark of steered vectors.
TASK_KEY, STEERED = "tttembed_task", "tttembed.steered"
_REDACTED = "__REDACTED__"
# OpenTelemetry's own operations that find something.
_GEN_AI = ("retrieval", "search_memory")
# Where conventions keep the query and the documents of a retriever, and the documents of a reranker.
_QUERY = ("gen_ai.retrieval.query.text", "gen_ai.memory.query.text")
_RETRIEVED = ("retrieval.documents", "gen_ai.retrieval.documents", "gen_ai.memory.records")
_RERANKED = "reranker.output_documents"
# What functions call the query that they are asked.
_QUERIES = ("query", "query_str", "query_bundle", "str_or_query_bundle", "text", "question", "input")
# What Haystack's instrumentation writes where a retriever was asked by a vector.
_A_VECTOR = re.compile(r"<\d+-dimensional vector>")
# Bytes of vectors and of embedded texts, and spans, that are remembered at most.
_VECTORS_BYTES, _TEXTS_BYTES, _SPANS = 128 * 2**20, 32 * 2**20, 50_000
# Bytes that an entry takes beside what it holds: its key, and the cache's own.
_ENTRY_BYTES = 400
# Levels of attributes that are looked into, and levels of a trace that are told apart.
_DEEPEST, _LEVELS = 20, 500


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


@dataclass
class Reader:
    """Reads served queries from spans that are handed over children first, as they end.

    Its arguments are those of `TTTSpanProcessor`; *counts* are of what is ``nested``, ``left_out``, ``without_query``
    and ``undeclared``, as `Tapped` says. About 180 MiB of the latest spans are remembered at most, however long
    their names and texts are.
    """

    scores_of: str | None = None
    texts: TextsById | None = None
    cut_at: int | None = None
    vectors: bool = True

    def __post_init__(self) -> None:
        if self.cut_at is not None:
            check_count("cut_at", self.cut_at)
        self.counts = Counter[str]()
        # Spans that have a retriever with documents below them.
        self._around: LRUCache[bytes, None] = LRUCache(_SPANS)
        # By trace and text.
        self._query_vectors: LRUCache[bytes, FloatArray] = LRUCache(_VECTORS_BYTES, _size)
        # The only text that was embedded in a trace; None where there were several, or where it is no query's.
        self._embedded: LRUCache[bytes, str | None] = LRUCache(_TEXTS_BYTES, _size)

    def read(self, span: Span) -> tuple[Served, list[float | None] | None] | None:
        """The query that *span* served, and a reranker's score of each candidate; None for spans that served none.

        There are no scores where a retriever found the candidates. Ids are left to be made of texts, and a task that
        the span does not name is empty. Candidates keep their places: one without a whole text is there, with none.
        """
        fields = _flat(span.attributes)
        kind = str(fields.get("openinference.span.kind", "")).upper()
        if fields.get("gen_ai.operation.name") in _GEN_AI:
            kind = "RETRIEVER"
        key = _digest(span.trace_id, span.span_id)
        nested = key in self._around
        self._around.pop(key, None)
        documents: list[dict[str, Any]] = []
        if kind == "RETRIEVER":
            # LlamaIndex has a span without documents below that of every retriever: it stands for nothing.
            documents = next(filter(None, (_documents(fields, name) for name in _RETRIEVED)), [])
            self.counts["left_out"] += any(isinstance(fields.get(name), str) for name in _RETRIEVED)  # cut on the way
        if (nested or documents) and span.parent_id is not None:
            self._around[_digest(span.trace_id, span.parent_id)] = None
        if kind == "EMBEDDING":
            self._note_vectors(span, fields)
        elif kind == "RERANKER" and self.scores_of and self.scores_of in ("*", fields.get("reranker.model_name")):
            query = fields.get("reranker.query") or _input(fields)
            return self._served(span, fields, query, _documents(fields, _RERANKED), scored=True)
        elif kind == "RERANKER":
            self.counts["undeclared"] += 1
        elif kind == "RETRIEVER" and nested:
            self.counts["nested"] += 1
        elif kind == "RETRIEVER":
            query = next(filter(None, map(fields.get, _QUERY)), _input(fields))
            if isinstance(query, str) and _A_VECTOR.fullmatch(query):  # then it is the trace's only embedded text
                query = self._embedded.get(_digest(span.trace_id))
            return self._served(span, fields, query, documents)
        return None

    def _served(
        self, span: Span, fields: dict[str, Any], raw: Any, documents: list[dict[str, Any]], *, scored: bool = False
    ) -> tuple[Served, list[float | None] | None] | None:
        """The query whose text may be *raw*, with its documents; those that are *scored* have a number, or no text."""
        query = self._whole(raw)
        if query is None:
            self.counts["without_query"] += bool(documents)
            return None
        texts = [text or "" for text in self._texts(documents)]
        scores = None
        if scored:
            numbers = [_number(document.get("score")) for document in documents]
            texts = [text if number is not None else "" for text, number in zip(texts, numbers, strict=True)]
            scores = [number if text else None for text, number in zip(texts, numbers, strict=True)]
        if not any(texts):
            return None
        vector = self._query_vectors.get(_digest(span.trace_id, query))
        task = fields.get(f"metadata.{TASK_KEY}") or fields.get(TASK_KEY)
        task = task if isinstance(task, str) else ""
        served = Served("", vector, [Candidate("", None, text) for text in texts], query, task, at=span.at or 0.0)
        return served, scores

    def _note_vectors(self, span: Span, fields: dict[str, Any]) -> None:
        """Remember a trace's embedded texts with their vectors: the first of a text is the innermost model's."""
        base, number = self.vectors and not fields.get(STEERED), 0
        while (vector := fields.get(f"embedding.embeddings.{number}.embedding.vector")) is not None:
            text = self._whole(fields.get(f"embedding.embeddings.{number}.embedding.text"))
            number += 1
            if text is None:
                continue
            trace, key = _digest(span.trace_id), _digest(span.trace_id, text)
            is_only = self._embedded.get(trace, text) == text
            self._embedded[trace] = text if is_only and _size(text) <= _TEXTS_BYTES else None
            base_vector = _vector(vector) if base and key not in self._query_vectors else None
            if base_vector is not None and _size(base_vector) <= _VECTORS_BYTES:
                self._query_vectors[key] = base_vector

    def _texts(self, documents: list[dict[str, Any]]) -> list[str | None]:
        """The whole text of each document; None where it cannot be had."""
        texts = [self._whole(document.get("content")) for document in documents]
        ids = {
            place: str(document["id"])
            for place, document in enumerate(documents)
            if texts[place] is None and "id" in document
        }
        if self.texts is not None and ids:
            whole = self.texts(sorted(set(ids.values())))
            for place, key in ids.items():
                texts[place] = whole.get(key)
        self.counts["left_out"] += texts.count(None)
        return texts

    def _whole(self, text: Any) -> str | None:
        """*text* if it is a text and was neither redacted nor cut."""
        if not isinstance(text, str) or not text.strip() or text == _REDACTED:
            return None
        return None if self.cut_at is not None and len(text) >= self.cut_at else text


def _digest(*parts: str) -> bytes:
    """What stands for names and texts where only equality is asked, as short as they may be long."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


def children_first(spans: Iterable[Span]) -> list[Span]:
    """*spans* in an order in which no span comes before one below it, those of a level by their time.

    Levels below the 500th of a trace are one, as are those of parents that go round in a circle.
    """
    every = list(spans)
    by_id = {(span.trace_id, span.span_id): span for span in every}

    def depth(span: Span) -> int:
        above: Span | None = span
        for steps in range(_LEVELS):
            if above is None or above.parent_id is None:
                return steps
            above = by_id.get((above.trace_id, above.parent_id))
        return _LEVELS

    return sorted(every, key=lambda span: (-depth(span), span.at or 0.0))


def _flat(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by dotted names; lists of numbers stay whole."""
    flat: dict[str, Any] = {}

    def add(name: str, value: Any, depth: int = 0) -> None:
        value = value.tolist() if hasattr(value, "tolist") else value
        if name in (*_RETRIEVED, _RERANKED, "metadata") and isinstance(value, str):  # a table may hold them as JSON
            parsed = _parsed(value)
            value = parsed if isinstance(parsed, list | dict) else value
        if isinstance(value, Mapping) and depth < _DEEPEST:
            for key, below in value.items():
                add(f"{name}.{key}" if name else str(key), below, depth + 1)
        elif isinstance(value, list | tuple) and any(isinstance(part, Mapping) for part in value) and depth < _DEEPEST:
            for number, below in enumerate(value):
                add(f"{name}.{number}", below, depth + 1)
        else:
            flat[name] = value

    add("", attributes, -1)
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


def _input(fields: Mapping[str, Any]) -> Any:
    """The query of a span's input: a text, or the one that JSON holds; None where that is not known."""
    written = fields.get("input.value")
    if not isinstance(written, str) or "json" not in str(fields.get("input.mime_type", "")):
        return written
    try:
        return _query_of(parsed_json(written))
    except ValueError:
        return None if written[:1] in ("{", "[") else written


def _query_of(arguments: Any, depth: int = 0) -> str | None:
    """The text of the query among the *arguments* of a function: by its name, else by its place, else the only one."""
    if isinstance(arguments, list) and len(arguments) == 1:
        arguments = arguments[0]
    if not isinstance(arguments, Mapping) or depth > _DEEPEST:
        return arguments if isinstance(arguments, str) else None
    kwargs = arguments.get("kwargs")
    fields = {**arguments, **kwargs} if isinstance(kwargs, Mapping) else arguments
    for name in _QUERIES:
        if (query := _query_of(fields.get(name), depth + 1)) is not None:
            return query
    if isinstance(args := arguments.get("args"), list) and args:
        return _query_of(args[0], depth + 1)
    texts = [text for text in fields.values() if isinstance(text, str)]
    return texts[0] if len(texts) == 1 else None


def _parsed(text: str) -> Any:
    """What *text* holds in JSON; None where it is cut, too deep, or no JSON."""
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


def _size(value: str | FloatArray | None) -> int:
    """Bytes that a remembered text or vector takes."""
    return _ENTRY_BYTES + getsizeof(value)
