"""Spans from yesterday: a file of JSON lines or Parquet, the queries that they served, and thumbs on their answers."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tttembed_rag.errors import DataError, RewardError
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.log import unit_rewards
from tttembed_rag.system.jsontext import parsed_json
from tttembed_store.extras import require
from tttembed_store.spans.reading import Reader, Span, children_first


def read_spans(path: Path) -> list[Span]:
    """The spans of a file.

    Known are JSON lines and JSON lists of what the OpenTelemetry SDK prints (``span.to_json()``) or Phoenix exports,
    OTLP as JSON, which the file exporter of the OpenTelemetry collector writes, and Parquet files of Phoenix's data
    frames (``pip install 'tttembed-store[parquet]'``).

    Raises:
        DataError: Not such a file; the message names the line.
    """
    try:
        if path.suffix.lower() == ".parquet":
            records: Iterable[Any] = require("pyarrow.parquet", "parquet").read_table(path).to_pylist()
        else:
            records = _without_envelopes(path, _json(path.read_text(encoding="utf-8-sig")))
        spans = []
        for number, record in enumerate(records, 1):
            try:
                spans.append(span_of(record))
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as exc:
                expected = "expected context.span_id, trace_id and attributes"
                raise DataError(f"{path}: span {number}: {expected} ({exc!r})") from exc
    except FileNotFoundError as exc:
        raise DataError(f"{path}: expected a file of spans, found none") from exc
    except DataError:
        raise
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{path}: expected spans as JSON lines or Parquet ({exc})") from exc
    return spans


def span_of(record: Mapping[str, Any]) -> Span:
    """The span that a *record* of the SDK, of Phoenix or of a row of its data frame describes.

    Raises:
        KeyError: It has no id.
        ValueError: It is malformed.
    """
    context = record.get("context")
    ids: Mapping[str, Any] = context if isinstance(context, Mapping) else {}

    def named(name: str) -> Any:
        value = ids.get(name, record.get(f"context.{name}", record.get(name)))
        if not isinstance(value, str) or not value:
            raise KeyError(name)
        return value.removeprefix("0x")

    fields = record.get("attributes")
    if isinstance(fields, str):
        fields = parsed_json(fields)
    attributes: dict[str, Any] = dict(fields) if isinstance(fields, Mapping) else {}
    attributes |= {
        key.removeprefix("attributes."): value
        for key, value in record.items()
        if key.startswith("attributes.") and value is not None
    }
    if kind := record.get("span_kind"):
        attributes.setdefault("openinference.span.kind", kind)
    parent = record.get("parent_id")
    parent = str(parent).removeprefix("0x") if parent else None
    return Span(named("span_id"), named("trace_id"), parent, attributes, _seconds(record.get("start_time")))


def served_in(spans: Iterable[Span], reader: Reader, scale: Scale | None = None) -> list[tuple[Span, Served]]:
    """The queries that *spans*, in any order, served, each with its span; the first served come first.

    Scores of a reranker become rewards by their *scale*. A span that says no time counts as the oldest, so that it
    brings nothing back that was forgotten.

    Raises:
        RewardError: A score is off the scale; the message names the span.
    """
    queries = []
    for span in children_first(spans):
        if (read := reader.read(span)) is None:
            continue
        served, scores = read
        if scores is not None and scale is not None:
            try:
                rewards = unit_rewards(scale, scores, scores)
            except RewardError as exc:
                raise RewardError(f"span {span.span_id}: {exc}") from exc
            pairs = zip(served.candidates, rewards, strict=True)
            served = replace(served, candidates=[replace(candidate, reward=reward) for candidate, reward in pairs])
        queries.append((span, replace(served, task=served.task or DEFAULT_TASK)))
    return sorted(queries, key=lambda query: query[1].at or 0.0)


class Thumb(NamedTuple):
    """What a *source* said of the answer of a trace: yes or no, or a number on a scale."""

    trace_id: str
    value: float | bool
    source: str
    at: float


def thumbed(queries: Sequence[tuple[Span, Served]], thumbs: Iterable[Thumb], scale: Scale) -> list[Served]:
    """Each of the *queries*, which spans served, once for every source with a thumb for its trace, with its rewards.

    A thumb is one event, and the answer stands on all documents of its trace. Each of k documents is credited with a
    part of the event: the posterior mean is (k/2 + value) / (k + 1), with the value in [0, 1]. Nobody vouches for such
    rewards. A query without a thumb stays as it is. Of several thumbs of a source for a trace, the last counts.

    Raises:
        RewardError: A value lies off the *scale*.
    """
    by_trace: dict[str, dict[str, Thumb]] = defaultdict(dict)
    for thumb in sorted(thumbs, key=lambda thumb: thumb.at):
        by_trace[thumb.trace_id][thumb.source] = thumb
    counts: Counter[str] = Counter()
    for span, served in queries:
        counts[span.trace_id] += sum(bool(candidate.text) for candidate in served.candidates)
    rewarded: list[Served] = []
    for span, served in queries:
        count, of_trace = counts[span.trace_id], by_trace[span.trace_id]
        for thumb in of_trace.values():
            value = float(scale.to_unit(np.array([thumb.value]))[0]) if type(thumb.value) is not bool else thumb.value
            reward = (count / 2 + value) / (count + 1)
            candidates = [replace(candidate, reward=reward) for candidate in served.candidates]
            rewarded.append(replace(served, candidates=candidates, source=thumb.source))
        if not of_trace:
            rewarded.append(served)
    return rewarded


def _json(text: str) -> Iterable[Any]:
    """The objects of JSON lines, of one list, or of objects that are printed one after another."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        value, place = decoder.raw_decode(text, place)
        yield from value if isinstance(value, list) else [value]


def _without_envelopes(path: Path, records: Iterable[Any]) -> Iterable[Any]:
    """*records* with the spans of OTLP in the place of their envelopes; its logs and metrics are passed over."""
    for number, record in enumerate(records, 1):
        if not isinstance(record, Mapping) or not record.keys() & {"resourceSpans", "resourceLogs", "resourceMetrics"}:
            yield record
            continue
        try:
            for resource in record.get("resourceSpans", ()):
                for scope in resource.get("scopeSpans", ()):
                    yield from map(_of_otlp, scope.get("spans", ()))
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise DataError(f"{path}: object {number}: expected resourceSpans as OTLP has them ({exc!r})") from exc


def _of_otlp(span: Mapping[str, Any]) -> dict[str, Any]:
    """A span of OTLP as `span_of` reads it."""
    return {
        "context": {"span_id": span["spanId"], "trace_id": span["traceId"]},
        "parent_id": span.get("parentSpanId"),
        "start_time": int(span["startTimeUnixNano"]) if "startTimeUnixNano" in span else None,
        "attributes": _value_of_otlp({"kvlistValue": {"values": span.get("attributes", ())}}),
    }


def _value_of_otlp(value: Mapping[str, Any]) -> Any:
    """The value of an attribute: OTLP names its type; whole numbers may be texts, as JSON cannot hold all of them."""
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value_of_otlp(element) for element in value["arrayValue"].get("values", ())]
    if "kvlistValue" in value:
        pairs = value["kvlistValue"].get("values", ())
        return {pair["key"]: _value_of_otlp(pair.get("value", {})) for pair in pairs}
    return next((value[kind] for kind in ("stringValue", "doubleValue", "boolValue") if kind in value), None)


def _seconds(moment: Any) -> float | None:
    """Unix seconds of an ISO date, a datetime, or nanoseconds."""
    if moment is None:
        return None
    if isinstance(moment, int | float):
        if not math.isfinite(moment):
            raise ValueError(f"start_time: expected nanoseconds, got {moment}")
        return moment / 1e9
    when = moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment))
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
