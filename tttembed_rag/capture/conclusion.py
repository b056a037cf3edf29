"""What was learned, as one sentence: a decision, then the figure, or what would change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from tttembed_rag.offsets.codes import ANSWERS
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS, Evidence, sentence, signed
from tttembed_rag.offsets.offsets import Offsets

Decision: TypeAlias = Literal["served", "not yet", "nothing to gain"]
# What would change a decision against an offset, by its code.
_CHANGES = {question.code: question.change for question in ANSWERS}
# The least change that is not rounded to zero.
_SHOWN = 0.0005


@dataclass(frozen=True, slots=True, repr=False)
class Conclusion:
    """What `Learned.learn` decided, and why; its text is one sentence.

    Attributes:
        decision: ``served``, ``not yet``, or ``nothing to gain``.
        evidence: What held-out verdicts say of the task with most judged questions.
        depth: How many documents of a list the reranker must still look at; 0 where that was not measured.
        words: What sorting lists by shared words adds to the gain; 0 where that is not served.
        tasks: Tasks with judged questions.
    """

    decision: Decision
    evidence: Evidence
    depth: int
    words: float
    tasks: int

    @classmethod
    def of(cls, offsets: Offsets) -> Self:
        """The conclusion of *offsets* that the gate decided about."""
        of_tasks = [offset for offset in offsets.values() if offset.query_id is None and offset.task is not None]
        offset = max(of_tasks or offsets.values(), key=lambda offset: (offset.n, offset.served))
        evidence, rescorer = offset.evidence, offsets.rescorer(offset.task)
        against: Decision = "nothing to gain" if evidence.nothing_to_gain else "not yet"
        return cls(
            "served" if offset.served else against,
            evidence,
            evidence.depth(len(evidence.lost), CERTIFIED_LOSS),
            0.0 if rescorer is None else rescorer.evidence.gain or 0.0,
            len(of_tasks),
        )

    def __str__(self) -> str:
        evidence, today = self.evidence, len(self.evidence.lost)
        figure, of_tasks = evidence.figure, f"of the largest of {self.tasks} tasks" * (self.tasks > 1)
        if self.decision == "nothing to gain":
            return sentence(self.decision, evidence.reason, of_tasks)
        if self.decision == "served":
            depth = f"rerank {self.depth} instead of {today}" * (self.depth < today)
            words = f"{signed(self.words)} more by shared words" * (self.words >= _SHOWN)
            return sentence(self.decision, figure, of_tasks, depth, evidence.reason, words)
        needed = f"about {evidence.needed} more judged questions would settle it" * bool(evidence.needed)
        change = needed or _CHANGES.get(evidence.code, "")
        return sentence(self.decision, change, of_tasks, evidence.reason, figure, code=evidence.code)

    def __repr__(self) -> str:
        return f"Conclusion({str(self)!r})"
