"""The metrics and spans of a process for OpenTelemetry: offsets served, queries captured, age of the offsets.

Only the API is used: without it nothing is recorded, without an SDK nothing is sent. A query's vector
is counted by a `Tallies`, read when an exporter asks: a counter of the SDK would cost as much as the vector.
Beside the metrics below there are spans with their attributes: ``tttembed.capture``, ``tttembed.refresh`` (where
something changed) and ``tttembed.STEP``.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

_log = logging.getLogger(__name__)
Value: TypeAlias = str | bool | int | float
KeyT = TypeVar("KeyT", bound=Hashable)

# Keys that are counted each by itself, at most: an exporter pays for each.
_MOST_KEYS = 500


# Held while a count is raised.
_counting = Lock()


class Tallies(Generic[KeyT]):
    """A count for each key, the first 500 of them, which threads raise at once; later keys share that of *rest*."""

    def __init__(self, rest: KeyT) -> None:
        self._rest = rest
        self._counts = Counter[KeyT]()

    def add(self, key: KeyT) -> None:
        """Raise the count of *key* by one."""
        with _counting:
            self._counts[key if key in self._counts or len(self._counts) < _MOST_KEYS else self._rest] += 1

    def values(self) -> dict[KeyT, int]:
        """The count of each key so far."""
        with _counting:
            return dict(self._counts)

    def clear(self) -> None:
        """Set every count to zero."""
        self._counts = Counter()


# Queries by (task, whether an offset was served).
applied: Tallies[tuple[str | None, bool]] = Tallies(("(other)", False))


def _begin_again() -> None:
    """A forked process reports only its own queries; the lock may be held by a thread that it does not have."""
    global _counting  # noqa: PLW0603 (one for the process)
    _counting = Lock()
    applied.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


class Point(NamedTuple):
    """One measured value of a metric, with the metric's attributes."""

    metric: str
    value: float
    attributes: Mapping[str, Value]


class Measured(Protocol):
    """A source of values that are measured when an exporter asks for them."""

    def measure(self) -> Iterable[Point]:
        """The values now."""


_watched: WeakSet[Measured] = WeakSet()

# name: (kind, unit, description). What holds the value of an observable one has `measure` and calls `watch(self)`; the
# others are added to by `instruments()[name](value, attributes)`. Where several `Measured` sources have a value for the
# same attributes, an exporter is given their sum, the age of the oldest and the version of the one that is behind.
_METRICS = {
    "tttembed.apply.queries": ("observable_counter", "{query}", "Queries by task and outcome: offset, base"),
    "tttembed.capture.queries": ("counter", "{query}", "Served queries by outcome, such as written or dropped"),
    "tttembed.capture.queued": ("observable_gauge", "{query}", "Served queries that wait to be written"),
    "tttembed.capture.duration": ("histogram", "s", "Time to write a batch of served queries"),
    "tttembed.refresh.duration": ("histogram", "s", "Time to look for another version"),
    "tttembed.refresh.lag": ("histogram", "s", "Time from a version's publication until it was served here"),
    "tttembed.refresh.version": ("observable_gauge", "{version}", "Number of the version that is served, by tenant"),
    "tttembed.refresh.age": ("observable_gauge", "s", "Time since the store last answered"),
    "tttembed.step.duration": ("histogram", "s", "Time of a worker's step, by step and error.type"),
    "tttembed.judge.pairs": ("counter", "{pair}", "Pairs of query and document that a judge was paid for, by judge"),
    "tttembed.judge.tokens": ("counter", "{token}", "Tokens that judging took, by judge"),
    "tttembed.judge.cost": ("counter", "USD", "What judging cost, by judge"),
    "tttembed.publish.decisions": ("counter", "{version}", "Versions by outcome: published, abstained, rolled_back"),
}
_JOINED: dict[str, Callable[[list[float]], float]] = {"tttembed.refresh.version": min, "tttembed.refresh.age": max}


def watch(source: Measured) -> None:
    """Ask *source* for its values whenever an exporter wants them, as long as it lives."""
    instruments()
    _watched.add(source)


def record(metric: str, value: float, **attributes: Value) -> None:
    """Add *value* to a histogram or counter of the table above; attributes are named without ``tttembed.``.

    An error of the instrument is logged: it costs this value, and nothing that is measured.
    """
    if (known := instruments()) is not None:
        add = known[metric]
        try:
            add(value, _attributes(attributes))
        except Exception:  # noqa: BLE001 - the application's SDK: what is measured must not fail for it
            _log.exception("%s was not recorded", metric)


@contextmanager
def step(name: str, **attributes: Value) -> Iterator[Callable[..., None]]:
    """A span ``tttembed.NAME``, and its duration with the name of the error that ended it.

    Gives a function that sets further attributes of the span.

        with telemetry.step("fit", tenant="acme") as note:
            offsets = fit(rewards)
            note(rewarded=rewards.n)
    """
    began, failed = time.perf_counter(), ""
    try:
        with span(name, **attributes) as note:
            yield note
    except BaseException as error:
        failed = type(error).__name__
        raise
    finally:
        taken: dict[str, Value] = {"step": name, **({"error.type": failed} if failed else {})}
        record("tttembed.step.duration", time.perf_counter() - began, **taken)


@contextmanager
def span(name: str, **attributes: Value) -> Iterator[Callable[..., None]]:
    """A span ``tttembed.NAME``; an error ends it as one. Gives a function that sets further attributes."""
    if instruments() is None:
        yield lambda **_: None
        return
    from opentelemetry import trace

    with trace.get_tracer("tttembed_rag").start_as_current_span(f"tttembed.{name}") as current:

        def note(**more: Value) -> None:
            current.set_attributes(_attributes(more))

        note(**attributes)
        yield note


def mark(**attributes: Value) -> None:
    """Set attributes of the span that the caller is in, whoever began it."""
    if instruments() is not None:
        from opentelemetry import trace

        trace.get_current_span().set_attributes(_attributes(attributes))


def judged(judge: str, *, pairs: int, tokens: int = 0, usd: float = 0.0) -> None:
    """Count the pairs, tokens and money of a judge's answers."""
    for unit, amount in (("pairs", pairs), ("tokens", tokens), ("cost", usd)):
        if amount:
            record(f"tttembed.judge.{unit}", amount, judge=judge)


def _attributes(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Attributes with the prefix ``tttembed.``, but for names of OpenTelemetry's own such as ``error.type``."""
    return {name if "." in name else f"tttembed.{name}": value for name, value in attributes.items()}


def _values(metric: str) -> dict[tuple[tuple[str, Value], ...], float]:
    """The values of *metric* by attributes, those of several sources joined."""
    points = [point for source in list(_watched) for point in source.measure()]
    for (task, served), queries in applied.values().items():
        attributes = {"task": task or "", "outcome": "offset" if served else "base"}
        points.append(Point("tttembed.apply.queries", queries, attributes))
    values: dict[tuple[tuple[str, Value], ...], list[float]] = {}
    for point in points:
        if point.metric == metric:
            values.setdefault(tuple(sorted(_attributes(point.attributes).items())), []).append(point.value)
    join = _JOINED.get(metric, sum)
    return {key: join(several) for key, several in values.items()}


@cache
def instruments() -> dict[str, Callable[[float, Mapping[str, Value]], None]] | None:
    """Offer the metrics of this process; gives what adds to each histogram and counter, None without OpenTelemetry.

    The API hands out instruments before an application has set up its SDK; they work from then on.
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    meter = metrics.get_meter("tttembed_rag")

    def observed(metric: str, _: object) -> Iterator[metrics.Observation]:
        return (metrics.Observation(value, dict(key)) for key, value in _values(metric).items())

    adding: dict[str, Callable[[float, Mapping[str, Value]], None]] = {}
    for name, (kind, unit, text) in _METRICS.items():
        create = getattr(meter, f"create_{kind}")
        if kind.startswith("observable"):
            create(name, [partial(observed, name)], unit, text)
        else:
            made = create(name, unit, text)
            adding[name] = made.record if kind == "histogram" else made.add
    return adding
