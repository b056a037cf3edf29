"""The plain rule: rewards of a scope in, its offsets out (paper, Eq. 6 to 8 and Algorithm 1)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.fitting.optima import private_optima, scope_weights, shared_optima
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
    """Offsets of a *width*, learned from the rewards of a *judge*, with the record of how, and of the *origin*."""
    how = {field.name: getattr(recipe, field.name) for field in fields(recipe)} | {"objective": recipe.objective.name}
    known = {name: text for name, text in origin.items() if text}
    return Offsets(offsets, width=width, settings={"scope": scope, "judge": judge, **how, **known})


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
    weights = scope_weights(rewards) if weights is None else weights
    solution = shared_optima(rewards, recipe, weights[None], Grid.of(rewards))
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
    return _certified(
        recipe,
        _certificate(solution, row),
        scope="global" if task is None else "task",
        task=task,
        vector=solution.offsets[row].astype(dtype),
        alpha=recipe.dose(n) * (evidence.trust if evidence else 1.0),
        n=n,
        evidence=evidence or _ungated(n),
    )


def private_offsets(
    rewards: Rewards, optima: Solution, recipe: Recipe, evidence: Evidence | None = None
) -> list[Offset]:
    """One offset per query of *rewards*, in their order: its row of *optima*, on pooled *evidence* or ungated."""
    trust = evidence.trust if evidence else 1.0
    vectors = (trust * optima.offsets).astype(optima.offsets.dtype)
    shared = {"scope": "query", "alpha": recipe.dose(1), "n": 1, "evidence": evidence or _ungated(1)}
    names = enumerate(zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True))
    return [
        _certified(recipe, _certificate(optima, row), vector=vectors[row], task=task, query_id=query_id, **shared)
        for row, (task, query_id) in names
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
    zero = np.zeros(map_.landmarks.shape[1], map_.landmarks.dtype)
    around, evidence = zero if vector is None else vector, evidence or _ungated(n)
    parts = {"scope": "local", "task": task, "vector": around, "alpha": 1.0, "n": n, "evidence": evidence, "map": map_}
    return _certified(recipe, targets, **parts)


def _plain_local(rewards: Rewards, task: str, recipe: Recipe) -> Offset:
    optima = private_optima(rewards, recipe)
    return local_offset(Local.of(rewards, optima.offsets, recipe.kappa), task, len(rewards), optima, recipe)


def _certified(recipe: Recipe, certificate: Certificate, **parts: Any) -> Offset:
    """The offset of some *parts*; one short of its optimum says so, and is withheld if the gate published it."""
    offset = Offset(certificate=certificate, **parts)
    if certificate.converged or recipe.solver == "adam":
        return offset
    reason, evidence = f"{UNSOLVED.answer} (gradient norm {certificate.gradient_norm:.1e})", offset.evidence
    if evidence.verdict != "published":
        return replace(offset, evidence=evidence.noted(reason))
    zero, withheld = np.zeros_like(offset.vector), evidence.denied_by(UNSOLVED, reason)
    return replace(offset, vector=zero, alpha=0.0, map=None, evidence=withheld)


def _ungated(n: int) -> Evidence:
    return Evidence(n, None, None, "ungated", "learned without a gate")


def _certificate(solution: Solution, row: int) -> Certificate:
    """The certificate of one problem of a solution."""
    return Certificate(*(column[row].item() for column in solution[1:-1]))
