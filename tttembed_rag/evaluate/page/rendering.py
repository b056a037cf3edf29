"""Templates to pages: one file with style and drawings inside, that loads nothing and runs no script."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from tttembed_rag.errors import require
from tttembed_rag.evaluate.page import drawing
from tttembed_rag.evaluate.page.heldout import SHOWN, HeldOut

# How a store names a text that has no id of its own.
_DIGEST = re.compile("[0-9a-f]{32}")


def rendered(template: str, **facts: Any) -> str:
    """The page of a *template*, PACKAGE/NAME such as ``tttembed_rag.evaluate.page/eval.html.jinja``.

    All texts in *facts* are escaped.
    """
    jinja2 = require("jinja2", "report")
    markup = require("markupsafe", "report").Markup
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text_of), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    style = markup(_text_of(f"{__package__}/style.css"))
    environment.filters |= {"drawn": markup, "when": when, "gain": _gain, "between": _between}
    environment.tests["said_by"] = _said_by
    environment.globals["listed"] = SHOWN
    page: str = environment.get_template(template).render(style=style, **facts)
    return page


def _text_of(place: str) -> str:
    """The text of a file, PACKAGE/NAME."""
    package, _, name = place.partition("/")
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def when(at: float) -> str:
    """A Unix second as a date and time in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _gain(value: float | None) -> str:
    """A gain, where it was measured."""
    return "not measured" if value is None else f"{value:+.3f}"


def _between(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:+.3f}, {interval[1]:+.3f}]"


def _said_by(name: str, text: str) -> bool:
    """Whether an id says nothing beside its *text*: it begins so, or is a digest of it."""
    return text.startswith(name.rstrip("…")) or _DIGEST.fullmatch(name) is not None


def held_out_drawings(held: HeldOut | None) -> dict[str, str]:
    """The drawings of held-out queries, and how many gain and lose in words."""
    if held is None:
        return {}
    raw, rerank = "raw: base vectors", "reranked: in the order of the rewards themselves"
    levels = {raw: held.raw, "served: with offsets": held.served, rerank: held.rerank}
    lose, gain = sum(gain < 0 for gain in held.gains), sum(gain > 0 for gain in held.gains)
    counts = f"{gain:,} queries gain, {lose:,} lose, {len(held.gains) - gain - lose:,} stay as they are."
    return {
        "levels": drawing.levels("nDCG@10", levels, (raw, rerank)),
        "gains": drawing.bars(
            f"Gain in nDCG@10 of every query, sorted: {counts}",
            held.gains,
            "{:+.2f}".format,
            "most harmed",
            "most improved",
        ),
        "counts": counts,
    }
