"""Feedback of users as rewards: thumbs, clicks, task success, and judgments made elsewhere.

A click says little without the place of its document: a document that the user never looked at was not
rejected. With examination probability e_p at place p, decay w and prior strength m, the reward of a
pair is the posterior mean (m/2 + sum w good) / (m + sum w (good + e_p bad)), in [0, 1].
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tttembed_rag.errors import DataError, InputError
from tttembed_rag.scales import Scale

_log = logging.getLogger(__name__)
# The signals, and what their values mean.
SIGNALS = {
    "thumb": "1 up, -1 down, 0 taken back",
    "click": "1 clicked, 0 shown and not clicked; weighed by its position, from 1",
    "success": "1 the document served the task, 0 it did not",
    "judgment": "a grade on the declared scale",
}
_BEIR_HEADER = ["query-id", "corpus-id", "score"]
_QUEPID = {"query", "docid", "rating"}
_COLUMNS = ("query_id", "doc_id", "signal", "value")


@dataclass(frozen=True, slots=True)
class Event:
    """One action of a user, or one judgment.

    Attributes:
        query: Id or text of the query.

        document: Id of the document.

        signal: ``thumb``, ``click``, ``success`` or ``judgment``.

        value: As `SIGNALS` says: of a thumb 1 is up, -1 down, 0 taken back; else 1 or 0, or the grade of a judgment.

        position: Place at which the document was shown, from 1; only clicks need it.

        seconds: When, since 1970; None is now.
    """

    query: str
    document: str
    signal: str
    value: float
    position: int = 1
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise InputError(f"signal: expected {', '.join(SIGNALS)}, got {self.signal!r}")
        allowed = (-1.0, 0.0, 1.0) if self.signal == "thumb" else (0.0, 1.0)
        if not math.isfinite(self.value) or (self.signal != "judgment" and self.value not in allowed):
            raise InputError(f"value: expected for {self.signal} {SIGNALS[self.signal]}, got {self.value:g}")
        if self.position < 1:
            raise InputError(f"position: expected 1 or more, got {self.position}")
        if self.seconds is not None and not math.isfinite(self.seconds):
            raise InputError(f"seconds: expected a finite number, got {self.seconds:g}")


@dataclass(frozen=True, slots=True)
class Feedback:
    """Rewards by query and document, gathered from events.

    Attributes:
        scores: By (query, document), on *scale*.

        scale: Probability, or that of the judgments.
    """

    scores: Mapping[tuple[str, str], float]
    scale: Scale

    @classmethod
    def of(
        cls,
        events: Sequence[Event],
        *,
        scale: Scale | None = None,
        half_life_days: float = math.inf,
        attention: float = 1.0,
        prior: float = 1.0,
    ) -> Feedback:
        """Gather *events*; judgments and behaviour are different judges and must not come together.

        Args:
            events: In any order.

            scale: Scale of the grades of judgments, which the grades alone do not show.

            half_life_days: After so many days an event weighs half; age counts back from the newest.

            attention: e_p = p ** -attention.

            prior: Strength m of the prior, in events.
        """
        judged = {event.signal == "judgment" for event in events}
        if len(judged) != 1:
            raise InputError(f"events: expected judgments or behaviour, got {'both' if judged else 'none'}")
        if not (half_life_days > 0 and attention >= 0 and prior >= 0):
            raise InputError("feedback: expected half_life_days > 0, attention >= 0 and prior >= 0")
        imported = judged == {True}
        _check_thumbs(events)
        if imported and scale is None:
            raise InputError("scale: expected one for judgments, such as rubric:0,3, got none")
        newest = max((event.seconds for event in events if event.seconds is not None), default=0.0)
        sums: dict[tuple[str, str], tuple[float, float]] = {}
        for event in events:
            age = 0.0 if event.seconds is None else (newest - event.seconds) / 86_400
            weight = 0.5 ** (age / half_life_days)
            if imported:
                gained, counted = weight * event.value, weight
            else:
                good = event.value > 0
                seen = 1.0 if good or event.signal != "click" else event.position**-attention
                silent = event.signal == "thumb" and event.value == 0  # a thumb taken back
                gained, counted = (0.0, 0.0) if silent else (weight * good, weight * seen)
            old = sums.get((event.query, event.document), (0.0, 0.0))
            sums[event.query, event.document] = (old[0] + gained, old[1] + counted)
        strength = 0.0 if imported else prior
        scores = {
            pair: (strength / 2 + gained) / (strength + counted)
            for pair, (gained, counted) in sums.items()
            if counted > 0
        }
        return cls(scores, scale if imported and scale is not None else Scale("probability"))

    @classmethod
    def read(
        cls, path: Path, *, scale: Scale | None = None, half_life_days: float = math.inf, attention: float = 1.0
    ) -> Feedback:
        """The feedback in a file: events or Quepid's ratings as CSV, TREC qrels, or OpenSearch judgments as JSON."""
        return cls.of(list(read_events(path)), scale=scale, half_life_days=half_life_days, attention=attention)

    def by_text(self, queries: Mapping[str, str], documents: Mapping[str, str]) -> dict[tuple[str, str], float]:
        """The scores by (query text, document text).

        Pairs of unknown queries and documents are left out; one line in the log counts them.

        Args:
            queries: Text by id; feedback may name a query by either.

            documents: Text by id.

        Raises:
            DataError: Most pairs are of unknown queries or documents.
        """
        texts = frozenset(queries.values())
        lost = [pair for pair in self.scores if not ((pair[0] in queries or pair[0] in texts) and pair[1] in documents)]
        if lost:
            query, document = lost[0]
            line = (
                f"feedback: {len(lost)} of {len(self.scores)} pairs name a query or a document that is not among the "
                f"{len(queries)} queries and {len(documents)} documents, such as query {query!r:.80} with document "
                f"{document!r:.80}"
            )
            if 2 * len(lost) > len(self.scores):
                raise DataError(f"{line}: expected the ids of both")
            _log.warning("%s: they are left out", line)
        table: dict[tuple[str, str], list[float]] = {}
        for (query, document), score in self.scores.items():
            if document in documents:
                table.setdefault((queries.get(query, query), documents[document]), []).append(score)
        return {pair: sum(scores) / len(scores) for pair, scores in table.items()}


def _check_thumbs(events: Sequence[Event]) -> None:
    """Say how many thumbs are 0, which says nothing; refuse them where most are."""
    thumbs = [event.value for event in events if event.signal == "thumb"]
    silent = thumbs.count(0.0)
    if not silent:
        return
    line = f"value: {silent} of {len(thumbs)} thumbs are 0, a thumb taken back, which says nothing"
    if 2 * silent > len(thumbs):
        raise InputError(f"{line}; expected -1 for a thumb down")
    _log.warning("%s; a thumb down is -1", line)


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, read by its ending: ``.json``, ``.csv``, and qrels of TREC or BEIR under any other.

    A CSV file has the columns of events, or those of Quepid's ratings: query, docid, rating.

    Raises:
        DataError: Not such a file; the message names the line.
    """
    read = {".json": _opensearch, ".csv": _csv}.get(path.suffix, _qrels)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from read(path, file.read())
    except FileNotFoundError as exc:
        raise DataError(f"{path}: expected feedback, found no file") from exc
    except UnicodeDecodeError as exc:
        raise DataError(f"{path}: expected UTF-8 text, got other bytes") from exc
    except csv.Error as exc:
        raise DataError(f"{path}: expected comma-separated values ({exc})") from exc


def _csv(path: Path, text: str) -> Iterator[Event]:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    if (titles := {name.strip().lower(): name for name in rows.fieldnames or ()}).keys() >= _QUEPID:
        yield from _quepid(path, rows, titles)
        return
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        raise DataError(f"{path}:1: expected a header with {', '.join(_COLUMNS)}, lacks {', '.join(missing)}")
    for row in rows:
        try:
            position, when = int(row.get("position") or 1), row.get("time")
            value, seconds = float(row["value"]), seconds_of(when) if when else None
            yield Event(row["query_id"], row["doc_id"], row["signal"], value, position, seconds)
        except (TypeError, ValueError) as exc:
            raise DataError(f"{path}:{rows.line_num}: expected an event ({exc})") from exc


def _quepid(path: Path, rows: csv.DictReader[str], titles: Mapping[str, str]) -> Iterator[Event]:
    """Ratings as Quepid exports and imports them; a document without a rating was not judged."""
    query, document, rating = (titles[name] for name in ("query", "docid", "rating"))
    for row in rows:
        if row[rating] is not None and not row[rating].strip():
            continue
        try:
            yield _judgment(row[query], row[document], row[rating])
        except (TypeError, ValueError) as exc:
            raise DataError(f"{path}:{rows.line_num}: expected query, docid and rating ({exc})") from exc


def _qrels(path: Path, text: str) -> Iterator[Event]:
    lines = text.splitlines()
    beir = bool(lines) and lines[0].split() == _BEIR_HEADER
    for number, line in enumerate(lines, 1):
        if not line.strip() or (beir and number == 1):
            continue
        try:
            query, document, grade = line.split() if beir else _without_second(line.split())
            yield Event(query, document, "judgment", float(grade))
        except ValueError as exc:
            columns = "QUERY DOCUMENT GRADE" if beir else "QUERY 0 DOCUMENT GRADE"
            raise DataError(f"{path}:{number}: expected {columns}, got {line[:60]!r}") from exc


def _without_second(fields: list[str]) -> list[str]:
    return fields[:1] + fields[2:] if len(fields) == 4 else []


def _opensearch(path: Path, text: str) -> Iterator[Event]:
    """A judgment list as it is imported, or as OpenSearch answers who asks for it by its id."""
    try:
        said = json.loads(text)
        lists = [hit["_source"] for hit in said["hits"]["hits"]] if "hits" in said else [said.get("_source", said)]
        if len(lists) != 1:
            raise DataError(f"{path}: expected one judgment list, got {len(lists)}: ask OpenSearch for one by its id")
        entries = list(enumerate(lists[0]["judgmentRatings"], 1))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
        if isinstance(exc, DataError):
            raise
        raise DataError(f'{path}: expected {{"judgmentRatings": [...]}} of OpenSearch ({exc!r})') from exc
    for number, entry in entries:
        try:
            for rating in entry["ratings"]:
                yield _judgment(entry["query"], rating["docId"], rating["rating"])
        except (KeyError, OverflowError, TypeError, ValueError) as exc:
            raise DataError(
                f"{path}: judgmentRatings {number}: expected query and ratings, each with docId and rating ({exc!r})"
            ) from exc


def _judgment(query: Any, document: Any, grade: Any) -> Event:
    """The event of a rating; who wrote no query or no document did not judge a pair."""
    for name, said in (("query", query), ("document", document)):
        if not isinstance(said, str | int) or not str(said).strip():
            raise ValueError(f"{name}: expected a text, got {said!r:.40}")
    return Event(str(query), str(document), "judgment", float(grade))


def seconds_of(text: str) -> float:
    """Seconds since 1970 of a number or an ISO date, UTC where it names no zone."""
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
