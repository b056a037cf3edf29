"""Small drawings as inline SVG: levels, gains one by one, their course, amounts per day.

Colours come from the page's style by class, so that they fit a light and a dark page. The title of each drawing says
what it shows, for readers who do not see it. A filled mark is served, a hollow one is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from xml.etree import ElementTree as ET

# Units of a drawing; the page scales it to at most 1.4 times as many pixels.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360.0, 150.0, 46.0, 8.0, 12.0, 22.0
# Of a level: the height of its row, and of its bar.
_ROW, _BAR = 34.0, 12.0


def levels(measure: str, values: Mapping[str, float], beside: Collection[str]) -> str:
    """A horizontal bar for each value of a *measure* from 0 to 1, by its name.

    Bars named *beside* are only compared with, and drawn quietly.
    """
    title = f"{measure}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items())
    svg = _canvas(title, _WIDTH, _ROW * len(values), "chart levels")
    for place, (name, value) in enumerate(values.items()):
        y = _ROW * place
        _text(svg, name, 0, y + 13, "start")
        _text(svg, f"{value:.3f}", _WIDTH, y + 13, "end")
        for kind, end in (("rest", 1.0), ("bar quiet" if name in beside else "bar", value)):
            _add(svg, "rect", kind, x=0.0, y=y + 18, width=_WIDTH * end, height=_BAR)
    return ET.tostring(svg, encoding="unicode")


def bars(title: str, values: Sequence[float], label: Callable[[float], str], first: str, last: str) -> str:
    """A vertical bar for each of *values*, from the *first* to the *last*, above or below a line at zero."""
    svg, y, step = _chart(title, values, label)
    for place, value in enumerate(values):
        top, bottom = sorted((y(value), y(0.0)))
        if value:
            x = _LEFT + (place + 0.1) * step
            _add(svg, "rect", "bar" if value > 0 else "loss", x=x, y=top, width=0.8 * step, height=bottom - top)
    _ends(svg, first, last)
    return ET.tostring(svg, encoding="unicode")


def course(title: str, marks: Sequence[tuple[float, bool]], first: str, last: str) -> str:
    """Values, each with whether it is served, one after the other from the *first* moment to the *last*."""
    svg, y, step = _chart(title, [value for value, _ in marks], "{:+.3f}".format)
    for place, (value, served) in enumerate(marks):
        x = _LEFT + (place + 0.5) * step
        _add(svg, "circle", "filled" if served else "hollow", cx=x, cy=y(value), r=4.0)
    _ends(svg, first, last)
    return ET.tostring(svg, encoding="unicode")


def _chart(
    title: str, values: Sequence[float], label: Callable[[float], str]
) -> tuple[ET.Element, Callable[[float], float], float]:
    """A drawing with lines at the least and the greatest number and at zero; the height of a number; a value's room.

    A label that would lie on the label of zero is left out.
    """
    low, high = min(0.0, *values), max(0.0, *values)
    if low == high:
        low, high = -1.0, 1.0
    svg = _canvas(title, _WIDTH, _HEIGHT, "chart")

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    for value in dict.fromkeys((low, 0.0, high)):
        _add(svg, "line", "grid" if value else "zero", x1=_LEFT, y1=y(value), x2=_WIDTH - _RIGHT, y2=y(value))
        if not value or abs(y(value) - y(0.0)) > 12:
            _text(svg, label(value) if value else "0", _LEFT - 4, y(value) + 4, "end")
    return svg, y, (_WIDTH - _LEFT - _RIGHT) / len(values)


def _canvas(title: str, width: float, height: float, kind: str) -> ET.Element:
    svg = ET.Element("svg", {"viewBox": f"0 0 {width:g} {height:g}", "class": kind, "role": "img"})
    ET.SubElement(svg, "title").text = title
    return svg


def _ends(svg: ET.Element, first: str, last: str) -> None:
    _text(svg, first, _LEFT, _HEIGHT - 6, "start")
    if last != first:
        _text(svg, last, _WIDTH - _RIGHT, _HEIGHT - 6, "end")


def _add(svg: ET.Element, tag: str, kind: str, **numbers: float) -> None:
    ET.SubElement(svg, tag, {name: f"{value:.2f}" for name, value in numbers.items()} | {"class": kind})


def _text(svg: ET.Element, text: str, x: float, y: float, anchor: str) -> None:
    ET.SubElement(svg, "text", {"x": f"{x:.2f}", "y": f"{y:.2f}", "text-anchor": anchor}).text = text
