"""What held-out rewards say an offset does: one sentence that people read, and the statistics behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tttembed_rag.offsets.codes import EXPOSED, NOTHING_TO_GAIN, Question

Verdict: TypeAlias = Literal["published", "abstained", "ungated"]
# nDCG@10 that may be lost by reranking less deep, where nobody says how much.
CERTIFIED_LOSS = 0.01
# Withheld documents that are named in a line.
_SHOWN = 3
# Characters of a sentence, at most.
_LONGEST = 120


@dataclass(frozen=True, slots=True, repr=False)
class Evidence:
    """What held-out rewards say an offset does; its text is one sentence, and `statistics` what stands behind it.

    Attributes:
        n: Rewarded queries the gain was measured on.
        gain: Change of nDCG@10 of the judged candidates of held-out rewarded queries, by their rewards; None where it
            was not measured.
        interval: 90 % interval of that change, on queries like those judged; None where it was not measured.
        verdict: ``published`` or ``abstained`` by the gate, ``ungated`` where none was asked.
        reason: Why it is so, in a few words: who vouches for what is published, else what decided against it.
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
        details: What was learned and tested, and what trusted labels say, in words.
        tasks: Whether *n* counts tasks that an offset was not learned from, and not queries.
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
    details: str = ""
    tasks: bool = False

    def denied_by(self, question: Question, reason: str) -> Evidence:
        """The evidence of what is not published: the *question* decided against it, for a *reason* in a few words."""
        return replace(self, verdict="abstained", reason=reason, code=question.code)

    def noted(self, note: object) -> Evidence:
        """The evidence with a *note* among its details; None says nothing."""
        details = [self.details] if self.details else []
        return self if note is None else replace(self, details="; ".join([*details, str(note)]))

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

    @property
    def nothing_to_gain(self) -> bool:
        """Whether nothing is served as the search sorts like the judge, by all that was judged."""
        return self.verdict == "abstained" and self.reason == NOTHING_TO_GAIN and not self.withheld

    @property
    def figure(self) -> str:
        """The gain with its interval, and what it was measured on; empty where it was not measured."""
        if self.gain is None or self.interval is None:
            return ""
        low, high = map(signed, self.interval)
        held_out = "unseen tasks" if self.tasks else "held-out queries"
        return f"{signed(self.gain)} nDCG@10 [{low}, {high}] on {self.n} {held_out}"

    @property
    def statistics(self) -> str:
        """What the sentence lacks, and what stands behind it: what was tested, from whom, and what was left out."""
        text = str(self)
        parts = [
            *(part for part in (self.figure, self.reason) if part not in text),
            self.details,
            f"from {self.sources} source{'s' * (self.sources > 1)}" * (self.sources > 0),
            f"dose times {self.trust:.2f}, as far as labels confirm the judge's order" * (round(self.trust, 2) < 1),
            f"without what was said of {few(self.withheld)} [{EXPOSED.code}]" * bool(self.withheld),
        ]
        return f"{'; '.join(filter(None, parts))}.{without_alike(self.left_out)}".lstrip(". ")

    def __str__(self) -> str:
        if self.nothing_to_gain:
            return f"nothing to gain: {self.reason}"
        if self.verdict != "abstained":
            several = f"{len(self.withheld)} document{'s' * (len(self.withheld) > 1)}"
            without = f"without what was said of {several}" * bool(self.withheld)
            return sentence(self.verdict, self.figure, without, self.reason)
        needed = f"about {self.needed} more {'tasks' if self.tasks else 'queries'} would settle it" * bool(self.needed)
        return sentence(self.verdict, needed or self.reason, self.figure, self.reason * bool(needed), code=self.code)

    def __repr__(self) -> str:
        return f"Evidence({str(self)!r})"


def sentence(decision: str, *parts: str, code: str = "") -> str:
    """A *decision* with as many of its *parts*, the most important first, as fit into a sentence of 120 characters."""
    code = f" [{code}]" * bool(code)
    text, mark = decision, ": "
    for part in filter(None, parts):
        if text == decision or len(f"{text}{mark}{part}{code}") <= _LONGEST:
            text, mark = f"{text}{mark}{part}", "; "
    room = _LONGEST - len(code)
    return (text if len(text) <= room else f"{text[: room - 3].rstrip()}...") + code


def signed(change: float) -> str:
    """A change of nDCG@10 as it is written: +.012."""
    return f"{change:+.3f}".replace("+0.", "+.").replace("-0.", "-.")


def without_alike(queries: int) -> str:
    """That so many *queries* are left out of every mean, as a sentence behind another; empty where none is."""
    return f" {queries} queries whose rewards do not differ are left out." if queries else ""


def few(names: Sequence[str]) -> str:
    """The first of *names*, and how many more there are."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
