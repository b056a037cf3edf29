"""Which lists need no reranker: those whose first candidate leads the second by enough, by what kept verdicts say."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

# The shares of requests of which it is asked what they lose, each with those that lead by more.
SHARES = 40


@dataclass(frozen=True, slots=True)
class Skips:
    """What is lost where no reranker is asked about lists whose first candidate leads the second by so much.

    Attributes:
        leads: The least lead among the 1/40 of all lists that lead most, among the 2/40 that lead most, and so on; in
            the scores that sort the list: the rescorer's where the task has one, else cosines.
        lost: Upper bounds (90 %) of the mean loss of nDCG@10 over all requests, of the judge, where these lists are
            served as they are; never falling.
        depth: How deep the lists were judged: a deeper reranker loses more.
        best: Digests of the texts of documents that had the best reward of a judged list: the others are not believed
            to lead before a reranker has put them first.
    """

    leads: tuple[float, ...]
    lost: tuple[float, ...]
    depth: int
    best: tuple[str, ...] = ()

    def lead(self, loss: float) -> float:
        """The least lead that is certified to lose at most *loss*; infinite where none is."""
        return self.leads[fits - 1] if (fits := self._fits(loss)) else math.inf

    def share(self, loss: float) -> float:
        """The share of judged queries whose lists lead by so much."""
        return self._fits(loss) / SHARES

    def summary(self, loss: float) -> str:
        """What *loss* buys, in words; empty where nothing is certified."""
        if not self._fits(loss):
            return ""
        return (
            f"a cascade skips the reranker in {self.share(loss):.0%} of requests: at most {loss:g} nDCG@10 lost (90 %)"
        )

    def has_led(self, text: str) -> bool:
        """Whether the document *text* had the best reward of a judged list."""
        return digest_of(text) in self.best

    def _fits(self, loss: float) -> int:
        return sum(lost <= loss for lost in self.lost)


def digest_of(text: str) -> str:
    """What `Skips` calls the *text* of a document."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
