"""The demo's numbers as lines and sentences, and its HTML report: one file with its drawings inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tttembed_rag.evaluate.experiment import Row
from tttembed_rag.evaluate.explaining import Move, fallen, risen
from tttembed_rag.offsets.values import Offset
from tttembed_rag.report import drawing
from tttembed_rag.report.heldout import HeldOut
from tttembed_rag.report.rendering import held_out_drawings, rendered

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
    held_out: HeldOut,
    rows: Sequence[Row],
    *,
    interactive: bool,
) -> None:
    """Write the report of a demo to *path*; its texts are escaped."""
    marks = [
        drawing.Mark(line.gated - line.raw, (line.low, line.high), filled=2 * line.published > line.seeds)
        for line in lines
    ]
    ends = [f"{line.rewarded} rewarded queries" for line in (lines[0], lines[-1])]
    html = rendered(
        "demo/report.html.jinja",
        extra="eval",
        interactive=interactive,
        name=name,
        judge=judge,
        depth=rows[0].depth,
        documents=f"{rows[0].embedder} vectors, half of the queries held out, {lines[0].seeds} splits.",
        lines=lines,
        judged_levels=drawing.levels(
            "nDCG@10 of judged queries", {name: judged[name] for name in ("raw", "private offsets", "direct rerank")}
        ),
        task=task,
        held_out=held_out,
        drawings=held_out_drawings(held_out),
        course=drawing.course("Gain on queries held out, by rewarded queries", marks, *ends),
    )
    path.write_text(html, encoding="utf-8")
