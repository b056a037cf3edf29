"""The demo's numbers as lines and sentences, and its HTML report: one file with its plot inside."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tttembed_rag.errors import require
from tttembed_rag.evaluate.experiment import Row
from tttembed_rag.evaluate.explaining import Move, fallen, risen
from tttembed_rag.offsets.values import Offset

# Ranks that the demo shows; documents below are beyond.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """The line of one budget: nDCG@10 of held-out queries, means over the seeds."""

    rewarded: int
    raw: float
    plain: float
    gated: float
    worst: float
    low: float
    high: float
    published: int
    seeds: int

    def __str__(self) -> str:
        return (
            f"{self.rewarded:>8}  {self.raw:>6.3f}  {self.plain - self.raw:>+12.3f}  {self.gated - self.raw:>+12.3f}"
            f"  [{self.low:+.3f}, {self.high:+.3f}]  {self.worst:>+10.3f}  {self.published:>5}/{self.seeds}"
        )


@dataclass(frozen=True, slots=True)
class ShownQuery:
    """The effect of the offset on one held-out query.

    Attributes:
        title: The reason for showing it.

        query: Its text.

        before: nDCG@10 of the raw search.

        after: nDCG@10 with the offset.

        moves: Documents among the first ten before or after; their rewards are the grades of the labels.
    """

    title: str
    query: str
    before: float
    after: float
    moves: tuple[Move, ...]

    @property
    def rose(self) -> list[Move]:
        """Documents that rank higher now."""
        return risen(self.moves)

    @property
    def fell(self) -> list[Move]:
        """Documents that rank lower now; those that left the first ten come last."""
        return sorted(fallen(self.moves), key=lambda move: (min(move.rank, SHOWN + 1), move.rank_before))


def is_answer(move: Move) -> bool:
    """Whether the document is relevant by its label."""
    return move.reward is not None and move.reward > 0


def sentence(move: Move) -> str:
    """A document with its ranks before and after."""
    ranks = (f"#{rank}" if rank <= SHOWN else f"beyond {SHOWN}" for rank in (move.rank_before, move.rank))
    return f"{move.document} {' -> '.join(ranks)}{' (an answer)' if is_answer(move) else ''}"


def write_report(
    path: Path,
    name: str,
    judge: str,
    lines: Sequence[BudgetLine],
    judged: Mapping[str, float],
    task: Offset,
    examples: Sequence[ShownQuery],
    rows: Sequence[Row],
) -> None:
    """Write the report of a demo to *path*; its texts are escaped."""
    jinja2 = require("jinja2", "eval")
    markup = require("markupsafe", "eval").Markup
    template = resources.files("tttembed_rag.demo").joinpath("report.html.jinja").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True).from_string(template)
    html = page.render(
        name=name,
        judge=judge,
        depth=rows[0].depth,
        documents=f"{rows[0].embedder} vectors, half of the queries held out, {lines[0].seeds} splits.",
        lines=lines,
        judged=judged,
        task=task,
        examples=examples,
        plot=markup(_plot(lines, rows)),
        sentence=sentence,
        is_answer=is_answer,
    )
    path.write_text(html, encoding="utf-8")


def _plot(lines: Sequence[BudgetLine], rows: Sequence[Row]) -> str:
    """Gain on held-out queries against rewarded queries: a line for the mean, a point per split."""
    require("matplotlib", "eval")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    budgets = [line.rewarded for line in lines]
    for label, gated, colour in (("plain rule", False, "#a06000"), ("with the gate", True, "#2a7d4f")):
        means = [(line.gated if gated else line.plain) - line.raw for line in lines]
        axes.plot(budgets, means, color=colour, label=label)
        cells = [r for r in rows if r.scope == "task" and r.gated == gated and r.population == "heldout"]
        axes.plot([r.rewarded for r in cells], [r.delta for r in cells], "o", color=colour, alpha=0.4, markersize=4)
    axes.axhline(0, color="#888", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.set_xlabel("rewarded queries")
    axes.set_ylabel("nDCG@10 gain on held-out queries")
    axes.legend(frameon=False)
    image = io.StringIO()
    figure.savefig(image, format="svg")
    return image.getvalue()[image.getvalue().index("<svg") :]
