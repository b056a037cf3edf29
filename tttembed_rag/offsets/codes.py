"""Every verdict by its stable code, and the questions that the gate asks, in the order of the codes.

`tttembed_rag.gate.questions` has the function that asks each. `docs/generate.py` makes a page of each: how it is
answered, and what the owner of an offset can do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A question that the gate, or the solver, asks of an offset.

    Attributes:
        code: Stable name of the answer that decides against an offset.
        asks: The question.
        answer: What the offset's evidence says where the question decides against it.
        change: What would change that decision; empty where nobody can say.
    """

    code: str
    asks: str
    answer: str
    change: str = ""


PUBLISHED = "TTT-G00"
COMPARE = Question(
    "TTT-G01",
    "Is there something to compare?",
    "there is nothing to compare",
    "it takes more questions, each with several documents that differ",
)
MEANS = Question(
    "TTT-G02",
    "Do the rewards mean something?",
    "nobody vouches for the rewards, or they contradict the retriever",
    "it takes more judged questions, or a judge whose order you serve",
)
FALLS = Question(
    "TTT-G03",
    "Does the loss of held-out queries fall?",
    "held-out queries are not ranked better, or not surely",
    "it takes more judged questions",
)
EXPOSED = Question(
    "TTT-G04",
    "Does no document rise or fall in everybody's list, whatever is asked?",
    "documents move in too many lists, whatever is asked",
    "it takes verdicts on these documents for more questions",
)
AUDITED = Question(
    "TTT-G05",
    "Do trusted labels confirm the gain?",
    "trusted labels do not confirm it",
    "it takes a judge that trusted labels confirm",
)
UNSOLVED = Question("TTT-G06", "Did the solver reach an optimum?", "the solver did not reach an optimum")
# Why nothing can be gained from a judge, which is no failure.
NOTHING_TO_GAIN = "your search already sorts these documents as they were judged"
# What the gate asks, and whatever decides against an offset.
QUESTIONS = (COMPARE, MEANS, FALLS, EXPOSED, AUDITED)
ANSWERS = (*QUESTIONS, UNSOLVED)
# Why a cascade asks its reranker about every list although something was certified: what it lost, and another judge.
LOST, OTHER_JUDGE = "TTT-C01", "TTT-C02"
