"""Whether rewards follow something else than relevance: the length of a document, its age, or its place in base order.

Within each query, the rewards are compared with the lengths, with the ages and with the base similarities of its
documents by Spearman's rank correlation. A judge that reads the query agrees with similarity more than with length or
age; where rewards surely follow one of these more, they say little of the query. Rewards that all but repeat base order
may be clicks on what stood first, and those that all but repeat the number of shared words a judge that counts them:
the mean correlation of labels with shared words is below .4 on the collections of `benchmarks/poison.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.rows import Float64

# Queries with candidates that differ in reward, at least, and of how many at most are looked at.
_LEAST, _MOST = 10, 2000
# One-sided normal quantile at 5 %.
_SURE: Final = 1.645
# Mean correlations that are worth a line: with length or age, and with base order or shared words.
_OTHER, _REPEATS = 0.2, 0.9
_WORD = re.compile(r"\w+")

# The texts of queries and of documents by their ids.
Texts: TypeAlias = tuple[Mapping[str, str], Mapping[str, str]]


def warnings_of(
    rewards: Rewards,
    lengths: Mapping[str, int] | None = None,
    arrivals: Mapping[str, int] | None = None,
    texts: Callable[[Rewards], Texts] | None = None,
) -> list[str]:
    """A line for each thing that explains *rewards* better than relevance seems to; they warn, and refuse nothing.

    What is known of documents stands by their ids: the characters of their texts, and numbers that are larger for one
    that was first served later. *texts* gives those of some rewards; where one is missing, words are not looked at.
    """
    rows = np.flatnonzero((rewards.reach > 0) & (rewards.depths > 2))
    if len(rows) < _LEAST:
        return []
    some = rewards.take(np.sort(np.random.default_rng(0).permutation(rows)[:_MOST]))
    similarity = np.concatenate(
        [
            some.documents.rows(some.candidates[begin:end]).unit @ some.queries.rows(np.array([row])).unit[0]
            for row, (begin, end) in enumerate(pairwise(some.starts))
        ]
    )
    within = "Spearman's correlation within queries"
    near = spearman(some, similarity)
    lines = []
    if near.mean() > _REPEATS:
        lines.append(
            f"rewards repeat the order in which documents were found ({within} {near.mean():+.2f}): are they clicks on "
            "what stood first?"
        )
    words = None if texts is None else shared_words(some, *texts(some))
    if words is not None and (shared := spearman(some, words).mean()) > _REPEATS:
        lines.append(
            f"rewards repeat how many words documents share with their query ({within} {shared:+.2f}): does the judge "
            "do more than count them?"
        )
    features = (
        ("the length of documents", lengths, "longer", "shorter"),
        ("when documents were first served", arrivals, "later", "earlier"),
    )
    for name, values, more, less in features:
        known = [(values or {}).get(document) for document in some.doc_ids.tolist()]
        if None in known:
            continue
        other = spearman(some, np.array(known, dtype=np.float64)[some.candidates])
        sign = 1.0 if other.mean() > 0 else -1.0
        excess = sign * other - near
        if abs(other.mean()) > _OTHER and excess.mean() > _SURE * excess.std(ddof=1) / np.sqrt(len(excess)):
            lines.append(
                f"rewards follow {name}, {more if sign > 0 else less} is better ({within} {other.mean():+.2f}), more "
                f"than their similarity to the query ({near.mean():+.2f}): what does the judge read?"
            )
    return lines


def shared_words(rewards: Rewards, queries: Mapping[str, str], documents: Mapping[str, str]) -> Float64 | None:
    """(N,) how many distinct words each candidate shares with its query; None where a text is missing."""
    query_texts = [queries.get(name) for name in rewards.query_ids.tolist()]
    document_texts = {row: documents.get(str(rewards.doc_ids[row])) for row in np.unique(rewards.candidates).tolist()}
    if None in query_texts or None in document_texts.values():
        return None
    of_query = [set(_WORD.findall(str(text).lower())) for text in query_texts]
    of_document = {row: set(_WORD.findall(str(text).lower())) for row, text in document_texts.items()}
    query = np.repeat(np.arange(len(rewards)), rewards.depths).tolist()
    pairs = zip(query, rewards.candidates.tolist(), strict=True)
    return np.array([len(of_query[q] & of_document[d]) for q, d in pairs], dtype=np.float64)


def spearman(rewards: Rewards, feature: Float64) -> Float64:
    """(n,) Spearman's rank correlation of rewards and a *feature* (N,) within each query; 0 where the feature is one.

    Every query's rewards must differ.
    """
    from scipy.stats import rankdata

    result = np.zeros(len(rewards))
    for row, (begin, end) in enumerate(pairwise(rewards.starts)):
        x, y = (rankdata(values[begin:end]) for values in (rewards.values, feature))
        x, y = x - x.mean(), y - y.mean()
        if y.any():
            result[row] = x @ y / np.sqrt((x @ x) * (y @ y))
    return result
