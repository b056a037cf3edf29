"""What people said of an answer, as weak rewards of the documents that were retrieved for it.

A thumb is one event, and the answer stands on all documents of its trace. Each of k documents is credited with a part
of the event: the posterior mean is (k/2 + value) / (k + 1), with the value in [0, 1]. Nobody vouches for such rewards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tttembed_rag.rewards.scales import Scale
from tttembed_store.spans.reading import Retrieval


class Thumb(NamedTuple):
    """What a *source* said of the answer of a trace: yes or no, or a number on a scale."""

    trace_id: str
    value: float | bool
    source: str
    at: float


def thumbed(retrievals: Sequence[Retrieval], thumbs: Iterable[Thumb], scale: Scale) -> list[Retrieval]:
    """Each of *retrievals* once for every source that said something of its trace, with the rewards that it gives.

    A retrieval without a thumb stays as it is. Of what a source says several times of a trace, the last counts.

    Raises:
        RewardError: A value lies off the *scale*.
    """
    said: dict[str, dict[str, Thumb]] = defaultdict(dict)
    for thumb in sorted(thumbs, key=lambda one: one.at):
        said[thumb.trace_id][thumb.source] = thumb
    shown: Counter[str] = Counter()
    for one in retrievals:
        shown[one.span.trace_id] += len(one.documents)
    found: list[Retrieval] = []
    for one in retrievals:
        count, given = shown[one.span.trace_id], said[one.span.trace_id]
        for thumb in given.values():
            value = float(scale.to_unit(np.array([thumb.value]))[0]) if type(thumb.value) is not bool else thumb.value
            reward = (count / 2 + value) / (count + 1)
            found.append(replace(one, scores=[reward] * len(one.documents), source=thumb.source))
        if not given:
            found.append(one)
    return found
