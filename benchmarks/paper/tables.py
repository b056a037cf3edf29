"""Tables of estimates as text, CSV, LaTeX and JSON, and the report of a study."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from benchmarks.paper.estimates import Estimate

Entry: TypeAlias = str | int | float | Estimate

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "@": "@", "<": r"$<$", ">": r"$>$"}


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table.

    Attributes:
        title: What the numbers are, with their unit.
        columns: Names of the columns; the first names the rows.
        rows: Entries, as many as columns in each row.
        notes: What a reader must know to read it right, a sentence each.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The table in aligned columns."""
        cells = [list(self.columns), *([_written(entry) for entry in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]
        rule = "-" * max(map(len, lines))
        return "\n".join([self.title, rule, lines[0], rule, *lines[1:], rule, *self.notes])

    def csv(self) -> str:
        """The table as CSV; an estimate is three columns: mean, low, high."""
        wide = [any(isinstance(row[i], Estimate) for row in self.rows) for i in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            [name for i, column in enumerate(self.columns) for name in (_names(column) if wide[i] else [column])]
        )
        for row in self.rows:
            writer.writerow([value for i, entry in enumerate(row) for value in _values(entry, wide=wide[i])])
        return out.getvalue()

    def latex(self) -> str:
        r"""The table in a ``tabular`` of booktabs, to \input."""
        head = " & ".join(_escaped(column) for column in self.columns) + r" \\"
        body = [" & ".join(_escaped(_written(entry)) for entry in row) + r" \\" for row in self.rows]
        align = "l" + "r" * (len(self.columns) - 1)
        lines = [
            *(f"% {line}" for line in (self.title, *self.notes)),
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """The table as JSON values; NaN becomes None."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [[_json(entry) for entry in row] for row in self.rows],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot, or one set of points.

    Attributes:
        label: Its name.
        x: Where its points are: numbers, or names of categories.
        y: Their estimates.
    """

    label: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class StudyReport:
    """The outcome of a study: its tables, and the curves of its plot."""

    tables: tuple[Table, ...]
    curves: tuple[Curve, ...]
    x_label: str
    y_label: str = "change of nDCG@10 x 100"

    def text(self) -> str:
        """All tables in aligned columns."""
        return "\n\n".join(table.text() for table in self.tables) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        lines = [{"label": one.label, "x": list(one.x), "y": [_json(y) for y in one.y]} for one in self.curves]
        return {"tables": [table.as_dict() for table in self.tables], "x": self.x_label, "lines": lines}


def _written(entry: Entry) -> str:
    if isinstance(entry, Estimate):
        if math.isnan(entry.mean):
            return "-"
        between = "" if math.isnan(entry.low) else f" [{entry.low:+.2f}, {entry.high:+.2f}]"
        return f"{entry.mean:+.2f}{between}"
    if isinstance(entry, float):
        return "-" if math.isnan(entry) else f"{entry:.4g}"
    return str(entry)


def _names(column: str) -> Sequence[str]:
    return column, f"{column} low", f"{column} high"


def _values(entry: Entry, *, wide: bool) -> Sequence[str | int | float]:
    if isinstance(entry, Estimate):
        return entry.mean, entry.low, entry.high
    return (entry, "", "") if wide else (entry,)


def _json(entry: Entry) -> Any:
    if isinstance(entry, Estimate):
        return {name: _json(value) for name, value in asdict(entry).items()}
    return None if isinstance(entry, float) and math.isnan(entry) else entry


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
