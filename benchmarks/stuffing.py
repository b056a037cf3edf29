"""Whoever writes documents: how far added words lift one in lists that a rescorer sorts; see `poison.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ground import Ground

from tttembed_rag import fit
from tttembed_rag.offsets.rescorer import Rescorer

# Place in the search of the document that is stuffed, from 1 on, and how many documents are sorted.
PLACE, SORTED = 51, 100
# Other people's queries that are looked at, and how many of them a greedy author appends.
QUERIES, MANY = 60, 20


def stuffed(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """A document at place 51 of a search, with words added: where the rescorer of 64 judged queries puts it."""
    for name, ground in grounds():
        collection = ground.bench.collection
        offsets = fit(ground.rewards(64), trusted=True)
        if (rescorer := offsets.rescorer(collection.dataset.name)) is None:
            continue
        held = ground.held[:QUERIES]
        texts = [collection.dataset.queries[query] for query in collection.query_ids[held].tolist()]
        found = ground.moved(offsets, held).astype(np.float32) @ ground.bench.unit_docs.T
        for written, added in {
            "as it is": [""] * len(texts),
            "the query": texts,
            "twenty queries": [" ".join([*texts[:MANY], text]) for text in texts],
        }.items():
            each = zip(texts, found, added, strict=True)
            places = np.array([_place(rescorer, ground, *one) for one in each])
            yield {
                "collection": name,
                "written": written,
                "median place": float(np.median(places)),
                "first ten": float((places <= 10).mean()),
            }


def _place(rescorer: Rescorer, ground: Ground, query: str, scores: np.ndarray, added: str) -> int:
    """The place, from 1 on, of the document at `PLACE` of a search with *added* words."""
    documents = list(ground.bench.collection.dataset.documents.values())
    top = np.argsort(-scores, kind="stable")[:SORTED]
    texts = [documents[row] for row in top.tolist()]
    texts[PLACE - 1] = f"{texts[PLACE - 1]} {added}".rstrip()
    return int(np.flatnonzero(rescorer.order(query, texts, scores[top]) == PLACE - 1)[0]) + 1


PARTS = {"stuffed": stuffed}
GROUPS = {"stuffed": ("written",)}
