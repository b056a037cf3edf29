"""A floor: how likely a candidate is relevant, and the likelihood below which nothing that was found fits.

What is known of a candidate is how similar it is, how far it stands above its list, how much of the query its words
cover, and whether the query lies among those that the task is asked. All mean the same at any number of verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError, VectorError, check_share
from tttembed_rag.offsets.rescorer import Vocabulary
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.rows import Float64

# Documents of a list that a floor looks at: as many as were judged, mostly.
LIST = 10
# What is known of a candidate: cosine, cosine above the median of its list, share of the query's words, and by how much
# less than others the query is like those of the task.
KNOWN = 4
# The confidence of a floor, and the share of requests that may lose an answer where nobody says how many.
CONFIDENCE, LOST = 0.9, 0.05
# Questions that have an answer from which on a certificate is of them alone: as many as a first cut takes.
FEWEST = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - LOST))


@dataclass(frozen=True, slots=True, eq=False)
class Floor:
    """How likely candidates of a task are relevant in the judge's terms, and what own requests say of refusing.

    Attributes:
        weights: The intercept, and the weights of what is known of a candidate.
        centre: (1, d) mean of the unit base vectors of own queries.
        typical: The mean cosine of own queries to it, times its length.
        n: Different own questions behind the certificate.
        lowest: The lowest likelihoods of their best candidates, rising; each by what was learned without the question.
        alike: Cosines to `centre` are worth so much of a candidate's: a query that lies further from it than own ones
            do needs a candidate that is nearer by as much.
        cosines: The lowest cosines of their best candidates, rising, that of a question far from `centre` being lowered
            so; each by what was learned without the question.
        lost: Upper bounds (90 %) of the share of them that is refused below each of these: the exact ones of the
            binomial distribution (Clopper and Pearson 1934).
        answered: Whether only questions that have an answer are counted. Where fewer than `FEWEST` have one, all
            are, which is the safe side: a question without an answer is refused more often. Without verdicts, what
            `relevance` gives sorts lists, but is no probability.
    """

    weights: tuple[float, ...]
    centre: FloatArray
    typical: float
    n: int
    lowest: tuple[float, ...]
    alike: float
    cosines: tuple[float, ...]
    lost: tuple[float, ...]
    answered: bool = True

    def relevance(
        self, known: Vocabulary | None, query: str, texts: Sequence[str], cosines: ArrayLike, vector: FloatArray | None
    ) -> Float64:
        """(k,) how likely each candidate is relevant; see `knowledge`."""
        features = knowledge(known, query, texts, cosines, 0.0 if vector is None else self._apart(vector))
        return np.asarray(1.0 / (1.0 + np.exp(-(self.weights[0] + features @ np.array(self.weights[1:])))))

    def cut(self, lost: float = LOST) -> float | None:
        """The likelihood below which the best candidate is no answer; None where too few questions are known.

        With 90 % confidence at most a share *lost* of the requests that have an answer are refused.

        Raises:
            InputError: *lost* is no share of requests.
        """
        return self._certified(self.lowest, lost)

    def cosine(self, vector: FloatArray | None = None, lost: float = LOST) -> float | None:
        """The cosine to its steered vector below which nothing answers a query: for a search that knows nothing else.

        It is higher where its base *vector* (d,) is less like own queries than they are; without it, that of a typical
        one.
        """
        cut = self._certified(self.cosines, lost)
        return cut if cut is None or vector is None else cut - self.alike * self._apart(vector)

    def _apart(self, vector: FloatArray) -> float:
        """By how much less than own queries a base *vector* (d,) is like them: 0 or below."""
        length = max(math.sqrt(float(vector @ vector)), 1e-12)
        return min(float(self.centre[0] @ vector) / length - self.typical, 0.0)

    def _certified(self, rising: tuple[float, ...], lost: float) -> float | None:
        check_share("lost", lost)
        refused = sum(bound <= lost for bound in self.lost)
        return rising[refused - 1] if refused else None

    def missing(self, lost: float = LOST) -> int:
        """How many more own questions a first cut takes."""
        return max(math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - lost)) - self.n, 0)

    def sentence(self, lost: float = LOST) -> str:
        """What is certified, in words."""
        if (cut := self.cut(lost)) is None:
            return f"no floor: {self.missing(lost)} more judged questions certify one"
        cuts = f"a relevance of {cut:.2g}, by the cosine alone {self.cosine(lost=lost):.3g}"
        requests = "own requests that have an answer" if self.answered else "own requests, with an answer or without,"
        return f"nothing fits below {cuts}: at most {lost:.0%} of {requests} are refused (90 %)"

    def check(self, name: str, width: int) -> None:
        """Refuse numbers that no list could be held against; the line begins with *name*."""
        if len(self.weights) != 1 + KNOWN:
            raise InputError(f"{name}: expected {1 + KNOWN} weights of a floor, got {len(self.weights)}")
        if self.centre.shape != (1, width) or not np.isfinite(self.centre).all():
            raise VectorError(f"{name}: expected a finite centre of shape (1, {width}), got {self.centre.shape}")


def knowledge(
    known: Vocabulary | None, query: str, texts: Sequence[str], cosines: ArrayLike, apart: float = 0.0
) -> Float64:
    """(k, 4) what is known of the candidates of a *query* with these *cosines*, which lies *apart* from others.

    Without words that are *known*, without texts, or without words in the query, nothing is covered.
    """
    cosines = np.asarray(cosines, dtype=np.float64)
    first = np.sort(-cosines)[:LIST]  # by hand, as `np.median` takes longer than all the rest
    middle = -(first[(len(first) - 1) // 2] + first[len(first) // 2]) / 2 if len(first) else 0.0
    covered = known.covered(query, texts) if known is not None and len(texts) else np.zeros(len(cosines))
    return np.stack([cosines, cosines - middle, covered, np.full(len(cosines), apart)], axis=1)
