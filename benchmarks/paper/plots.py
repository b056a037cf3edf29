"""The plot of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.tables import Curve, StudyReport

# Paul Tol's bright scheme, which colour-blind readers can tell apart too.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000")


def plotted(report: StudyReport, target: Path) -> None:
    """Draw the curves of *report* into *target*: bands over a logarithmic axis, or points over categories."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    named = any(isinstance(x, str) for curve in report.curves for x in curve.x)
    for i, curve in enumerate(report.curves):
        (_points if named else _band)(axis, curve, i, len(report.curves))
    if named:
        names = list(dict.fromkeys(str(x) for curve in report.curves for x in curve.x))
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_xlabel(report.y_label)
        axis.axvline(0, color="grey", linewidth=0.5)
    else:
        axis.set_xscale("log")
        axis.set_xlabel(report.x_label)
        axis.set_ylabel(report.y_label)
        axis.axhline(0, color="grey", linewidth=0.5)
    axis.legend(frameon=False, fontsize="small")
    figure.savefig(target, dpi=150)


def _band(axis: Any, curve: Curve, number: int, _: int) -> None:
    look = {"color": _COLOURS[number % len(_COLOURS)]}
    axis.plot(curve.x, [y.mean for y in curve.y], marker=".", label=curve.label, **look)
    axis.fill_between(curve.x, [y.low for y in curve.y], [y.high for y in curve.y], alpha=0.15, linewidth=0, **look)


def _points(axis: Any, curve: Curve, number: int, of: int) -> None:
    """The points of a curve beside those of the other curves, one row per category."""
    names = list(curve.x)
    rows = np.arange(len(names)) + 0.6 * ((number + 0.5) / of - 0.5)
    means = np.array([y.mean for y in curve.y])
    spread = np.abs(np.array([[y.low for y in curve.y], [y.high for y in curve.y]]) - means)
    colour = _COLOURS[number % len(_COLOURS)]
    axis.errorbar(means, rows, xerr=spread, fmt="o", markersize=3, color=colour, label=curve.label)
