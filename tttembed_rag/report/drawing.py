"""Small drawings as inline SVG: levels, gains one by one or with their intervals, their course, amounts per day.

Colours come from the page's style by class, so that they fit a light and a dark page. The title of each drawing says
what it shows, for readers who do not see it. A filled mark is served, or beyond chance; a hollow mark is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

# Units of a drawing; the page scales it to at most 1.4 times as many pixels.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360.0, 150.0, 46.0, 8.0, 12.0, 22.0
_WHISKER_WIDTH, _WHISKER_HEIGHT, _MARGIN = 140.0, 18.0, 6.0
# Of a level: the height of its row, and of its bar.
_ROW, _BAR = 34.0, 12.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that is drawn, with the ends of its whisker, if any; a filled mark is served, or beyond chance."""

    value: float
    interval: tuple[float, float] | None = None
    filled: bool = True


def extent(marks: Sequence[Mark]) -> tuple[float, float]:
    """The least and the greatest number of an axis that shows all *marks* and zero; never the same."""
    numbers = [0.0, *(number for mark in marks for number in (mark.value, *(mark.interval or ())))]
    low, high = min(numbers), max(numbers)
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def whisker(title: str, mark: Mark, low: float, high: float) -> str:
    """One value with its interval, on a horizontal axis from *low* to *high* with a line at zero."""

    def x(value: float) -> float:
        return _MARGIN + (_WHISKER_WIDTH - 2 * _MARGIN) * (value - low) / (high - low)

    svg = _canvas(title, _WHISKER_WIDTH, _WHISKER_HEIGHT, "whisker")
    middle = _WHISKER_HEIGHT / 2
    _line(svg, "zero", x(0), 0, x(0), _WHISKER_HEIGHT)
    if mark.interval is not None:
        left, right = map(x, mark.interval)
        _line(svg, "interval", left, middle, right, middle)
        for end in (left, right):
            _line(svg, "interval", end, middle - 4, end, middle + 4)
    _dot(svg, mark, x(mark.value), middle)
    return _written(svg)


def levels(measure: str, values: Mapping[str, float], beside: Collection[str]) -> str:
    """A horizontal bar for each value of a *measure* by its name, from zero to the greatest; none is below zero.

    Bars named *beside* are only compared with, and drawn quietly.
    """
    high = max(values.values()) or 1.0
    title = f"{measure}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items())
    svg = _canvas(title, _WIDTH, _ROW * len(values), "chart levels")
    for place, (name, value) in enumerate(values.items()):
        y = _ROW * place
        _text(svg, name, 0, y + 13, "start")
        _text(svg, f"{value:.3f}", _WIDTH, y + 13, "end")
        for kind, end in (("rest", high), ("bar quiet" if name in beside else "bar", value)):
            box = {"x": 0.0, "y": y + 18, "width": _WIDTH * end / high, "height": _BAR}
            ET.SubElement(svg, "rect", _numbers(box) | {"class": kind})
    return _written(svg)


def sorted_gains(title: str, gains: Sequence[float]) -> str:
    """A vertical bar for each of *gains*, in their order, above or below a line at zero."""
    low, high = extent([Mark(gain) for gain in gains])
    svg = _canvas(title, _WIDTH, _HEIGHT, "chart")
    _axis(svg, {value: f"{value:+.2f}" if value else "0" for value in (low, 0.0, high)}, low, high)
    step = (_WIDTH - _LEFT - _RIGHT) / len(gains)
    for place, gain in enumerate(gains):
        top, bottom = sorted((_y(gain, low, high), _y(0.0, low, high)))
        box = {"x": _LEFT + (place + 0.1) * step, "y": top, "width": 0.8 * step, "height": bottom - top}
        if gain:
            ET.SubElement(svg, "rect", _numbers(box) | {"class": "bar" if gain > 0 else "loss"})
    _ends(svg, "most harmed", "most improved")
    return _written(svg)


def course(title: str, marks: Sequence[Mark], first: str, last: str) -> str:
    """Values with vertical whiskers, one after the other from the *first* moment to the *last*."""
    low, high = extent(marks)
    svg = _canvas(title, _WIDTH, _HEIGHT, "chart")
    _axis(svg, {value: f"{value:+.3f}" if value else "0" for value in (low, 0.0, high)}, low, high)
    step = (_WIDTH - _LEFT - _RIGHT) / len(marks)
    for place, mark in enumerate(marks):
        x = _LEFT + (place + 0.5) * step
        if mark.interval is not None:
            _line(svg, "interval", x, _y(mark.interval[0], low, high), x, _y(mark.interval[1], low, high))
        _dot(svg, mark, x, _y(mark.value, low, high))
    _ends(svg, first, last)
    return _written(svg)


def bar_chart(title: str, values: Sequence[float], top: str, first: str, last: str) -> str:
    """Amounts, none below zero, from the *first* day to the *last*; *top* says how much the greatest is."""
    high = max(values)
    svg = _canvas(title, _WIDTH, _HEIGHT, "chart")
    _axis(svg, {0.0: "0", high: top} if high else {0.0: "0"}, 0.0, high or 1.0)
    step = (_WIDTH - _LEFT - _RIGHT) / len(values)
    for place, value in enumerate(values):
        y = _y(value, 0.0, high or 1.0)
        box = {"x": _LEFT + (place + 0.1) * step, "y": y, "width": 0.8 * step, "height": _y(0.0, 0.0, 1.0) - y}
        if value:
            ET.SubElement(svg, "rect", _numbers(box) | {"class": "bar"})
    _ends(svg, first, last)
    return _written(svg)


def _y(value: float, low: float, high: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)


def _canvas(title: str, width: float, height: float, kind: str) -> ET.Element:
    svg = ET.Element("svg", {"viewBox": f"0 0 {width:g} {height:g}", "class": kind, "role": "img"})
    ET.SubElement(svg, "title").text = title
    return svg


def _axis(svg: ET.Element, labels: dict[float, str], low: float, high: float) -> None:
    """Horizontal lines at labelled values; a label that would lie on the label of zero is left out."""
    for value, label in labels.items():
        y = _y(value, low, high)
        _line(svg, "zero" if value == 0 else "grid", _LEFT, y, _WIDTH - _RIGHT, y)
        if value == 0 or abs(y - _y(0.0, low, high)) > 12:
            _text(svg, label, _LEFT - 4, y + 4, "end")


def _ends(svg: ET.Element, first: str, last: str) -> None:
    _text(svg, first, _LEFT, _HEIGHT - 6, "start")
    if last != first:
        _text(svg, last, _WIDTH - _RIGHT, _HEIGHT - 6, "end")


def _line(svg: ET.Element, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
    ET.SubElement(svg, "line", _numbers({"x1": x1, "y1": y1, "x2": x2, "y2": y2}) | {"class": kind})


def _dot(svg: ET.Element, mark: Mark, x: float, y: float) -> None:
    kind = "filled" if mark.filled else "hollow"
    ET.SubElement(svg, "circle", _numbers({"cx": x, "cy": y, "r": 4.0}) | {"class": kind})


def _text(svg: ET.Element, text: str, x: float, y: float, anchor: str) -> None:
    ET.SubElement(svg, "text", _numbers({"x": x, "y": y}) | {"text-anchor": anchor}).text = text


def _numbers(values: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.2f}" for name, value in values.items()}


def _written(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode")
