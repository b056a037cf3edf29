"""A judge's scale: what its scores mean, and how they become rewards in [0, 1]."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, RewardError

ScaleKind = Literal["probability", "logit", "rubric", "unbounded"]
_PLAIN: dict[str, ScaleKind] = {"probability": "probability", "logit": "logit", "unbounded": "unbounded"}
# The most by which a score may overshoot a declared bound, in units of the scale: rounding of float32 explains it.
SCALE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """What the numbers of a judge mean, and how they become rewards in [0, 1] without guessing.

    Attributes:
        kind: ``probability`` in [0, 1], ``logit`` (any real, mapped by the logistic function),
            ``rubric`` (grades from *low* to *high*, mapped linearly), or ``unbounded`` (any real
            without a meaning of its own: refused until it is calibrated).
        low: The worst grade of a rubric.
        high: The best grade of a rubric.
    """

    kind: ScaleKind = "probability"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in (*_PLAIN, "rubric"):
            raise InputError(f"scale: expected probability, logit, unbounded or rubric, got {self.kind!r}")
        if not self.low < self.high:
            raise InputError(f"scale: expected low < high, got {self.low:g} and {self.high:g}")
        if not math.isfinite(self.high - self.low):
            raise InputError(f"scale: expected a finite range, got {self.low:g} and {self.high:g}")

    @classmethod
    def parse(cls, text: Scale | str) -> Scale:
        """A scale written as ``probability``, ``logit``, ``unbounded`` or ``rubric:LOW,HIGH``; a scale is itself."""
        if isinstance(text, Scale):
            return text
        if text in _PLAIN:
            return cls(_PLAIN[text])
        number = r"(-?\d+(?:\.\d+)?)"
        if match := re.fullmatch(rf"rubric[:(]{number},\s*{number}\)?", str(text)):
            return cls("rubric", float(match[1]), float(match[2]))
        raise InputError(f"scale: expected probability, logit, unbounded or rubric:LOW,HIGH, got {text!r}")

    @classmethod
    def of_grades(cls, scores: NDArray[np.float64]) -> Scale:
        """The scale of *scores* for which none was declared: that of grades, where they are whole and exceed 1.

        They end at the highest score, which is 3, 5, 10 or 100, and begin at 0 where a score is 0 or they are percent,
        else at 1.

        Raises:
            RewardError: The highest is another one, which says nothing of the scale.
        """
        low, high = float(scores.min()), float(scores.max())
        if high <= 1.0 or low < 0.0 or (scores % 1).any():
            return cls()
        if high not in (3, 5, 10, 100):
            raise RewardError(
                f"rewards: expected a best grade of 3, 5, 10 or 100, got whole numbers from {low:g} to {high:g}: "
                "name their --scale by the worst and the best grade there may be: of 0 to 2 rubric:0,2, "
                "of one to five stars rubric:1,5, of percent rubric:0,100"
            )
        return cls("rubric", 0.0 if high == 100 else min(1.0, low), high)

    def __str__(self) -> str:
        return f"rubric:{self.low:g},{self.high:g}" if self.kind == "rubric" else self.kind

    def check_calibrated(self) -> None:
        """Refuse an unbounded scale, on which scores are no rewards before they are calibrated.

        Raises:
            RewardError: The scale is unbounded.
        """
        if self.kind == "unbounded":
            raise RewardError("rewards: expected a scale with a meaning, got unbounded scores (calibrate them first)")

    def holds(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which *scores* lie on this scale: finite numbers, between the bounds where it has some; shape kept."""
        finite = np.isfinite(scores)
        if self.kind in ("logit", "unbounded"):
            return finite
        return finite & (scores >= self.low - SCALE_TOLERANCE) & (scores <= self.high + SCALE_TOLERANCE)

    def doubt(self, rewards: NDArray[np.float64]) -> str:
        """Words where *rewards* of a rubric, in [0, 1], look like probabilities on it; else an empty text.

        Then no score lies above 1, and some score lies between 0 and 1: these are not the lowest grades of a rubric.
        """
        scores = self.low + rewards * (self.high - self.low)
        above = scores[scores > SCALE_TOLERANCE]
        if self.kind != "rubric" or self.low > 0.0 or self.high <= 1.0 or not above.size:
            return ""
        if above.min() >= 1.0 - SCALE_TOLERANCE or above.max() > 1.0 + SCALE_TOLERANCE:
            return ""
        return f"on scale {self} no score lies above {above.max():g}: scores in [0, 1] are on scale probability"

    def to_unit(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores as rewards in [0, 1], shape kept.

        Raises:
            RewardError: A score is not on this scale, or the scale is unbounded.
        """
        if not np.isfinite(scores).all():
            got = "NaN" if np.isnan(scores).any() else "infinity"
            raise RewardError(f"rewards: expected finite numbers, got {got} (leave unjudged candidates out)")
        self.check_calibrated()
        if self.kind == "logit":
            return 1.0 / (1.0 + np.exp(-np.clip(scores, -700.0, 700.0)))
        if not self.holds(scores).all():
            low, high = scores.min(), scores.max()
            got = f"values from {low:g} to {high:g}" if low < high else f"{low:g}"
            raise RewardError(
                f"rewards: expected scale {self} in [{self.low:g}, {self.high:g}], got {got} "
                "(declare the judge's scale: of one to five stars rubric:1,5, of thumbs -1 and 1 rubric:-1,1, "
                "of percent rubric:0,100, of any real numbers logit)"
            )
        return np.clip((scores - self.low) / (self.high - self.low), 0.0, 1.0)
