"""What people say of an answer, as weak rewards of the documents that were retrieved for it.

A thumb is one event, and the answer stands on all documents of its trace. Each of k documents is credited with a part
of the event: the posterior mean is (k/2 + value) / (k + 1), with the value in [0, 1]. Nobody vouches for such rewards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.scales import Scale
from tttembed_store.spans.reading import Span


class Thumb(NamedTuple):
    """What a *source* said of the answer of a trace: yes or no, or a number on a scale."""

    trace_id: str
    value: float | bool
    source: str
    at: float


def thumbed(queries: Sequence[tuple[Span, Served]], thumbs: Iterable[Thumb], scale: Scale) -> list[Served]:
    """Each of the *queries*, which spans served, once for every source with a thumb for its trace, with its rewards.

    A query without a thumb stays as it is. Of several thumbs of a source for a trace, the last counts.

    Raises:
        RewardError: A value lies off the *scale*.
    """
    by_trace: dict[str, dict[str, Thumb]] = defaultdict(dict)
    for thumb in sorted(thumbs, key=lambda thumb: thumb.at):
        by_trace[thumb.trace_id][thumb.source] = thumb
    counts: Counter[str] = Counter()
    for span, served in queries:
        counts[span.trace_id] += sum(bool(candidate.text) for candidate in served.candidates)
    rewarded: list[Served] = []
    for span, served in queries:
        count, of_trace = counts[span.trace_id], by_trace[span.trace_id]
        for thumb in of_trace.values():
            value = float(scale.to_unit(np.array([thumb.value]))[0]) if type(thumb.value) is not bool else thumb.value
            reward = (count / 2 + value) / (count + 1)
            candidates = [replace(candidate, reward=reward) for candidate in served.candidates]
            rewarded.append(replace(served, candidates=candidates, source=thumb.source))
        if not of_trace:
            rewarded.append(served)
    return rewarded
