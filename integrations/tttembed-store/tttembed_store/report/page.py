"""The HTML page of a report: one file with its drawings inside, that loads nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tttembed_rag.evaluate.page import drawing
from tttembed_rag.evaluate.page.drawing import Mark
from tttembed_rag.evaluate.page.rendering import held_out_drawings, rendered, when
from tttembed_store.report.gathering import LEARNED, OffsetFacts, StoreReport, VersionFacts
from tttembed_store.sql.records import Day

# Offsets, at most, with a drawing of their gain over time.
_COURSES = 6


class _Course(NamedTuple):
    """One offset through the versions: its drawing, and the drawn facts, newest first."""

    key: str
    svg: str
    versions: Sequence[tuple[VersionFacts, OffsetFacts]]


def page_of(report: StoreReport, *, interactive: bool = False) -> str:
    """The page, the same for the same report; all texts are escaped.

    An *interactive* page has a slider that shows the lists at other doses, and the script which that needs.
    """
    version = report.live.version
    shared = version.shared if version is not None else report.today
    return rendered(
        "tttembed_store.report/report.html.jinja",
        interactive=interactive,
        report=report,
        live=report.live,
        serving=version is not None and version.served > 0 and report.live.halted is None,
        drawings=held_out_drawings(report.held_out),
        shared=shared,
        learned=LEARNED,
        courses=_courses(report.versions),
        days=_days(report.days),
    )


def _courses(versions: Sequence[VersionFacts]) -> list[_Course]:
    """The gains of shared offsets from version to version, offsets of the newest versions first."""
    history: dict[str, list[tuple[VersionFacts, OffsetFacts]]] = {}
    for version in versions:
        for offset in version.shared:
            history.setdefault(offset.key, []).append((version, offset))
    courses = []
    for key, course in history.items():
        drawn = [
            (version, mark, offset.n) for version, offset in reversed(course) if (mark := _mark(offset)) is not None
        ]
        if not drawn:
            continue
        first, last = (f"{mark.value:+.3f} in version {version.number}" for version, mark, _ in (drawn[0], drawn[-1]))
        ends = [f"v{version.number}, {when(version.at)[:10]}, n = {n:,}" for version, _, n in (drawn[0], drawn[-1])]
        title = f"Held-out gain of {key} by version: {first}, {last}"
        courses.append(_Course(key, drawing.course(title, [mark for _, mark, _ in drawn], *ends), course))
    return courses[:_COURSES]


def _mark(offset: OffsetFacts) -> Mark | None:
    return None if offset.gain is None else Mark(offset.gain, offset.interval, offset.served)


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
