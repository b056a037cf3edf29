"""Feedback of users as rewards: thumbs, clicks, task success, and judgments made elsewhere.

A click says little without the place of its document: a document that the user never looked at was not
rejected. With examination probability e_p at place p and prior strength m, the reward of a pair is
the posterior mean (m/2 + sum good) / (m + sum (good + e_p bad)), in [0, 1].
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tttembed_rag.errors import DataError, InputError
from tttembed_rag.rewards.scales import Scale

_log = logging.getLogger(__name__)
# e_p = p ** -_ATTENTION, and the strength m of the prior, in events.
_ATTENTION = 1.0
_PRIOR = 1.0
# The signals, and what their values mean.
SIGNALS = {
    "thumb": "1 up, -1 down, 0 taken back",
    "click": "1 clicked, 0 shown and not clicked; weighed by its position, from 1",
    "success": "1 the document served the task, 0 it did not",
    "judgment": "a grade on the declared scale",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One action of a user, or one judgment.

    Attributes:
        query: Id or text of the query.
        document: Id of the document.
        signal: ``thumb``, ``click``, ``success`` or ``judgment``.
        value: As `SIGNALS` says: of a thumb 1 is up, -1 down, 0 taken back; else 1 or 0, or the grade of a judgment.
        position: Place at which the document was shown, from 1; only clicks need it.
    """

    query: str
    document: str
    signal: str
    value: float
    position: int = 1

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise InputError(f"signal: expected {', '.join(SIGNALS)}, got {self.signal!r}")
        allowed = (-1.0, 0.0, 1.0) if self.signal == "thumb" else (0.0, 1.0)
        if not math.isfinite(self.value) or (self.signal != "judgment" and self.value not in allowed):
            raise InputError(f"value: expected for {self.signal} {SIGNALS[self.signal]}, got {self.value:g}")
        if self.position < 1:
            raise InputError(f"position: expected 1 or more, got {self.position}")


@dataclass(frozen=True, slots=True)
class Feedback:
    """Rewards by query and document, gathered from events.

    Attributes:
        scores: By (query, document), on *scale*.
        scale: Probability, or that of the judgments.
    """

    scores: Mapping[tuple[str, str], float]
    scale: Scale

    @classmethod
    def of(cls, events: Sequence[Event], *, scale: Scale | None = None) -> Feedback:
        """Gather *events*, in any order; judgments and behaviour are different judges and must not come together.

        *scale* is that of the grades of judgments, which the grades alone do not show.
        """
        judged = {event.signal == "judgment" for event in events}
        if len(judged) != 1:
            raise InputError(f"events: expected judgments or behaviour, got {'both' if judged else 'none'}")
        if (imported := judged == {True}) and scale is None:
            raise InputError("scale: expected one for judgments, such as rubric:0,3, got none")
        thumbs = [event.value for event in events if event.signal == "thumb"]
        if silent := thumbs.count(0.0):
            line = f"value: {silent} of {len(thumbs)} thumbs are 0, a thumb taken back, which says nothing"
            if 2 * silent > len(thumbs):
                raise InputError(f"{line}; expected -1 for a thumb down")
            _log.warning("%s; a thumb down is -1", line)
        gained, counted = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
        for event in events:
            pair = event.query, event.document
            if imported:
                gained[pair] += event.value
                counted[pair] += 1.0
            elif event.signal != "thumb" or event.value:  # else it was taken back
                good = event.value > 0
                gained[pair] += good
                counted[pair] += 1.0 if good or event.signal != "click" else event.position**-_ATTENTION
        strength = 0.0 if imported else _PRIOR
        scores = {pair: (strength / 2 + gained[pair]) / (strength + total) for pair, total in counted.items()}
        return cls(scores, scale if imported and scale is not None else Scale("probability"))

    def by_text(self, queries: Mapping[str, str], documents: Mapping[str, str]) -> dict[tuple[str, str], float]:
        """The scores by (query text, document text).

        Pairs of unknown queries and documents are left out; one line in the log counts them.

        Args:
            queries: Text by id; feedback may name a query by either.
            documents: Text by id.

        Raises:
            DataError: Most pairs are of unknown queries or documents.
        """
        texts = frozenset(queries.values())
        table: dict[tuple[str, str], list[float]] = {}
        lost: list[tuple[str, str]] = []
        for (query, document), score in self.scores.items():
            if document in documents and (query in queries or query in texts):
                table.setdefault((queries.get(query, query), documents[document]), []).append(score)
            else:
                lost.append((query, document))
        if lost:
            query, document = lost[0]
            line = (
                f"feedback: {len(lost)} of {len(self.scores)} pairs name a query or a document that is not among the "
                f"{len(queries)} queries and {len(documents)} documents, such as query {query!r:.80} with document "
                f"{document!r:.80}"
            )
            if 2 * len(lost) > len(self.scores):
                raise DataError(f"{line}: expected the ids of both")
            _log.warning("%s: they are left out", line)
        return {pair: sum(scores) / len(scores) for pair, scores in table.items()}
