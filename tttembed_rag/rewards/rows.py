"""Files of served queries: logs, and votes on texts; and files of events or judgments with ids, for `Feedback`."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tttembed_rag.errors import DataError, InputError, RewardError
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.events import SIGNALS, Event, check_thumbs, scores_of, value_of
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.jsontext import parsed_json

_log = logging.getLogger(__name__)
# The columns of votes, and what they are called elsewhere; a space may be an underscore.
_CALLED = {
    "query": ("question", "prompt", "search"),
    "document": ("text", "passage", "doc", "article", "context", "chunk"),
    "task": (),
    "source": ("user", "user id"),
    "position": ("rank",),
    "reward": ("score", "rating", "grade", "label", "relevance", "stars"),
    "thumb": ("vote", "liked", "feedback", "helpful"),
    "click": ("clicked",),
    "success": ("succeeded",),
}
# Columns of thumbs in which 0 is one down, unless another is -1.
_LIKED = ("liked", "feedback", "helpful")
_VOTES = ("reward", *(signal for signal in SIGNALS if signal != "judgment"))
COLUMNS = f"query, document (or text), and one of {', '.join(_VOTES)}; task, source where several"
# What a file is that begins with these bytes, and is no text.
_FOREIGN = {
    b"\x1f\x8b": "a file compressed by gzip: unpack it",
    b"PK": "a spreadsheet or another zip file: save it as CSV",
    b"PAR1": "Parquet: write it as CSV or JSON lines",
}
_OTHER_BYTES = "other bytes: save it as CSV or JSON lines in UTF-8"
# A line before the titles: an empty one, or that by which a spreadsheet names the delimiter.
_BEFORE = re.compile(r'[\s",;|]*("?sep=.*)?', re.IGNORECASE | re.DOTALL)
# Lines of a row that may be several, after a quote that is left open, where no other has half as many.
_LONG = 8
# The columns of events by id, those of Quepid's ratings and what it calls them in exports, those of BEIR's judgments.
_EVENT = ("query_id", "doc_id", "signal", "value")
_QUEPID = ("query", "docid", "rating")
_EXPORTED = {"query text": "query", "doc id": "docid"}
_BEIR_HEADER = ["query-id", "corpus-id", "score"]

# A row of a file with the number of its line.
_Row = tuple[int, dict[str, Any]]


def read_log(path: Path, *, task: str = DEFAULT_TASK) -> list[Served]:
    """Served queries from a log of JSON lines.

    A line is ``{"query_id": ..., "query": ..., "task": ..., "candidates": [{"id": ..., "text": ...}, ...]}``,
    candidates in base order; *task* is the one of lines that name none.

    Raises:
        DataError: Not such a file; the message names the line.
    """
    log = []
    with read_text(path, "a BEIR folder or a log of served queries, found none") as text:
        for number, line in json_lines(path, text.split("\n")):
            try:
                documents = [(candidate["id"], candidate["text"]) for candidate in line["candidates"]]
                names = line["query_id"], line["query"], line.get("task", task)
            except (KeyError, TypeError) as exc:
                raise DataError(f"{path}:{number}: expected query_id, query and candidates with id and text") from exc
            if (got := next((of for pair in (names, *documents) for of in pair if not isinstance(of, str)), "")) != "":
                raise DataError(f"{path}:{number}: expected texts, got {type(got).__name__}, such as {got!r:.40}")
            query_id, query, of_task = names
            log.append(Served.of_texts(query_id, query, documents, of_task))
    return log


def read_votes(path: Path, *, scale: Scale | None, task: str) -> list[Served]:
    """The votes in a table with a header, or in objects of JSON: each query once for each task and source.

    Thumbs, clicks and successes of a pair become one reward, as `Feedback` gathers them, of the thumbs of a source the
    last; rewards, which are on *scale*, become their mean. Without a scale they are on that of `Scale.of_grades`, and
    the log says so. Rows that name no task are of *task*. Ids are left to be made of the texts.

    Raises:
        DataError: Not such a file; the message names the line.
        RewardError: A reward is off the scale.
    """
    with read_text(path, f"a file with {COLUMNS}, found none") as text:
        titles, rows = _objects(path, text)
    if not titles:
        raise DataError(f"{path}: expected at least one row with {COLUMNS}, found none")
    columns, signal = _columns_of(path, titles, rows)
    if not rows:
        raise DataError(f"{path}: expected at least one row below the titles, found none")
    if signal != "reward" and scale not in (None, Scale()):
        raise DataError(
            f"{path}: expected rewards for scale {scale}, got a column {columns[signal]}, which has its own"
        )
    votes = [cells.get(columns[signal]) for _, cells in rows]
    if signal == "reward" and scale is None:
        scale = _scale_of(path, votes)
    liked = _spelled(columns[signal]) in _LIKED and -1.0 not in _values(signal, votes)
    events: dict[tuple[str, str], list[Event]] = {}
    for number, cells in rows:
        with _expected(path, number, COLUMNS):
            row: dict[str, Any] = {name: cells.get(title) for name, title in columns.items()}
            row["task"] = _cell(row, "task", task)
            for name in ("query", "document", "task"):
                if not isinstance(row[name], str) or not row[name].strip():
                    raise InputError(f"{name}: expected a text, got {row[name]!r:.40}")
            value, kind = value_of(signal, row[signal], column=columns[signal]), signal
            if liked and value == 0.0:
                value = -1.0
            if signal == "reward" and scale is not None:
                value, kind = float(scale.to_unit(np.array([value]))[0]), "judgment"
            event = _event(row, row["query"], row["document"], kind, value)
            events.setdefault((row["task"], event.source), []).append(event)
    candidates: dict[tuple[str, str, str], list[Candidate]] = {}
    try:
        check_thumbs([event for of_source in events.values() for event in of_source])
        for (of_task, source), of_source in events.items():
            for (query, document), reward in scores_of(of_source).items():
                of_query = candidates.setdefault((query, of_task, source), [])
                of_query.append(Candidate("", text=document, reward=reward))
    except InputError as exc:
        raise DataError(f"{path}: {exc}") from exc
    return [
        Served("", None, of_query, query, of_task, source=source)
        for (query, of_task, source), of_query in candidates.items()
    ]


def _objects(path: Path, text: str) -> tuple[list[str], list[_Row]]:
    """The titles of columns in small letters and the rows by them, of JSON lines, a JSON list, or a table."""
    start = text.lstrip()[:1]
    if start not in ("{", "["):
        return table(path, text)
    rows = list[_Row]()
    for number, row in json_lines(path, text.split("\n") if start == "{" else _listed(path, text)):
        rows.append((number, {title.strip().lower(): value for title, value in row.items()}))
        if len(rows[-1][1]) < len(row):
            got = f"got {', '.join(row):.200}"
            raise DataError(f"{path}:{number}: expected keys that differ by more than case and spaces, {got}")
    return list(dict.fromkeys(title for _, row in rows for title in row)), rows


def _listed(path: Path, text: str) -> Iterator[str]:
    """The elements of a JSON list, each as a line."""
    try:
        yield from map(json.dumps, parsed_json(text))
    except ValueError as exc:
        raise DataError(f"{path}: expected JSON lines or a JSON list, got text that is no JSON") from exc


def _columns_of(path: Path, titles: Sequence[str], rows: Sequence[_Row]) -> tuple[dict[str, str], str]:
    """The titles of the columns by what they hold, and the one of `_VOTES` among them."""
    spelled = {_spelled(title): title for title in titles[::-1]}
    columns, signals = dict[str, str](), list[tuple[str, str]]()
    for name, others in _CALLED.items():
        if known := [spelled[other] for other in (name, *others) if other in spelled]:
            columns[name], *unread = known
            signals += [(name, title) for title in (known if name == "reward" else known[:1]) if name in _VOTES]
            if unread and name != "reward":
                _log.warning("%s: %s is read as %s, not %s", path, known[0], name, ", ".join(unread))
    if len(signals) > 1 and (comment := columns.get("thumb", "")) and _spelled(comment) != "thumb":
        cells = [cell for _, row in rows if (cell := _cell(row, comment, "")) != ""]
        thumbs = _values("thumb", cells)
        if not thumbs or len(thumbs) < len(cells) or not {-1.0, 0.0, 1.0}.issuperset(thumbs):
            _log.warning("%s: %s is not read, as not all that stands in it are votes", path, comment)
            signals.remove(("thumb", comment))
    if len(signals) > 1:
        got = ", ".join(title for _, title in signals)
        raise DataError(f"{path}:1: expected one column of {', '.join(_VOTES)}, got {got}")
    if not (signals and {"query", "document"} <= columns.keys()):
        raise DataError(f"{path}:1: expected {COLUMNS}, got {', '.join(titles)}")
    return columns, signals[0][0]


def _spelled(title: str) -> str:
    """A *title*, in small letters, as `_CALLED` has it."""
    return title.replace("_", " ")


def _values(signal: str, cells: Iterable[Any]) -> list[float]:
    """The values of those *cells* that have one."""
    values = []
    for cell in cells:
        with suppress(InputError):
            values.append(value_of(signal, cell))
    return values


def _scale_of(path: Path, cells: Sequence[Any]) -> Scale:
    """The scale of the numbers among *cells*, which nobody declared."""
    grades = _values("reward", cells)
    try:
        scale = Scale.of_grades(np.array(grades)) if grades else Scale()
    except RewardError as exc:
        raise DataError(f"{path}: {exc}") from exc
    if scale != Scale():
        _log.warning("%s: rewards up to %g are on scale %s, unless --scale says another", path, max(grades), scale)
    return scale


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, read by its ending: ``.json``, ``.csv``, and qrels of TREC or BEIR under any other.

    A CSV file has the columns of events, or those of Quepid's ratings: query, docid, rating. JSON is a judgment list
    of OpenSearch.

    Raises:
        DataError: Not such a file; the message names the line.
    """
    readers: dict[str, Callable[[Path, str], Iterator[Event]]] = {".json": _opensearch, ".csv": _events}
    with read_text(path, "feedback, found no file") as text:
        yield from readers.get(path.suffix.lower(), _qrels)(path, text)


@contextmanager
def read_text(path: Path, expected: str) -> Iterator[str]:
    """The text of a file; what is wrong with it, or found to be while it is parsed, is a DataError."""
    try:
        content = path.read_bytes()
        yield content.decode("utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")
    except (FileNotFoundError, IsADirectoryError) as exc:
        raise DataError(f"{path}: expected {expected}") from exc
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        got = next((kind for start, kind in _FOREIGN.items() if content.startswith(start)), _OTHER_BYTES)
        raise DataError(f"{path}:{line}: expected UTF-8 text, got {got}") from exc


@contextmanager
def _expected(path: Path, line: int, what: str) -> Iterator[None]:
    """Around the reading of a row: whatever is wrong with it is a DataError that names its line."""
    try:
        yield
    except InputError as exc:
        raise DataError(f"{path}:{line}: {exc}") from exc
    except (KeyError, OverflowError, TypeError, ValueError) as exc:
        raise DataError(f"{path}:{line}: expected {what} ({exc})") from exc


def table(path: Path, text: str) -> tuple[list[str], list[_Row]]:
    """The titles of a table in small letters, and its rows by them, as spreadsheets and databases write it.

    Its delimiter is the one that divides its titles. Between tabs a quote is a character like others, unless the titles
    stand in quotes. Columns without a title and empty rows are left out.
    """
    lines = list(io.StringIO(text, newline=""))
    first = next((number for number, line in enumerate(lines) if not _BEFORE.fullmatch(line)), len(lines))
    head = "".join(lines[first : first + 1])
    delimiter = max(",\t;|", key=head.count)
    plain = delimiter == "\t" and not head.startswith('"')
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    quoting: Literal[0, 3] = csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL
    reader = csv.reader(lines[first:], delimiter=delimiter, quoting=quoting, strict=True)
    every = list[tuple[int, list[str]]]()
    try:
        every.extend((first + reader.line_num, cells) for cells in reader)
    except csv.Error as exc:
        begins = every[-1][0] + 1 if every else first + 1
        raise DataError(f"{path}:{begins}: expected comma-separated values ({exc}): is a quote left open?") from exc
    titles = [name.strip().lower() for name in every[0][1]] if every else []
    if twice := {name for name in titles if name and titles.count(name) > 1}:
        raise DataError(f"{path}:{first + 1}: expected different columns, got {', '.join(sorted(twice))} twice")
    rows = list[_Row]()
    for number, cells in every[1:]:
        if any(cell.strip() for cell in cells[len(titles) :]):
            got = f"{len(titles)} fields, got {len(cells)}: a text with {delimiter!r} in it stands in double quotes"
            raise DataError(f"{path}:{number}: expected {got}")
        if any(cell.strip() for cell in cells):
            row = zip_longest(titles, cells[: len(titles)])
            rows.append((number, {title: cell for title, cell in row if title}))
    _warn_of_open_quote(path, [number for number, _ in every])
    return titles, rows


def _warn_of_open_quote(path: Path, ends: Sequence[int]) -> None:
    """Say where a row of many lines ends, and no other has half as many: a quote may be left open in it."""
    heights = sorted(((end - before, end) for before, end in pairwise(ends)), reverse=True)
    if heights and heights[0][0] >= max([_LONG, *(2 * height for height, _ in heights[1:2])]):
        _log.warning("%s:%d: a row of %d lines ends here: is a quote left open?", path, *heights[0][::-1])


def json_lines(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    """The objects of a file of JSON *lines*; a text may hold other marks that end one elsewhere, such as U+2028."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parsed_json(line)
        except ValueError:
            row, got = None, "text that is no JSON"  # what stands there may be a user's
        else:
            got = type(row).__name__
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected one JSON object a line, got {got}")
        yield number, row


def _cell(row: Mapping[str, Any], name: str, default: Any) -> Any:
    """What stands in a row under *name*, or the *default* where nothing does."""
    value = row.get(name)
    return default if value is None or value == "" else value


def _event(row: Mapping[str, Any], query: str, document: str, signal: str, value: float) -> Event:
    """An event with the place of its row and who did it, where that is known."""
    place = value_of("position", _cell(row, "position", 1)) if signal == "click" else 1
    if place != int(place):
        raise InputError(f"position: expected a whole number, got {place:g}")
    return Event(query, document, signal, value, int(place), str(_cell(row, "source", "")))


def _events(path: Path, text: str) -> Iterator[Event]:
    """Events by id, a row each; or ratings as Quepid exports and imports them, where an empty one is no judgment."""
    titles, rows = table(path, text)
    if {_EXPORTED.get(title, title) for title in titles} >= set(_QUEPID):
        for number, exported in rows:
            row = {_EXPORTED.get(title, title): cell for title, cell in exported.items()}
            if row["rating"] is None or row["rating"].strip():
                with _expected(path, number, "query, docid and rating"):
                    yield _judgment(*(row[name] for name in _QUEPID))
        return
    if missing := [name for name in _EVENT if name not in titles]:
        expected = f"{', '.join(_EVENT)} or {', '.join(_QUEPID)}"
        raise DataError(f"{path}:1: expected a header with {expected}, lacks {', '.join(missing)}")
    for number, row in rows:
        with _expected(path, number, "an event"):
            value = value_of(row["signal"], row["value"], column="value")
            yield _event(row, row["query_id"], row["doc_id"], row["signal"], value)


def _qrels(path: Path, text: str) -> Iterator[Event]:
    lines = text.splitlines()
    beir = bool(lines) and lines[0].split() == _BEIR_HEADER
    for number, line in enumerate(lines, 1):
        if not line.strip() or (beir and number == 1):
            continue
        try:
            query, *ignored, document, grade = line.split()
            if len(ignored) != (0 if beir else 1):
                raise ValueError(ignored)
            yield Event(query, document, "judgment", float(grade))
        except ValueError as exc:
            columns = "QUERY DOCUMENT GRADE" if beir else "QUERY 0 DOCUMENT GRADE"
            raise DataError(f"{path}:{number}: expected {columns}, got {line[:60]!r}") from exc


def _opensearch(path: Path, text: str) -> Iterator[Event]:
    """A judgment list as it is imported, or as OpenSearch answers who asks for it by its id."""
    try:
        answer = parsed_json(text)
        hits = answer["hits"]["hits"] if "hits" in answer else [{"_source": answer.get("_source", answer)}]
        lists = [hit["_source"] for hit in hits]
        entries = [list_["judgmentRatings"] for list_ in lists]
        numbered = list(enumerate(entries[0] if entries else [], 1))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise DataError(f'{path}: expected {{"judgmentRatings": [...]}} of OpenSearch ({exc!r})') from exc
    if len(lists) != 1:
        raise DataError(f"{path}: expected one judgment list, got {len(lists)}: ask OpenSearch for one by its id")
    for number, entry in numbered:
        try:
            for rating in entry["ratings"]:
                yield _judgment(entry["query"], rating["docId"], rating["rating"])
        except (KeyError, OverflowError, TypeError, ValueError) as exc:
            raise DataError(
                f"{path}: judgmentRatings {number}: expected query and ratings, each with docId and rating ({exc!r})"
            ) from exc


def _judgment(query: Any, document: Any, grade: Any) -> Event:
    """The event of a rating; who wrote no query or no document did not judge a pair."""
    for name, value in (("query", query), ("document", document)):
        if not isinstance(value, str | int) or not str(value).strip():
            raise ValueError(f"{name}: expected a text, got {value!r:.40}")
    return Event(str(query), str(document), "judgment", float(grade))
