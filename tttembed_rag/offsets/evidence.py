"""What held-out rewards say an offset does, and the one line that people read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tttembed_rag.offsets.codes import EXPOSED, Question

Verdict: TypeAlias = Literal["published", "abstained", "ungated"]
# nDCG@10 that may be lost by reranking less deep, where nobody says how much.
CERTIFIED_LOSS = 0.01
# Withheld documents that are named in a line.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """What held-out rewards say an offset does.

    Attributes:
        n: Rewarded queries the gain was measured on.
        gain: Change of nDCG@10 of the judged candidates of held-out rewarded queries, by their rewards; None where it
            was not measured.
        interval: 90 % interval of that change, on queries like those judged; None where it was not measured.
        verdict: ``published`` or ``abstained`` by the gate, ``ungated`` where none was asked.
        reason: The verdict in words a person understands.
        needed: About how many more rewarded queries (tasks, where n counts tasks) would settle it, if the
            gain holds; None where that is unknown or nothing is open.
        code: Stable name of the question that decided, such as ``TTT-G03``; empty where no gate was asked.
        withheld: Documents that would have moved into or out of the lists of many queries, whatever was asked, by what
            sources, or a judge that overrates them, say: that was not learned from (``TTT-G04``).
        sources: Distinct sources that the rewards came from; 0 where the declared judge gave them all.
        trust: The factor in [0, 1] on what is served: how far the trusted labels of an audit confirm the judge's order;
            1 without an audit. It is part of *alpha*, or of the vectors of a local or private offset.
        vouched: Who vouches for the rewards: ``trusted labels``, ``its declaration``, ``the data`` or ``nobody``; empty
            where no gate was asked.
        against: Whether the rewards speak against any offset of the task, so that the global one is not served either.
        left_out: Rewarded queries that the gain says nothing of, as their rewards do not differ.
        lost: By depth 1, 2, ...: how much nDCG@10 of the judge is lost at most (90 %) where the list under the offset
            is reranked so deep, against all that was judged reranked without it; never rising. Empty where that was not
            measured: of what is not served, of the global offset, where sources gave rewards, or with your own search.
    """

    n: int
    gain: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str
    needed: int | None = None
    code: str = ""
    withheld: tuple[str, ...] = ()
    sources: int = 0
    trust: float = 1.0
    vouched: str = ""
    against: bool = False
    left_out: int = 0
    lost: tuple[float, ...] = ()

    def denied_by(self, question: Question, finding: str) -> Evidence:
        """The evidence of what is not published: the *question* decided against it, for a *finding* in words."""
        return replace(self, verdict="abstained", reason=self.reason + finding, code=question.code)

    def depth(self, today: int, loss: float) -> int:
        """The least depth certified to lose at most *loss* against reranking *today* deep; *today* where none is."""
        if today > len(self.lost):  # so deep was never judged
            return today
        return min(today, next((depth for depth, lost in enumerate(self.lost, 1) if lost <= loss), today))

    @property
    def reranking(self) -> str:
        """How deep a reranker must still look, in words; empty where that was not measured, or nothing is served."""
        today = len(self.lost) if self.verdict == "published" else 0
        depth = self.depth(today, CERTIFIED_LOSS)
        if depth == today:
            return f"rerank {today}, as today: no less is certified" if today > 1 else ""
        fewer = f"{1 - depth / today:.0%} fewer pairs"
        return f"rerank {depth} instead of {today}: at most {CERTIFIED_LOSS:g} nDCG@10 lost (90 %), {fewer}"

    def __str__(self) -> str:
        held_out = ""
        if self.gain is not None and self.interval is not None:
            low, high = self.interval
            alike = f" without {self.left_out} queries whose rewards do not differ" if self.left_out else ""
            held_out = f"held-out gain {self.gain:+.3f} nDCG@10 [{low:+.3f}, {high:+.3f}]{alike}, "
        more = "" if self.needed is None else f"; about {self.needed} more would settle it if the gain holds"
        code = f" [{self.code}]" if self.code else ""
        from_sources = f"; from {self.sources} source{'s' * (self.sources > 1)}" if self.sources else ""
        without = f"; without what was said of {few(self.withheld)} [{EXPOSED.code}]" if self.withheld else ""
        trust = f"{self.trust:.2f}"
        shrunk = "" if trust == "1.00" else f"; dose times {trust}, as far as labels confirm the judge's order"
        return f"{self.verdict}: {held_out}{self.reason}{more}{from_sources}{shrunk}{without}{code}"


def few(names: Sequence[str]) -> str:
    """The first of *names*, and how many more there are."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
