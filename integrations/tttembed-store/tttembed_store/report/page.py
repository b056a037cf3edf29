"""The HTML page of a report: one file with its drawings inside, that loads nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from tttembed_rag.evaluate.page import drawing
from tttembed_rag.evaluate.page.rendering import held_out_drawings, rendered
from tttembed_store.report.gathering import LEARNED, StoreReport
from tttembed_store.sql.records import Day


def page_of(report: StoreReport) -> str:
    """The page, the same for the same report; all texts are escaped."""
    version = report.live.version
    return rendered(
        "tttembed_store.report/report.html.jinja",
        report=report,
        live=report.live,
        serving=version is not None and version.served > 0 and report.live.halted is None,
        drawings=held_out_drawings(report.held_out),
        shared=report.today if version is None else report.live.offsets,
        learned=LEARNED,
        days=_days(report.days),
    )


def _days(days: Sequence[Day]) -> dict[str, str]:
    """A drawing for each amount that is not zero on all days, by its title."""
    ends = [f"{day.day.day} {day.day:%b}" for day in (days[0], days[-1])]
    amounts: dict[str, list[float]] = {
        "Queries": [day.queries for day in days],
        "Rewards": [day.rewards for day in days],
        "Pairs paid for": [day.spend.pairs for day in days],
        "US dollars": [day.spend.usd for day in days],
    }
    return {
        title: drawing.bars(
            f"{title} per day from {ends[0]} to {ends[1]}: {_amount(sum(values))} in all, "
            f"{_amount(max(values))} on the day with most",
            values,
            _amount,
            *ends,
        )
        for title, values in amounts.items()
        if any(values)
    }


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
