"""One offset, the evidence for it and the certificate of its optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tttembed_rag.errors import InputError
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.vectors.checks import FloatArray

Scope: TypeAlias = Literal["global", "task", "local", "query"]
# Withheld documents that are named in a line.
_SHOWN = 3

AnyScope: TypeAlias = Literal["auto", "global", "task", "local", "query"]
Verdict: TypeAlias = Literal["published", "abstained", "ungated"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What held-out rewards say an offset does.

    Attributes:
        n: Rewarded queries the gain was measured on.

        gain: Change of nDCG@10 that is expected of queries which were not rewarded, from how much the loss of held-out
            rewarded queries falls; None where it was not measured.

        interval: 90 % interval of that change; None where it was not measured.

        verdict: ``published`` or ``abstained`` by the gate, ``ungated`` where none was asked.

        reason: The verdict in words a person understands.

        needed: About how many more rewarded queries (tasks, where n counts tasks) would settle it, if the
            gain holds; None where that is unknown or nothing is open.

        code: Stable name of the question that decided, such as ``TTT-G06``; empty where no gate was asked.

        withheld: Documents that were taken as unjudged: they would have risen into the lists of many queries, whatever
            was asked (``TTT-G10``).

        risen: Documents that rise into the lists of many queries.

        sources: Distinct sources that the rewards came from; 0 where the declared judge gave them all.

        trust: The factor in [0, 1] on what is served: how far the trusted labels of an audit confirm the judge's order;
            1 without an audit. It is part of *alpha*, or of the vectors of a local or private offset.
    """

    n: int
    gain: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str
    needed: int | None = None
    code: str = ""
    withheld: tuple[str, ...] = ()
    risen: tuple[str, ...] = ()
    sources: int = 0
    trust: float = 1.0

    def __str__(self) -> str:
        held_out = ""
        if self.gain is not None and self.interval is not None:
            low, high = self.interval
            held_out = f"held-out gain {self.gain:+.3f} [{low:+.3f}, {high:+.3f}], "
        more = "" if self.needed is None else f"; about {self.needed} more would settle it if the gain holds"
        code = f" [{self.code}]" if self.code else ""
        from_sources = f"; from {self.sources} source{'s' * (self.sources > 1)}" if self.sources else ""
        without = f"; without the rewards of {_few(self.withheld)} [TTT-G10]" if self.withheld else ""
        risen = f"; into many lists rises {_few(self.risen)}" if self.risen else ""
        trust = f"{self.trust:.2f}"
        shrunk = "" if trust == "1.00" else f"; dose times {trust}, as far as labels confirm the judge's order"
        return f"{self.verdict}: {held_out}{self.reason}{more}{from_sources}{shrunk}{risen}{without}{code}"


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

        vector: (d,) the offset v; zero where the gate abstained, and for a local offset.

        alpha: Dose in [0, 1], n / (n + kappa) times the evidence's trust; 0 where the gate abstained.

        n: Rewarded queries it was learned from.

        evidence: What held-out rewards say it does.

        certificate: How near the optimum the solver stopped; None where nothing was kept.

        task: Its task; None for a global offset.

        query_id: Its query; None for an offset that several queries share.

        map: The offset as a function of the query; None for one that is the same for all queries.
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

    def dosed(self, unit: FloatArray) -> FloatArray:
        """Alpha v for *unit* query vectors (m, d) or (d,): of that shape, or (d,) where all queries share it."""
        return self.alpha * (self.vector if self.map is None else self.map(unit))


def _few(names: tuple[str, ...]) -> str:
    """The first of *names*, and how many more there are."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def check_scope(scope: str) -> None:
    """Refuse what `AnyScope` does not name.

    Raises:
        InputError: It is something else.
    """
    if scope not in (scopes := get_args(AnyScope)):
        raise InputError(f"scope: expected one of {', '.join(scopes)}, got {scope!r}")


# Text to the id that a store gives it.
TextId = Callable[[str], str]


def named_for(owner: str, tenant: str, query_id: str) -> str:
    """How offsets of the tenant *owner* name the query *query_id* of *tenant*.

    Two tenants may know the same id; no name holds a NUL.
    """
    return query_id if tenant == owner else f"{tenant}:\0{query_id}"
