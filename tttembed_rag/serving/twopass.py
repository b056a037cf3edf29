"""Two searches for one request: a judge scores the documents of the first, and its rewards steer the second.

`TwoPass.steps` is the whole loop and does no work of its own: it yields a question for everything that it needs, and
`drive` or `adrive` answers from the application, so that the loop is the same in every framework, sync and async.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError, RewardError
from tttembed_rag.gate.fit import fit
from tttembed_rag.offsets.orders import in_fused_order, in_reward_order
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.serving.steering import Request, cosines_of
from tttembed_rag.system.failures import FailureLog
from tttembed_rag.vectors.checks import as_floats

Document = TypeVar("Document")
ResultT = TypeVar("ResultT")
# A question of the loop to the application: about a query, a query vector (d,), texts, or documents.
Question: TypeAlias = tuple[Literal["embed", "search", "judge", "vectors"], Any]


class FirstPass(Generic[Document]):
    """The documents of a first search with the rewards of a judge.

    Args:
        documents: The documents, in order.
        rewards: In [0, 1], one for each of the first documents; NaN where it was not judged.
        key: The same for one document in two searches. Documents of one search with equal keys are told apart by place.

    Attributes:
        judged: The documents with a reward.
    """

    def __init__(self, documents: Sequence[Document], rewards: ArrayLike, key: Callable[[Document], Hashable]) -> None:
        self._documents, self._key = documents, key
        first = zip(self._keyed(documents).items(), np.asarray(rewards, dtype=np.float64).tolist(), strict=False)
        rewarded = [(keyed, reward) for keyed, reward in first if not np.isnan(reward)]
        self.judged = [document for (_, document), _ in rewarded]
        self._rewards = {key: reward for (key, _), reward in rewarded}

    @property
    def informative(self) -> bool:
        """Whether the rewards differ: equal ones cannot turn a query."""
        return len(set(self._rewards.values())) > 1

    def turned(self, query_vector: ArrayLike, document_vectors: ArrayLike) -> list[float]:
        """The vector of the second search: *query_vector* with the private offset of these rewards.

        The paper's rule at scope ``query``, ungated: one query holds nothing out, and serves no other.

        Args:
            query_vector: (d,) vector of the first search.
            document_vectors: (k, d) vectors of the judged documents.

        Raises:
            VectorError: A vector is NaN, infinite, zero or of another width.
        """
        vector = as_floats("query_vector", query_vector).astype(np.float64)
        scores = list(self._rewards.values())
        rewards = Rewards.from_arrays(vector[None], [np.asarray(document_vectors)], [scores], query_ids=["it"])
        steered: list[float] = fit(rewards, scope="query", gate=False).apply(vector, query_id="it").tolist()
        return steered

    def reranked(self) -> list[Document]:
        """The documents of the first search, judged ones in the order of their rewards."""
        return self._ordered(self._documents, in_reward_order)

    def merged(self, again: Sequence[Document]) -> list[Document]:
        """The documents of the second search, judged ones by their rewards and their places in it.

        With a real cross-encoder's verdicts on ten documents, nDCG@10 was above that of `reranked` on all
        nine collections, by .003 to .039, with an interval above zero on seven; and above that of the
        order of rewards alone on eight (benchmarks/twopass.py).
        """
        return self._ordered(again, in_fused_order)

    def _ordered(
        self, ranked: Sequence[Document], order: Callable[[list[Hashable], dict[Hashable, float]], list[Hashable]]
    ) -> list[Document]:
        keyed = self._keyed(ranked)
        by_key = self._keyed(self._documents) | keyed
        return [by_key[key] for key in order(list(keyed), self._rewards)]

    def _keyed(self, documents: Sequence[Document]) -> dict[Hashable, Document]:
        """Documents by key and how often that came before."""
        keys = [self._key(document) for document in documents]
        return {(key, keys[:n].count(key)): documents[n] for n, key in enumerate(keys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPass(Generic[Document]):
    """The loop of a retriever: search, judge, record, learn, and search again.

    Attributes:
        request: Query to the request that steers its searches and sorts what they find, such as `Steering.request`.
        read: Document to the text that the judge reads.
        rewards: Scores to rewards in [0, 1], NaN where there is none.
        key: As for `FirstPass`.
        record: Takes the request, the base vector, the judged documents and their scores.
        logger: Logger of failures; a `FailureLog` says one line a minute.
        depth: Documents judged; None judges all that the first search gave.
        sorts: Whether what each search finds is sorted by words too, the first before the judge reads *depth* of it.
        second_pass: Whether to search again; without, documents come in the order of their rewards.
    """

    request: Callable[[str], Request]
    read: Callable[[Document], str]
    rewards: Callable[[Sequence[float | None]], ArrayLike]
    key: Callable[[Document], Hashable]
    record: Callable[[Request, list[float], list[Document], Sequence[float | None]], None]
    logger: logging.Logger | FailureLog
    depth: int | None = None
    sorts: bool = False
    second_pass: bool = True

    def steps(self, query: str) -> Generator[Question, Any, list[Document]]:
        """The questions about one query, each to be sent its answer; returns the documents in their new order.

        A failure after the first search, thrown in or its own, is logged, and that search's documents are returned.
        """
        request = self.request(query)
        base = yield "embed", query
        vector = request.vector(base)
        documents: list[Document] = yield "search", vector
        try:
            documents = yield from self._sorted(request, vector, documents)
            shown = documents[: self.depth]
            scores = yield "judge", [self.read(document) for document in shown]
            first = FirstPass(documents, self.rewards(scores), self.key)
            self.record(request, base, shown, scores)
            if shown and not first.judged:
                raise RewardError(f"judge: expected a score of one of {len(shown)} documents at least, got none")
            if not (self.second_pass and first.informative):
                return first.reranked()
            vectors = yield "vectors", first.judged
            turned = first.turned(vector, vectors)
            again: list[Document] = yield "search", turned
            return first.merged((yield from self._sorted(request, turned, again)))
        except Exception:
            self.logger.exception("a query is served as first found")
            return documents

    def _sorted(
        self, request: Request, vector: list[float], documents: list[Document]
    ) -> Generator[Question, Any, list[Document]]:
        """What a search with *vector* found, sorted by words where a rescorer is published."""
        if not (self.sorts and request.needs_scores):
            return documents
        vectors = yield "vectors", documents
        texts = [self.read(document) for document in documents]
        return [documents[place] for place in request.order(texts, cosines_of(vector, vectors))]


def drive(steps: Generator[tuple[str, Any], Any, ResultT], **handlers: Callable[[Any], Any]) -> ResultT:
    """The result of *steps*, each question answered in turn; an answer that fails is thrown into them.

    Args:
        steps: The questions about one query, such as those of `TwoPass.steps`.
        **handlers: What answers the questions of its name: *embed*, query to its base vector (d,); *search*, query
            vector (d,) to documents, best first; *judge*, texts to scores; *vectors*, documents to vectors (k, d).
    """
    driven = adrive(steps, **handlers)
    try:
        driven.send(None)  # no handler waits for anything, so that it ends at once
    except StopIteration as end:
        result: ResultT = end.value
        return result
    driven.close()
    raise InputError("handlers: expected functions, got a coroutine function")


async def adrive(steps: Generator[tuple[str, Any], Any, ResultT], **handlers: Callable[[Any], Any]) -> ResultT:
    """`drive` with coroutine functions as handlers."""
    try:
        what, about = next(steps)
        while True:
            try:
                answer = handlers[what](about)
                answer = await answer if isawaitable(answer) else answer
            except Exception as exc:  # noqa: BLE001 - the steps decide whether it ends them
                what, about = steps.throw(exc)
            else:
                what, about = steps.send(answer)
    except StopIteration as end:
        result: ResultT = end.value
        return result
