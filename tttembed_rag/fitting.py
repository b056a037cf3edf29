"""The plain rule: rewards of a scope in, its offset out (paper, Eq. 6 to 8 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.objectives import OBJECTIVES
from tttembed_rag.offsets import Certificate, Evidence, Offset, Offsets, Scope
from tttembed_rag.problems import Grid, Loss, PrivateProblems, Problem, SharedProblem
from tttembed_rag.rewards import Rewards
from tttembed_rag.solver import Solution, adam, exact
from tttembed_rag.unitrows import Device, Float64
from tttembed_rag.vectors import FloatArray, IntArray

ObjectiveName: TypeAlias = Literal["kd", "reverse_kl", "softmax_grpo"]
SolverName: TypeAlias = Literal["exact", "adam"]

# How much the similarities of a query's candidates typically spread along an offset: a guess that gives the first
# step its length. Between .08 and .12 it saves one evaluation in ten.
_SPREAD = 0.1
# The least that a ridge or temperature may be: below it, rounding decides where the minimum is. And the others.
SMALLEST = 1e-6
_LEAST = {"kappa": 0.0, "tolerance": 1e-300}
# Numbers a batch of private problems may hold beside its candidate vectors (8 bytes each).
_BATCH_NUMBERS = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How an offset is learned; the defaults are the paper's.

    Attributes:
        objective: ``kd``, ``reverse_kl`` or ``softmax_grpo``.

        solver: ``exact`` (to *tolerance*, certified) or ``adam`` (the paper's 300 steps).

        ridge: lambda > 0, weight of ||v||^2.

        teacher_temperature: tau_T > 0, in units of reward.

        student_temperature: tau_S > 0, in units of cosine similarity.

        kappa: Dose n / (n + kappa), in rewarded queries, >= 0.

        tolerance: Largest gradient norm that counts as converged, in nats per unit of offset.

        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch sees one and there are vectors enough to pay.

        warm_start: Offsets of an earlier fit; a shared offset is searched from the one of its key on.
    """

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
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective: expected one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        if self.solver not in ("exact", "adam"):
            raise InputError(f"solver: expected exact or adam, got {self.solver!r}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise InputError(f"device: expected auto, cpu or cuda, got {self.device!r}")
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

    @property
    def has_many_minima(self) -> bool:
        """Whether the exact solver also starts from KD's optimum and keeps the lower minimum."""
        return self.objective != "kd" and self.solver == "exact"

    def dose(self, n: int) -> float:
        """Alpha = n / (n + kappa) (Eq. 8); 0 for n = 0, the unadapted state."""
        return n / (n + self.kappa) if n else 0.0

    def loss(self, grid: Grid, objective: str | None = None) -> Loss:
        """The data term of Eq. 6 on *grid*, under this recipe's objective or the one named."""
        built = grid.objective(objective or self.objective, self.teacher_temperature, self.student_temperature)
        return Loss(grid, built, self.student_temperature)

    def solve(self, problem: Problem, start: Float64) -> Solution:
        """Minimise *problem* from *start* with this recipe's solver."""
        if self.solver == "adam":
            return adam(problem, start, tolerance=self.tolerance)
        curvature = 2.0 * self.ridge + (_SPREAD / self.student_temperature) ** 2
        return exact(problem, start, tolerance=self.tolerance, curvature=curvature)


# What of a recipe is kept for the record: not where it ran, nor where the search began.
_SETTINGS = tuple(field.name for field in fields(Recipe) if field.name not in ("device", "warm_start"))


def scope_weights(rewards: Rewards, learning: NDArray[np.bool_] | None = None) -> Float64:
    """w_q = 1 / (active tasks * rewarded queries of q's task), (n,), summing to 1 (paper, appendix).

    Args:
        rewards: Judged candidates.

        learning: (n,) queries that are to be learned from; the others weigh nothing. None for all.
    """
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    learning = np.ones(len(task), dtype=bool) if learning is None else learning
    count = np.bincount(task[learning], minlength=len(tasks))
    return np.asarray(learning / (np.count_nonzero(count) * np.maximum(count, 1)[task]))


def solve_shared(rewards: Rewards, recipe: Recipe, weights: Float64, grid: Grid, start: Float64) -> Solution:
    """G offsets side by side from *start* (G, d), each for the queries to which *weights* (G, n) gives weight."""

    def problem(objective: str) -> SharedProblem:
        return SharedProblem.of(rewards, recipe.loss(grid, objective), weights, recipe.ridge, recipe.device)

    return _lowest(problem(recipe.objective), lambda: problem("kd"), recipe, start)


def private_problems(rewards: Rewards, recipe: Recipe) -> PrivateProblems:
    """The private problems of *rewards* in the basis that the recipe's solver wants."""
    loss = recipe.loss(Grid.of(rewards))
    if recipe.solver == "adam":
        return PrivateProblems.in_full_width(rewards, loss, recipe.ridge)
    return PrivateProblems.of(rewards, loss, recipe.ridge, recipe.device)


def solve_private(problems: PrivateProblems, recipe: Recipe) -> Solution:
    """One offset per query in the problems' own coordinates, from zero."""

    def kd() -> PrivateProblems:
        return replace(problems, loss=recipe.loss(problems.loss.grid, "kd"))

    n, _, width = problems.coordinates.shape
    return _lowest(problems, kd, recipe, np.zeros((n, width)))


def _lowest(problem: Problem, kd: Callable[[], Problem], recipe: Recipe, start: Float64) -> Solution:
    """The solution from *start* or, with many minima, the lower of that and the one from KD's optimum."""
    solution = recipe.solve(problem, start)
    if not recipe.has_many_minima:
        return solution
    first = recipe.solve(kd(), start)
    second = recipe.solve(problem, first.offsets)
    return solution.or_better(replace(second, evaluations=first.evaluations + second.evaluations))


def batches(rewards: Rewards) -> Iterator[IntArray]:
    """Rows of queries of similar depth, few enough that their private problems stay in memory."""
    depths = rewards.depths
    order = np.argsort(depths, kind="stable")
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order):
            side = int(depths[order[end]]) + 1
            if (end + 1 - begin) * side * max(side, rewards.width) > _BATCH_NUMBERS:
                break
            end += 1
        yield np.sort(order[begin:end])
        begin = end


def fit_scope(rewards: Rewards, scope: Scope, recipe: Recipe) -> Offsets:
    """The ungated offsets of one scope: the paper's rule as it stands."""
    if scope == "global":
        offsets = [shared_offset(rewards, "global", None, recipe)]
    elif scope == "task":
        tasks = np.unique(rewards.tasks).tolist()
        offsets = [shared_offset(of_task(rewards, task), "task", task, recipe) for task in tasks]
    else:
        offsets = private_offsets(rewards, recipe)
    return collect(offsets, rewards, recipe, scope)


def collect(offsets: list[Offset], rewards: Rewards, recipe: Recipe, scope: str) -> Offsets:
    """Offsets with the record of how they were learned."""
    settings: dict[str, str | float] = {"scope": scope, "judge": rewards.judge}
    settings |= {name: getattr(recipe, name) for name in _SETTINGS}
    return Offsets(offsets, width=rewards.width, settings=settings)


def of_task(rewards: Rewards, task: str) -> Rewards:
    """The rewards of one task."""
    return rewards.take(np.flatnonzero(rewards.tasks == task))


def shared_offset(
    rewards: Rewards, scope: Scope, task: str | None, recipe: Recipe, evidence: Evidence | None = None
) -> Offset:
    """The offset of all *rewards* together, on *evidence* or ungated."""
    start = recipe.start("global" if task is None else f"task:{task}", rewards.width)
    solution = solve_shared(rewards, recipe, scope_weights(rewards)[None], Grid.of(rewards), start)
    n = len(rewards)
    offset = Offset(
        scope=scope,
        task=task,
        vector=solution.offsets[0].astype(rewards.query_vectors.dtype),
        alpha=recipe.dose(n),
        n=n,
        evidence=evidence or ungated(n),
        certificate=certificate(solution, 0),
    )
    return _if_converged(offset, recipe)


def private_offsets(rewards: Rewards, recipe: Recipe, evidence: Evidence | None = None) -> list[Offset]:
    """One offset per query of *rewards*, in their order, on pooled *evidence* or ungated."""
    offsets: dict[int, Offset] = {}
    for rows in batches(rewards):
        batch = rewards.take(rows)
        problems = private_problems(batch, recipe)
        solution = solve_private(problems, recipe)
        vectors: FloatArray = problems.lift(batch, solution.offsets, recipe.device).astype(rewards.query_vectors.dtype)
        for i, row in enumerate(rows.tolist()):
            offset = Offset(
                scope="query",
                task=str(batch.tasks[i]),
                query_id=str(batch.query_ids[i]),
                vector=vectors[i],
                alpha=recipe.dose(1),
                n=1,
                evidence=evidence or ungated(1),
                certificate=certificate(solution, i),
            )
            offsets[row] = _if_converged(offset, recipe)
    return [offsets[row] for row in range(len(rewards))]


def _if_converged(offset: Offset, recipe: Recipe) -> Offset:
    """The offset; one short of its optimum says so, and is withheld if the gate published it."""
    found = offset.certificate
    if found is None or found.converged or recipe.solver == "adam":
        return offset
    reason = f"the solver stopped at gradient norm {found.gradient_norm:.1e}, not at an optimum"
    if offset.evidence.verdict != "published":
        return replace(offset, evidence=replace(offset.evidence, reason=f"{offset.evidence.reason}; {reason}"))
    evidence = replace(offset.evidence, verdict="abstained", reason=reason)
    return replace(offset, vector=np.zeros_like(offset.vector), alpha=0.0, evidence=evidence)


def ungated(n: int) -> Evidence:
    """The evidence of an offset nobody asked evidence of."""
    return Evidence(n, None, None, "ungated", "learned without a gate")


def certificate(solution: Solution, row: int) -> Certificate:
    """The certificate of one problem of a solution."""
    return Certificate(
        objective=float(solution.objective[row]),
        gradient_norm=float(solution.gradient_norm[row]),
        evaluations=int(solution.evaluations[row]),
        converged=bool(solution.converged[row]),
    )
