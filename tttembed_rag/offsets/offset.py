"""One offset, and the certificate of its optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS, Evidence
from tttembed_rag.offsets.floor import Floor
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.rerankskips import Skips
from tttembed_rag.offsets.rescorer import Rescorer
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.vectors.checks import FloatArray

__all__ = ["AnyScope", "Certificate", "Offset", "Scope", "check_scope"]

Scope: TypeAlias = Literal["global", "task", "local", "query"]
AnyScope: TypeAlias = Literal["auto", "global", "task", "local", "query"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """How near the optimum of Eq. 6 the solver stopped.

    Attributes:
        objective: Objective at the offset, in nats; for a local offset the mean over its targets.
        gradient_norm: Euclidean norm of the gradient there; for a local offset the largest of its targets.
        evaluations: Evaluations of value and gradient spent.
        converged: Whether the gradient norm reached the tolerance.
        residual: Of a local offset, the norm of what its linear system leaves over, relative to its right side.
    """

    objective: float
    gradient_norm: float
    evaluations: int
    converged: bool
    residual: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Offset:
    """One learned offset and all that is known about it.

    Attributes:
        scope: ``global``, ``task``, ``local`` or ``query``.
        vector: (d,) the offset v; zero where the gate abstained, and of a local offset what its map is added to.
        alpha: Dose in [0, 1], n / (n + kappa) times the evidence's trust; 0 where the gate abstained.
        n: Rewarded queries it was learned from.
        evidence: What held-out rewards say it does.
        certificate: How near the optimum the solver stopped; None where nothing was kept.
        task: Its task; None for a global offset.
        query_id: Its query; None for an offset that several queries share.
        map: The offset as a function of the query; None for one that is the same for all queries.
        rescorer: How the words that candidates share with a query sort what the task's search finds; None where the
            texts of what was judged were not known.
        skips: Which of the lists that are served so need no reranker; None where that was not measured.
        floor: How likely candidates are relevant, and below which likelihood nothing fits; None where nobody knows.
    """

    scope: Scope
    vector: FloatArray
    alpha: float
    n: int
    evidence: Evidence
    certificate: Certificate | None = None
    task: str | None = None
    query_id: str | None = None
    map: KernelMap | None = None
    rescorer: Rescorer | None = None
    skips: Skips | None = None
    floor: Floor | None = None

    @property
    def key(self) -> str:
        """``global``, ``task:NAME``, ``local:NAME``, ``query:ID`` or, for a named task, ``query:TASK/ID``.

        A slash inside a query's task or id is written %2F, so that no two queries share a key.
        """
        if self.scope != "query":
            return "global" if self.scope == "global" else f"{self.scope}:{self.task}"
        parts = [self.query_id] if self.task == DEFAULT_TASK else [self.task, self.query_id]
        return "query:" + "/".join(str(part).replace("%", "%25").replace("/", "%2F") for part in parts)

    def __repr__(self) -> str:
        width, evidence = len(self.vector), self.evidence
        return f"Offset({self.key!r}, {self.n} rewarded queries, dose {self.alpha:.2f}, width {width}, {evidence})"

    @property
    def served(self) -> bool:
        """Whether `Offsets.apply` uses it."""
        return self.evidence.verdict in ("published", "ungated")

    @property
    def in_use(self) -> bool:
        """Whether anything of it is served: the offset, or the rescorer beside it."""
        return self.served or (self.rescorer is not None and self.rescorer.served)

    @property
    def certified(self) -> list[str]:
        """What is certified of its lists, in lines: what a reranker must see of them, and which have no answer."""
        skipped = self.skips.summary(CERTIFIED_LOSS) if self.skips is not None and self.in_use else ""
        sorted_so = self.rescorer.evidence.reranking if self.rescorer is not None else ""
        by_words = f"sorted by words: {sorted_so}" if sorted_so else ""
        fits = self.floor.told() if self.floor is not None and self.floor.cut() is not None else ""
        return [line for line in (self.evidence.reranking, by_words, skipped, fits) if line]

    def dosed(self, unit: FloatArray) -> FloatArray:
        """Alpha v for *unit* query vectors (m, d) or (d,): of that shape, or (d,) where all queries share it.

        All that is served of an offset is worked out here. The gate measures the same before there is an `Offset`, as
        what a `Proposal` holds out.
        """
        if self.map is None:
            return self.alpha * self.vector.astype(np.float64)
        return self.alpha * (self.vector + self.map(unit))


def check_scope(scope: str) -> None:
    """Refuse what `AnyScope` does not name."""
    if scope not in (scopes := get_args(AnyScope)):
        raise InputError(f"scope: expected one of {', '.join(scopes)}, got {scope!r}")


# Text to the id that a store gives it.
TextId = Callable[[str], str]
