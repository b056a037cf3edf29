"""Private offsets of judged queries, for when the same text is asked again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tttembed_rag.fitting.scopes import private_offsets
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.thresholds import ALONE, AUDITED, LEVEL, PUBLISHED, Question
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.values import Offset
from tttembed_rag.vectors.checks import FloatArray


def private_around(case: Case, served: Offset | None, evidence: Evidence) -> list[Offset]:
    """The private offset of each query of *case*, in their order.

    Args:
        case: A believed task.

        served: What the task is served; None for base vectors.

        evidence: The verdict that the judge is believed.
    """
    rewards, (optima, solution) = case.rewards, case.optima
    moves = private_moves(case, served, evidence.trust)
    if (found := case.audited(moves)) is not None:
        evidence = replace(evidence, reason=f"{evidence.reason}; {found}")
        if not found.confirms(LEVEL):
            evidence = _withheld(evidence, AUDITED, found=str(found))
            names = rewards.query_ids.tolist()
            return [nothing(case, "query", str(rewards.tasks[0]), evidence, name) for name in names]
    vectors = (moves / case.recipe.dose(1)).astype(optima.dtype)
    offsets = private_offsets(rewards, vectors, solution, case.recipe, evidence)
    return [
        offset if backed else nothing(case, "query", offset.task, _withheld(evidence, ALONE), offset.query_id)
        for offset, backed in zip(offsets, case.heard.backed.tolist(), strict=True)
    ]


def private_moves(case: Case, served: Offset | None, trust: float) -> FloatArray:
    """(n, d) what moves each query of *case* when it comes again: its optimum, shrunk towards what its task is served.

    With u the offset that the task's offset gives the query and w the query's private optimum, it is
    u + t alpha (w - u) at the private dose alpha: its own rewards count as one observation more, trusted by t.

    Args:
        case: A believed task.

        served: What the task is served; None for base vectors.

        trust: How far the judge is trusted, in [0, 1].
    """
    optima, unit = case.optima[0], case.rewards.queries.unit
    around = np.zeros_like(optima) if served is None else np.broadcast_to(served.dosed(unit), optima.shape)
    return np.asarray(around + trust * case.recipe.dose(1) * (optima - around))


def _withheld(evidence: Evidence, question: Question, **said: str) -> Evidence:
    reason = f"private offsets: {question.answer.format(**said)}"
    return replace(evidence, verdict="abstained", reason=reason, code=question.code)


def believed_evidence(case: Case) -> Evidence:
    """The evidence of private offsets whose judge is believed."""
    reason = f"private offsets, {_counted(case)}: the judge is believed"
    return Evidence(case.questions, None, None, "published", reason, code=PUBLISHED, trust=case.trust)


def nothing(case: Case, scope: str, task: str | None, evidence: Evidence, query_id: str | None = None) -> Offset:
    """An offset of zero that says in its *evidence* why nothing is served."""
    zero = np.zeros(case.rewards.width, case.rewards.query_vectors.dtype)
    n = case.questions if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)  # type: ignore[arg-type]


def _counted(case: Case) -> str:
    n = case.questions
    return f"{n} rewarded {'queries' if n > 1 else 'query'}"
