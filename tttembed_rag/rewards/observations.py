"""A query that was served, its candidates and their rewards: what every verb before the fit hands on.

A tap, a log, a span, a file of votes and an endpoint of feedback make `Served`; a store writes and gives it, and judges
are asked about it. `tttembed_rag.Rewards` holds many of them as columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.vectors.checks import FloatArray

__all__ = ["MAX_DEPTH", "MAX_SOURCES", "Candidate", "Served"]

# Candidates of a query that are kept, and learned from, at most: more teach little, and cost much.
MAX_DEPTH = 200
# Sources whose rewards of one pair of query and document are kept side by side at most, the last ones that spoke.
MAX_SOURCES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A document that was shown for a query.

    Attributes:
        doc_id: Its id, the same wherever it is shown to the same tenant; empty where a store makes one of the text.
        vector: (d,) as it lies in the index; None while it is not known: it takes part in no fit until then.
        text: What a judge reads; empty where that is not known or not to be kept.
        reward: In [0, 1]; None while it waits for a judge.
        silent: The reward is that of silence, such as a click that did not come: a word of the same source stays.
    """

    doc_id: str
    vector: FloatArray | None = field(default=None, repr=False)
    text: str = ""
    reward: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A query that was served.

    Attributes:
        query_id: Its id, unique within its tenant and task; empty where a store makes one of the text.
        vector: (d,) its *base* vector, without any offset; None while it is not known.
        candidates: What was shown, in base order.
        query: Its text; empty where that is not known or not to be kept.
        task: Its task key.
        tenant: Whose it is; "" is the shared tenant.
        at: When, in Unix seconds; None is now, and a time ahead of the database's clock is its present.
        embedder: Fingerprint of the model that the vectors come from.
        source: Who gave the rewards of its candidates, such as a user or an agent; empty for the declared judge.
    """

    query_id: str
    vector: FloatArray | None = field(default=None, repr=False)
    candidates: Sequence[Candidate] = field(default=(), repr=False)
    query: str = ""
    task: str = DEFAULT_TASK
    tenant: str = ""
    at: float | None = None
    embedder: str = ""
    source: str = ""

    @classmethod
    def of_texts(
        cls, query_id: str, query: str, documents: Iterable[tuple[str, str]], task: str = DEFAULT_TASK, **facts: Any
    ) -> Self:
        """A query and the (id, text) of each document that was shown for it, as a judge is asked about them."""
        candidates = [Candidate(doc_id, text=text) for doc_id, text in documents]
        return cls(query_id, None, candidates, query, task, **facts)
