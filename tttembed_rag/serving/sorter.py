"""What a search found, as it is served: nothing where a floor refuses it, else sorted by words and by a reranker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tttembed_rag.errors import InputError, check_share
from tttembed_rag.serving.cascade import Cascade
from tttembed_rag.serving.steering import Request, Similarity

# Places of a list, best first, each with how likely its document is relevant; None where that is not known.
Order: TypeAlias = list[tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class Sorter:
    """The order in which a host serves its lists.

    Args:
        cascade: A reranker, asked only where its answer may change the list; None asks none.
        floor: Share of requests that may lose an answer: see `Offsets.floor`. None refuses no list.
        similarity: Score to cosine similarity; None where scores are cosines.

    Raises:
        InputError: *cascade* is none, or *floor* is no share.
    """

    cascade: Cascade | None = None
    floor: float | None = None
    similarity: Similarity = None

    def __post_init__(self) -> None:
        if self.cascade is not None and not isinstance(self.cascade, Cascade):
            raise InputError(f"cascade: expected a Cascade, got {type(self.cascade).__name__}")
        if self.floor is not None:
            check_share("floor", self.floor)

    def order(self, request: Request, texts: Sequence[str], scores: Sequence[float | None]) -> Order:
        """Places of what a search found, with relevance where there is a floor; empty where nothing fits.

        Args:
            request: The request whose vector was searched with: see `Steering.request`.
            texts: Texts of the k candidates, in the order of the search.
            scores: Their scores, as the search gives them.
        """
        relevance, refused = self._relevance(request, texts, scores)
        if self.cascade is None:
            places = request.order(texts, scores, similarity=self.similarity)
        else:
            places = self.cascade.order(request, texts, scores, similarity=self.similarity, refused=refused)
        return [] if refused else [(place, relevance[place]) for place in places]

    async def aorder(self, request: Request, texts: Sequence[str], scores: Sequence[float | None]) -> Order:
        """`order`, without blocking the event loop."""
        if self.cascade is None:
            return self.order(request, texts, scores)
        relevance, refused = self._relevance(request, texts, scores)
        places = await self.cascade.aorder(request, texts, scores, similarity=self.similarity, refused=refused)
        return [] if refused else [(place, relevance[place]) for place in places]

    def _relevance(
        self, request: Request, texts: Sequence[str], scores: Sequence[float | None]
    ) -> tuple[Sequence[float | None], bool]:
        """How likely each is relevant, and whether the floor refuses all."""
        relevance = None if self.floor is None else request.relevance(texts, scores, similarity=self.similarity)
        return relevance or [None] * len(texts), request.refuses(relevance, self.floor)
