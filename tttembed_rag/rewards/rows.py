"""A file of the user's own: a query, a document and what was said of it in each row, as CSV or JSON lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tttembed_rag.errors import DataError, InputError
from tttembed_rag.rewards.events import SIGNALS, Event, Feedback, seconds_of
from tttembed_rag.scales import Scale
from tttembed_rag.system.jsontext import parsed_json

# The columns that a document's text may be in, and those of a reward on a scale.
_DOCUMENT = ("document", "text", "passage", "doc")
_REWARD = ("reward", "score", "rating")
_BEHAVIOUR = tuple(signal for signal in SIGNALS if signal != "judgment")
_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "up": 1.0, "down": -1.0, "+": 1.0, "-": -1.0}
COLUMNS = f"query, document (or text), and one of reward, {', '.join(_BEHAVIOUR)}; task, source where several"


class TextReward(NamedTuple):
    """A row for `tttembed_rag.Rewards.from_texts`.

    Attributes:
        query: Text of the query.

        document: Text of the document.

        reward: In [0, 1].

        task: Task key.

        source: Who gave it, such as a user; empty for one judge of all rows.
    """

    query: str
    document: str
    reward: float
    task: str
    source: str = ""


def read_rows(path: Path, *, scale: Scale, task: str) -> list[TextReward]:
    """The rows of a CSV with a header, or of a file of JSON lines.

    Thumbs, clicks and successes of a pair become one reward, as `Feedback` gathers them; rewards are as they stand.

    Args:
        path: The file.

        scale: What rewards mean; thumbs, clicks and successes have a scale of their own.

        task: Task key of rows that name none.

    Raises:
        DataError: Not such a file; the message names the line.
        RewardError: A reward is off the scale.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as exc:
        raise DataError(f"{path}: expected a file with {COLUMNS}, found none") from exc
    except UnicodeDecodeError as exc:
        raise DataError(f"{path}: expected UTF-8 text, got other bytes") from exc
    rows = list(_csv_rows(path, text) if path.suffix.lower() in (".csv", ".tsv") else _json_rows(path, text))
    if not rows:
        raise DataError(f"{path}: expected at least one row with {COLUMNS}, found none")
    first = rows[0][1]
    document = next((name for name in _DOCUMENT if name in first), None)
    said = [name for name in (*_REWARD, *_BEHAVIOUR) if name in first]
    if "query" not in first or document is None or len(said) != 1:
        raise DataError(f"{path}: expected {COLUMNS}, got {', '.join(map(str, first))}")
    judged: dict[tuple[str, str], list[Event]] = {}
    given: list[TextReward] = []
    for number, row in rows:
        try:
            query, shown, of_task = _texts(row, "query", document, task)
            source, value = str(row.get("source") or ""), _number(row[said[0]])
            if said[0] in _REWARD:
                reward = float(scale.to_unit(np.array([value]))[0])
                given.append(TextReward(query, shown, reward, of_task, source))
                continue
            place, when = int(row.get("position") or 1), row.get("time")
            seconds = seconds_of(str(when)) if when else None
            judged.setdefault((of_task, source), []).append(Event(query, shown, said[0], value, place, seconds))
        except (InputError, KeyError, TypeError, ValueError) as exc:
            raise DataError(f"{path}:{number}: expected {COLUMNS} ({exc})") from exc
    return given + [
        TextReward(query, shown, score, of_task, source)
        for (of_task, source), events in judged.items()
        for (query, shown), score in Feedback.of(events).scores.items()
    ]


def _texts(row: Mapping[str, Any], query: str, document: str, task: str) -> tuple[str, str, str]:
    found = row[query], row[document], row.get("task") or task
    for name, text in zip((query, document, "task"), found, strict=True):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{name}: expected a text, got {text!r:.40}")
    return found


def _number(value: Any) -> float:
    """A number, or a word for one: true, up."""
    return float(_WORDS.get(value.strip().lower(), value) if isinstance(value, str) else value)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        for row in reader:
            yield reader.line_num, {(name or "").strip().lower(): value for name, value in row.items()}
    except csv.Error as exc:
        raise DataError(f"{path}:{reader.line_num}: expected comma-separated values ({exc})") from exc


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parsed_json(line)
        except ValueError as exc:
            raise DataError(f"{path}:{number}: expected a JSON object, got {line[:40]!r}") from exc
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, got {line[:40]!r}")
        yield number, row
