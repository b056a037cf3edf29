"""How an offset is learned: objective, solver, temperatures, ridge and dose, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias, get_args

import numpy as np

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.fitting.grid import Grid, Loss
from tttembed_rag.fitting.objectives import build
from tttembed_rag.fitting.solver import Problem, Solution, adam, exact
from tttembed_rag.offsets.values import Offset
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.gpu import Device
from tttembed_rag.vectors.rows import Float64

ObjectiveName: TypeAlias = Literal["kd", "reverse_kl", "softmax_grpo"]
SolverName: TypeAlias = Literal["exact", "adam"]

# How much the similarities of a query's candidates typically spread along an offset: a guess that gives the first
# step its length. Between .08 and .12 it saves one evaluation in ten.
_SPREAD = 0.1
# The least that a ridge or temperature may be: below it, rounding decides where the minimum is. And the others.
SMALLEST = 1e-6
_LEAST = {"kappa": 0.0, "tolerance": 1e-300}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an offset is learned; the defaults are the paper's, and `fit` says what each option is."""

    objective: ObjectiveName = "kd"
    solver: SolverName = "exact"
    ridge: float = 0.3
    teacher_temperature: float = 0.02
    student_temperature: float = 0.05
    kappa: float = 1.0
    tolerance: float = 1e-4
    device: Device = "auto"
    warm_start: Mapping[str, Offset] | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("objective", ObjectiveName), ("solver", SolverName), ("device", Device)):
            if (value := getattr(self, name)) not in get_args(allowed):
                raise InputError(f"{name}: expected one of {', '.join(get_args(allowed))}, got {value!r}")
        for name in ("ridge", "teacher_temperature", "student_temperature", "tolerance", "kappa"):
            value = getattr(self, name)
            try:
                number = float(value)
            except (TypeError, ValueError) as exc:
                raise InputError(f"{name}: expected a number, got {value!r}") from exc
            least = _LEAST.get(name, SMALLEST)
            if not (isfinite(number) and number >= least):
                raise InputError(f"{name}: expected a number >= {least:g}, got {value}")
            object.__setattr__(self, name, number)

        if self.warm_start is not None and not isinstance(self.warm_start, Mapping):
            got = type(self.warm_start).__name__
            raise InputError(f"warm_start: expected the Offsets of an earlier fit, got {got}")

    def start(self, key: str, width: int) -> Float64:
        """Where the search for the shared offset of *key* begins, (1, d)."""
        earlier = (self.warm_start or {}).get(key)
        if earlier is None:
            return np.zeros((1, width))
        if not isinstance(earlier, Offset):
            raise InputError(f"warm_start: expected offsets, got {type(earlier).__name__} at {key!r}")
        if earlier.vector.shape != (width,):
            raise VectorError(f"warm_start: expected vectors of width {width}, got {earlier.vector.shape[0]}")
        return earlier.vector.astype(np.float64)[None]

    def dose(self, n: float) -> float:
        """Alpha = n / (n + kappa) (Eq. 8) of *n* rewarded queries, or voices; 0 for n = 0, the unadapted state."""
        return n / (n + self.kappa) if n else 0.0

    def loss(self, grid: Grid, objective: ObjectiveName | None = None) -> Loss:
        """The data term of Eq. 6 on *grid*, under this recipe's objective or the one named."""
        base_logits = grid.padded(grid.base / self.student_temperature)
        of_grid = grid.rewards, grid.present, base_logits
        built = build(objective or self.objective, *of_grid, self.teacher_temperature)
        return Loss(grid, built, self.student_temperature)

    def solve(self, problem: Problem, start: FloatArray) -> Solution:
        """Minimise *problem* from *start* with this recipe's solver."""
        if self.solver == "adam":
            return adam(problem, start, tolerance=self.tolerance)
        curvature = 2.0 * self.ridge + (_SPREAD / self.student_temperature) ** 2
        return exact(problem, start, tolerance=self.tolerance, curvature=curvature)
