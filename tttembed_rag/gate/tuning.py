"""A setting of the application's own search, such as a fusion weight, chosen by verdicts under the same gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.measures import served_ndcg
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.case import Case, Terms, gated
from tttembed_rag.gate.fit import check_options, check_rewards
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.questions import learnable
from tttembed_rag.gate.thresholds import LEVEL
from tttembed_rag.offsets.codes import FALLS, MEANS
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray

SettingT = TypeVar("SettingT")
# A search under a setting: the setting, a query vector (d,), and the query's text, or its id where no text is known, to
# ids of documents in the order in which they would be served.
Tunable: TypeAlias = Callable[[SettingT, FloatArray, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Tuned(Generic[SettingT]):
    """A setting, and why.

    Attributes:
        setting: What to serve: the best one where the gate published it, else that of today.
        evidence: What held-out rewards say of choosing it.
    """

    setting: SettingT
    evidence: Evidence

    def __str__(self) -> str:
        """The setting, and why in words."""
        return f"{self.setting!r}: {self.evidence}"


def tune(
    rewards: Rewards,
    search: Tunable[SettingT],
    settings: Sequence[SettingT],
    *,
    trusted: bool | None = None,
    reranked: bool = False,
    vouching: Rewards | None = None,
) -> Tuned[SettingT]:
    """The setting of your own search that verdicts prefer, such as the weight of BM25 beside vectors.

    Lists are compared by nDCG@10 of the rewards; a document that nobody judged has none, so that a setting which brings
    many of them is underrated. The gain is cross-fitted: each fold of queries is measured under the setting that the
    others prefer. A setting moves every list, so it is published where that gain is proven, whoever vouches. To leave
    out what nobody judged, or to publish what is merely expected, gained twice as much and took up to .1 from a
    collection (`benchmarks/words.py`).

    Args:
        rewards: Judged candidates; of several tasks, the setting is one for all.
        search: The setting, a query vector (d,), and the query's text (its id where no text is known) to ids of
            documents, best first. It is asked once for each setting and judged query.
        settings: Two or more, in order; the first is today's.
        trusted: Whether somebody vouches for the judge, as in `fit`; with False nothing is chosen.
        reranked: Whether a reranker sorts what *search* gives, as in `fit`: then as much as it reads, such as the first
            20, is what *search* should give.
        vouching: Rewards by which it is tested whether what was chosen agrees with the retriever, as in `fit`.

    Raises:
        InputError: There are less than two settings, or *search* gives no ids that the rewards know.
    """
    check_rewards(rewards)
    check_options("auto", gate=True, audit=None, trusted=trusted)
    if not callable(search):
        raise InputError(f"search: expected a function of a setting, a vector and a text, got {type(search).__name__}")
    if isinstance(settings, str | set | frozenset | Mapping) or not isinstance(settings, Iterable):
        raise InputError(f"settings: expected a list with today's first, got {settings!r:.80}")
    settings = list(settings)
    if len(settings) < 2:
        raise InputError(f"settings: expected today's and at least one more, got {len(settings)}")
    rewards = rewards if trusted is None else replace(rewards, trusted=trusted, declared_by="")
    terms = Terms(search=partial(search, settings[0]), reranked=reranked, vouching=vouching)
    case = Case.of(rewards, gated(Recipe(), rewards), terms)
    base = learnable(case)
    if isinstance(base, Evidence):
        return Tuned(settings[0], base)
    vectors = case.rewards.query_vectors
    others = [served_ndcg(case.rewards, partial(search, other), vectors, reranked=reranked) for other in settings[1:]]
    measured = np.array([base, *others])
    folds = np.unique(case.fold)
    learning = [case.fold != fold for fold in folds]
    best_without = [int(np.argmax(measured[:, rows] @ case.voices[rows])) for rows in learning]
    chosen = np.array(best_without)[np.searchsorted(folds, case.fold)]
    changes = measured[chosen, np.arange(len(chosen))] - measured[0]
    change = Gain.measured(changes, case.measured, case.groups, most=float(case.measured.sum()))
    best = int(np.argmax(measured @ case.voices))
    evidence = case.evidence(f"a setting of the search, {case.questions} held-out queries", change)
    if case.voucher == "nobody":
        return Tuned(settings[0], evidence.denied_by(MEANS, "nobody vouches for the judge"))
    if change.below(LEVEL) <= 0:
        why = "their lists get no better" if change.mean <= 0 else "the improvement is within its error"
        return Tuned(settings[0], evidence.denied_by(FALLS, why))
    return Tuned(settings[best], evidence.noted(f"their lists get better (p < {LEVEL:g})"))
