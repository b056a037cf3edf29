"""Feedback of users as rewards: thumbs, clicks, task success, and judgments made elsewhere.

A click says little without the place of its document: a document that the user never looked at was not
rejected. With examination probability e_p at place p and prior strength m, the reward of a pair is
the posterior mean (m/2 + sum good) / (m + sum (good + e_p bad)), in [0, 1].
"""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
# Words for a reward, and a number whose comma may divide thousands or be a decimal one.
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
_UNCLEAR = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_TOLD = {"thumb": "up, down, 1 or -1", "click": "1 or 0", "success": "1 or 0"}
# Words for a vote, in small letters.
_UP = ["up", "yes", "y", "true", "+", "like", "liked", "good", "positive", "helpful", "thumbs up"]
_DOWN = ["down", "no", "n", "false", "-", "dislike", "disliked", "bad", "negative", "unhelpful", "thumbs down"]
WORDS = dict.fromkeys([*_UP, "thumbs_up", "\U0001f44d"], True)
WORDS |= dict.fromkeys([*_DOWN, "not helpful", "thumbs_down", "\U0001f44e"], False)


@dataclass(frozen=True, slots=True)
class Event:
    """One action of a user, or one judgment. It has no time: a store dates it, and nothing weighs it by its age.

    Votes that fade would take a time here, in the columns of `tttembed_rag.rewards.rows` and in `Rewards`, a factor in
    `tttembed_rag.fitting.voices`, and the signal in the store's table of rewards, which has the time.

    Attributes:
        query: Id or text of the query.
        document: Id of the document.
        signal: ``thumb``, ``click``, ``success`` or ``judgment``.
        value: As `SIGNALS` says: of a thumb 1 is up, -1 down, 0 taken back; else 1 or 0, or the grade of a judgment.
        position: Place at which the document was shown, from 1; only clicks need it.
        source: Who did it; empty where that is not known. Of the thumbs of a source for a pair, the last counts.
    """

    query: str
    document: str
    signal: str
    value: float
    position: int = 1
    source: str = ""

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
        check_thumbs(events)
        scores = scores_of(events)
        if events[0].signal != "judgment":
            return cls(scores, Scale("probability"))
        if scale is None:
            raise InputError("scale: expected one for judgments, such as rubric:0,3, got none")
        return cls(scores, scale)

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


def value_of(signal: str, value: Any, *, column: str = "") -> float:
    """The number that *value* is, with a decimal point or comma.

    A vote may be a word, as a reward may be true, false, yes or no; of a thumb, false is down.
    """
    number, unclear = value, isinstance(value, str) and _UNCLEAR.fullmatch(value.strip())
    if isinstance(value, str) and not unclear:
        words = WORDS if signal in _TOLD else _TRUTHS if signal == "reward" else {}
        word = value.strip().lower()
        number = words.get(word, word.replace(",", "."))
    with suppress(OverflowError, TypeError, ValueError):
        known = -1.0 if signal == "thumb" and number is False else float(number)
        if math.isfinite(known):
            return known
    got = "nothing" if value is None or value == "" else f"{value!r:.40}"
    got += ", whose comma may divide thousands" if unclear else ""
    raise InputError(f"{column or signal}: expected {_TOLD.get(signal, 'a number')}, got {got}")


def check_thumbs(events: Sequence[Event]) -> None:
    """Refuse *events* whose thumbs are mostly 0, as of somebody who writes a thumb down so; warn of fewer."""
    thumbs = [event.value for event in events if event.signal == "thumb"]
    if silent := thumbs.count(0.0):
        line = f"value: {silent} of {len(thumbs)} thumbs are 0, a thumb taken back, which is neither up nor down"
        if 2 * silent > len(thumbs):
            raise InputError(f"{line}; expected -1 for a thumb down")
        _log.warning("%s; a thumb down is -1", line)


def scores_of(events: Sequence[Event]) -> dict[tuple[str, str], float]:
    """The reward of each (query, document) of *events*, or the mean of its grades; a thumb taken back is one half."""
    graded = {event.signal == "judgment" for event in events}
    if len(graded) != 1:
        raise InputError(f"events: expected judgments or behaviour, got {'both' if graded else 'none'}")
    last: dict[tuple[str, ...] | int, Event] = {}
    for number, event in enumerate(events):
        of_source = event.signal == "thumb" and event.source
        last[(event.query, event.document, event.source) if of_source else number] = event
    gained, counted = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
    for event in last.values():
        pair, value = (event.query, event.document), event.value
        weight = event.position**-_ATTENTION if event.signal == "click" and not value else 1.0
        gained[pair] += value if graded == {True} else value > 0
        counted[pair] += abs(value) if event.signal == "thumb" else weight
    strength = 0.0 if graded == {True} else _PRIOR
    return {pair: (strength / 2 + gained[pair]) / (strength + total) for pair, total in counted.items()}
