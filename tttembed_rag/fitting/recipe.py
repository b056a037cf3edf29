"""How an offset is learned: objective, solver, temperatures, ridge and dose, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias, get_args

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.objectives import KD, Objective

Solver: TypeAlias = Literal["exact", "adam"]

# The least that a ridge or temperature may be: below it, rounding decides where the minimum is. And the others.
SMALLEST = 1e-6
_LEAST = {"kappa": 0.0, "tolerance": 1e-300}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an offset is learned; the defaults are the paper's.

    Attributes:
        objective: What the similarities of a query's candidates should become: ``KD()``, ``ReverseKL()``,
            ``SoftmaxGRPO()``, or any other `tttembed_rag.fitting.Objective`.
        solver: ``exact`` (certified optimum) or ``adam`` (the paper's 300 steps).
        ridge: lambda > 0, weight of ||v||^2; with the gate, constant offsets are learned at `RIDGE_STEP` times it.
        teacher_temperature: tau_T > 0, in units of reward; with the gate, `TEACHER_STEP` times it, and at most a
            `SHARPNESS`-th of how far the best and the worst candidate of a query lie apart on average.
        student_temperature: tau_S > 0, in units of cosine similarity; with the gate, `STUDENT_STEP` times it.
        spread: How far cosines spread, > 0; with the gate, `Rewards.spread`. The student's temperature is that many
            times as large and the ridge as small, and a query's own offset is sought where cosines are
            1 - (1 - cosine) / spread.
        kappa: Dose n / (n + kappa), in rewarded queries, >= 0; of the local offset, the noise of a rewarded query.
        tolerance: Largest gradient norm that counts as converged, in nats per unit of offset.
    """

    objective: Objective = KD()
    solver: Solver = "exact"
    ridge: float = 0.3
    teacher_temperature: float = 0.02
    student_temperature: float = 0.05
    spread: float = 1.0
    kappa: float = 1.0
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        if isinstance(self.objective, type) or not isinstance(self.objective, Objective):
            raise InputError(f"objective: expected an objective, such as KD(), got {self.objective!r:.80}")
        if self.solver not in get_args(Solver):
            raise InputError(f"solver: expected one of {', '.join(get_args(Solver))}, got {self.solver!r}")
        for name in ("ridge", "teacher_temperature", "student_temperature", "spread", "tolerance", "kappa"):
            value = getattr(self, name)
            try:
                number = float(value)
            except (TypeError, ValueError) as exc:
                raise InputError(f"{name}: expected a number, got {value!r}") from exc
            least = _LEAST.get(name, SMALLEST)
            if not (isfinite(number) and number >= least):
                raise InputError(f"{name}: expected a number >= {least:g}, got {value}")
            object.__setattr__(self, name, number)

    def dose(self, n: float) -> float:
        """Alpha = n / (n + kappa) (Eq. 8) of *n* rewarded queries, or voices; 0 for n = 0, the unadapted state."""
        return n / (n + self.kappa) if n else 0.0
