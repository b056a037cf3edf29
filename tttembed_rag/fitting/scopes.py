"""The plain rule: rewards of a scope in, its offsets out (paper, Eq. 6 to 8 and Algorithm 1)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.fitting.optima import private_optima, scope_weights, shared_optima, start_of
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.solver import Solution
from tttembed_rag.offsets.codes import UNSOLVED
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import Certificate, Offset, Scope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.rows import Float64


def plain_offsets(rewards: Rewards, scope: Scope, recipe: Recipe) -> list[Offset]:
    """The ungated offsets of one scope: the paper's rule as it stands."""
    if scope == "query":
        rewards = one_row_each(rewards)
        optima = private_optima(rewards, recipe)
        return private_offsets(rewards, optima, recipe)
    if scope == "global":
        return [shared_offset(rewards, None, recipe)]
    learned = _plain_local if scope == "local" else shared_offset
    return [learned(of_task(rewards, task), task, recipe) for task in np.unique(rewards.tasks).tolist()]


def recorded(offsets: list[Offset], judge: str, width: int, recipe: Recipe, scope: str, **origin: str) -> Offsets:
    """Offsets of a *width*, learned from the rewards of a *judge*, with the record of how.

    Of the recipe it does not keep where the search began. *origin* names the embedder, and holds a probe of it.
    """
    kept = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.name != "warm_start"}
    settings = {"scope": scope, "judge": judge, **kept, "objective": recipe.objective.name}
    settings |= {name: text for name, text in origin.items() if text}
    return Offsets(offsets, width=width, settings=settings)


def of_task(rewards: Rewards, task: str) -> Rewards:
    """The rewards of one task."""
    return rewards.take(np.flatnonzero(rewards.tasks == task))


def shared_offset(
    rewards: Rewards,
    task: str | None,
    recipe: Recipe,
    evidence: Evidence | None = None,
    *,
    weights: Float64 | None = None,
    n: int | None = None,
) -> Offset:
    """The offset of a *task*, or the global one (None), of all *rewards* together, on *evidence* or ungated.

    The *weights* (n,) of queries are those of `scope_weights` if there are none; it counts as learned from *n* queries.
    """
    start = start_of(recipe, "global" if task is None else f"task:{task}", rewards.width)
    weights = scope_weights(rewards) if weights is None else weights
    solution = shared_optima(rewards, recipe, weights[None], Grid.of(rewards), start)
    return solved_offset(solution, 0, task, n or len(rewards), recipe, rewards.query_vectors.dtype, evidence)


def solved_offset(
    solution: Solution,
    row: int,
    task: str | None,
    n: int,
    recipe: Recipe,
    dtype: np.dtype[Any],
    evidence: Evidence | None = None,
) -> Offset:
    """The shared offset of *n* rewarded queries that is one *row* of a *solution*, on *evidence* or ungated."""
    offset = Offset(
        scope="global" if task is None else "task",
        task=task,
        vector=solution.offsets[row].astype(dtype),
        alpha=recipe.dose(n) * (evidence.trust if evidence else 1.0),
        n=n,
        evidence=evidence or _ungated(n),
        certificate=_certificate(solution, row),
    )
    return _if_converged(offset, recipe)


def private_offsets(
    rewards: Rewards, optima: Solution, recipe: Recipe, evidence: Evidence | None = None
) -> list[Offset]:
    """One offset per query of *rewards*, in their order: its row of *optima*, on pooled *evidence* or ungated."""
    trust = evidence.trust if evidence else 1.0
    vectors = (trust * optima.offsets).astype(optima.offsets.dtype)
    names = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True)
    return [
        _if_converged(
            Offset(
                scope="query",
                task=task,
                query_id=query_id,
                vector=vectors[row],
                alpha=recipe.dose(1),
                n=1,
                evidence=evidence or _ungated(1),
                certificate=_certificate(optima, row),
            ),
            recipe,
        )
        for row, (task, query_id) in enumerate(names)
    ]


def local_offset(
    local: Local,
    task: str,
    n: int,
    optima: Solution,
    recipe: Recipe,
    evidence: Evidence | None = None,
    vector: FloatArray | None = None,
) -> Offset:
    """The offset of a *task* as a function of the query, on *evidence* or ungated.

    It is the *local* regression of *n* private *optima* around a *vector* (d,), or around zero.
    """
    map_ = local.map()
    targets = Certificate(
        objective=float(optima.objective.mean()),
        gradient_norm=float(optima.gradient_norm.max()),
        evaluations=int(optima.evaluations.max()),
        converged=bool(optima.converged.all()),
        residual=local.residual,
    )
    offset = Offset(
        scope="local",
        task=task,
        vector=np.zeros(map_.landmarks.shape[1], map_.landmarks.dtype) if vector is None else vector,
        alpha=1.0,
        n=n,
        evidence=evidence or _ungated(n),
        certificate=targets,
        map=map_,
    )
    return _if_converged(offset, recipe)


def _plain_local(rewards: Rewards, task: str, recipe: Recipe) -> Offset:
    optima = private_optima(rewards, recipe)
    return local_offset(Local.of(rewards, optima.offsets, recipe.kappa), task, len(rewards), optima, recipe)


def _if_converged(offset: Offset, recipe: Recipe) -> Offset:
    """The offset; one short of its optimum says so, and is withheld if the gate published it."""
    certificate = offset.certificate
    if certificate is None or certificate.converged or recipe.solver == "adam":
        return offset
    reason = f"the solver stopped at gradient norm {certificate.gradient_norm:.1e}, not at an optimum"
    if offset.evidence.verdict != "published":
        return replace(offset, evidence=replace(offset.evidence, details=f"{offset.evidence.details}; {reason}"))
    evidence = replace(offset.evidence, verdict="abstained", reason=reason, code=UNSOLVED.code)
    return replace(offset, vector=np.zeros_like(offset.vector), alpha=0.0, map=None, evidence=evidence)


def _ungated(n: int) -> Evidence:
    return Evidence(n, None, None, "ungated", "learned without a gate")


def _certificate(solution: Solution, row: int) -> Certificate:
    """The certificate of one problem of a solution."""
    return Certificate(*(column[row].item() for column in solution[1:-1]))
