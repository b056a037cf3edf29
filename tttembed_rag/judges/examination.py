"""The examination of a judge: pairs of texts with an order that nobody doubts, asked about once before it is believed.

Questions come in twos: the right document of each is the wrong one of the other, and both are asked with the documents
in the same order. So a score that knows the document alone (its length, its place, a number of its own) has half of the
questions right, and so has the number of shared words: it is larger for the right document of a third of the questions,
for the wrong one of another third, and nearly none in the last. A judge that guesses passes less than once in 1,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.errors import JudgeError
from tttembed_rag.judges.contract import Judge, Request, Scores, checked_judge, checked_rewards, scored_many

# Questions that must be right: a judge that guesses has as many of 24 right with p < .001, by the binomial test.
_NEEDED = 20


@cache
def questions() -> Sequence[Request]:
    """Queries, each with the documents that a judge scores for it: the right one is the first and second in turn."""
    # Four columns: a question and its answer, and its twin with its own.
    table = files("tttembed_rag.judges").joinpath("examination.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines()]
    return [(query, row[1::2]) for row in rows for query in row[::2]]


@cache
def answers() -> Mapping[str, str]:
    """The right document of each query."""
    return {query: documents[place % 2] for place, (query, documents) in enumerate(questions())}


def examination_keys(judge: str, some: Sequence[Request] | None = None) -> list[bytes]:
    """The addresses of the pairs of the examination of the judge with that fingerprint, or of *some* questions.

    No other pair has such an address, whatever its texts.
    """
    of = f"examination of {judge}"
    return [pair_key(of, query, text) for query, texts in some or questions() for text in texts]


def has_passed(judge: str, answers: Callable[[Sequence[bytes]], Mapping[bytes, object]]) -> bool:
    """Whether *answers* gives an answer to each pair of the examination: those of a judge that fails are not kept."""
    keys = examination_keys(judge)
    return answers(keys).keys() >= set(keys)


def check_judge(judge: Judge) -> None:
    """Examine *judge*: a judge that is as good as chance on pairs of texts with an order that nobody doubts is refused.

    A reranker behind a wrong prompt template answers fluently and scores at random: this examination finds out before
    its scores are paid for. It asks for the scores of two documents for each of 24 queries.

    Args:
        judge: Any judge with a calibrated scale.

    Raises:
        JudgeError: It puts the right document first for fewer than 20 of the queries.
    """
    checked_judge(judge)
    check_answers(judge, [score for scores in scored_many(judge, questions()) for score in scores])


def check_answers(judge: Judge, scores: Scores) -> None:
    """Refuse a judge by its *scores* of both documents of all questions, or of the first ones.

    Raises:
        JudgeError: Too few of the right documents are first; the message shows a question with a wrong order.
    """
    rewards = checked_rewards(judge, scores).reshape(-1, 2)
    rewards[1::2] = rewards[1::2, ::-1]  # the right one first
    right, of = rewards[:, 0] > rewards[:, 1], len(rewards)  # NaN is never right
    if right.sum() >= min(_NEEDED, of):
        return
    wrong, silent = int(right.argmin()), sum(score is None for score in scores)
    why = "is it a reranker, does its server apply the model's prompt template, and is more better on its scale?"
    if silent and (silence := str(getattr(judge, "silence", ""))):
        why = f"{silent} of {len(scores)} documents have no score: {silence}"
    reversed_ = (rewards[:, 0] < rewards[:, 1]).sum()
    raise JudgeError(
        f"{judge.fingerprint}: expected to pass its examination, got {right.sum()} of {of} questions right and "
        f"{reversed_} reversed; to {questions()[wrong][0]!r} the right document has the reward "
        f"{rewards[wrong, 0]:.3f}, a plainly wrong one {rewards[wrong, 1]:.3f} ({why})"
    )
