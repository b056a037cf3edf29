"""Labels of an audit, as a spreadsheet saves them."""

from __future__ import annotations

from pathlib import Path

from tttembed_rag.errors import DataError
from tttembed_rag.rewards.rows import read_text, table

# The columns of an audit file; further ones are ignored.
COLUMNS = ("query_id", "doc_id", "label")
# A spreadsheet takes a cell that begins so for a formula, which may send what lies beside it elsewhere.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_cell(text: str) -> str:
    """*text* with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def _of_cell(cell: str) -> str:
    """The text that `as_cell` made a cell of; also where a spreadsheet took the apostrophe for its own sign of text."""
    return cell.removeprefix("'") if cell.lstrip("'").startswith(_FORMULA) else cell


def read_labels(path: Path) -> dict[tuple[str, str], float]:
    """The labels of a CSV with the columns query_id, doc_id and label; rows without a label are left out."""
    with read_text(path, "a CSV file of labels, found none") as text:
        titles, rows = table(path, text)
    if missing := [name for name in COLUMNS if name not in titles]:
        raise DataError(f"{path}: expected columns {', '.join(COLUMNS)}, found no {', '.join(missing)}")
    return {
        (_of_cell(row["query_id"]), _of_cell(row["doc_id"])): _label(path, number, row["label"])
        for number, row in rows
        if row["label"]
    }


def _label(path: Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError as exc:
        raise DataError(f"{path}:{line}: expected a label from 0 to 1, got {text!r}") from exc
