"""What was learned, as one sentence: a decision, then the figure, then the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tttembed_rag.offsets.codes import AUDITED, COMPARE, EXPOSED, FALLS, MEANS, REPEATS
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.columns import DEFAULT_TASK

Decision: TypeAlias = Literal["served", "not yet", "nothing to gain"]
# The least change that is not rounded to zero.
_SHOWN = 0.0005
# What would change a decision against an offset, by its code.
_CHANGES = {
    COMPARE.code: "it takes more questions, each with several documents that differ",
    MEANS.code: "it takes more judged questions, or a judge whose order you serve",
    FALLS.code: "it takes more judged questions",
    EXPOSED.code: "it takes verdicts on these documents for more questions",
    AUDITED.code: "it takes a judge that trusted labels confirm",
}


@dataclass(frozen=True, slots=True)
class Lesson:
    """What `Learned.learn` decided for one task, and on what evidence; its text is one sentence.

    Attributes:
        decision: ``served``, ``not yet``, or ``nothing to gain``.
        gain: Mean change of nDCG@10, by the judge's rewards, of questions that what is measured did not learn from;
            None where it was not measured.
        interval: 90 % interval of that change; None where it was not measured.
        questions: Judged questions.
        depth: How many documents of a list the reranker must still look at.
        today: How many it looks at today.
        words: The same change where lists are sorted by shared words too; None where that is not
            served, or changes nothing.
        needed: About how many more judged questions would settle it; None where that is unknown, or nothing is open.
        vouched: Who vouches for the verdicts.
        reason: Why, in the words of the gate.
        code: Stable name of the question of the gate that decided.
        written: Whether the questions were written for this, and asked by nobody.
        withheld: Whether it might be served, and is not, as nobody asked them.
        tasks: Tasks with judged questions; the lesson is about the one with most of them.
    """

    decision: Decision
    gain: float | None
    interval: tuple[float, float] | None
    questions: int
    depth: int
    today: int
    words: float | None
    needed: int | None
    vouched: str
    reason: str
    code: str
    written: bool = False
    withheld: bool = False
    tasks: int = 1

    @classmethod
    def of(cls, offsets: Offsets, *, written: bool = False, withheld: bool = False) -> Lesson:
        """The lesson of *offsets* that the gate decided about; *withheld* ones are not served, whatever it decided."""
        of_tasks = [offset for offset in offsets.values() if offset.query_id is None and offset.scope != "global"]
        offset = max(of_tasks or offsets.values(), key=lambda one: (one.n, one.served))
        evidence, task = offset.evidence, offset.task or DEFAULT_TASK
        today, rescorer = len(evidence.lost), offsets.rescorer(task)
        decision: Decision = "nothing to gain" if evidence.reason == REPEATS else "not yet"
        return cls(
            "served" if offset.served and not withheld else decision,
            evidence.gain,
            evidence.interval,
            evidence.n,
            evidence.depth(today, CERTIFIED_LOSS),
            today,
            gained if rescorer is not None and (gained := rescorer.evidence.gain or 0.0) >= _SHOWN else None,
            evidence.needed,
            evidence.vouched,
            evidence.reason,
            evidence.code,
            written,
            withheld and offset.served,
            len(of_tasks),
        )

    def __str__(self) -> str:
        written, tasks = (
            "from written questions" * self.written,
            f"of the largest of {self.tasks} tasks" * (self.tasks > 1),
        )
        parts = [*self._why, written, tasks]
        return f"{self.decision}: {'; '.join(filter(None, parts))} [{self.code}]"

    @property
    def _why(self) -> list[str]:
        """The figure, and what is to be known of the decision."""
        if self.decision == "served":
            depth = f"rerank {self.depth} instead of {self.today}" * (self.depth < self.today)
            words = f"{_signed(self.words)} more where lists are sorted by shared words too" if self.words else ""
            voucher = "your reranker: you serve its order" if self.vouched == "its declaration" else self.vouched
            return [self._figure, depth, words, f"vouched for by {voucher}"]
        if self.decision == "nothing to gain":
            return ["your search already sorts these documents as they were judged", self._figure]
        if self.withheld:
            return ["nobody asked these questions: learn(written=True) serves what they teach", self._figure]
        more = (
            f"about {self.needed} more judged questions would settle it" if self.needed else _CHANGES.get(self.code, "")
        )
        return [more, self._figure, self.reason]

    @property
    def _figure(self) -> str:
        if self.gain is None or self.interval is None:
            return f"from {self.questions} judged questions"
        low, high = map(_signed, self.interval)
        return f"{_signed(self.gain)} nDCG@10 [{low}, {high}] on {self.questions} questions it did not learn from"


def _signed(change: float) -> str:
    """A change of nDCG@10: +.012."""
    return f"{change:+.3f}".replace("0.", ".", 1)
