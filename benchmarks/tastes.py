"""How long the worker follows a taste that has changed: a part of `poison.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from ground import Ground
from harm import Bench
from tttembed_store import Candidate, Served, Store, Worker, open_store

from tttembed_rag import Offsets

Grounds: TypeAlias = Callable[..., Iterator[tuple[str, Ground]]]
# Queries between two rounds of the worker, and rounds before and after the taste changes.
EACH, BEFORE, AFTER = 40, (5, 20), 10
# What counts as right again: this share of the most that a system reaches which forgot everything.
RIGHT = 0.9
# The share of all queries that are of the topic, where one topic alone changes.
TOPIC = 0.25


def suites(ground: Ground, apart: float = 0.4) -> Ground:
    """Every document twice, as two suites of tools that do the same; each suite has a word of its own in its texts."""
    collection = ground.bench.collection
    words = np.random.default_rng(ground.seed).standard_normal((2, collection.doc_vectors.shape[1]))
    words *= apart / np.linalg.norm(words, axis=1, keepdims=True)
    names = [[f"{suite} {name}" for name in collection.dataset.documents] for suite in "AB"]
    documents = {
        name: text for suite in names for name, text in zip(suite, collection.dataset.documents.values(), strict=True)
    }
    labels = {
        query: {f"A {name}": label for name, label in of.items()} for query, of in collection.dataset.qrels.items()
    }
    vectors = np.concatenate([ground.bench.unit_docs + word for word in words]).astype(np.float32)
    dataset = replace(collection.dataset, documents=documents, qrels=labels)
    return replace(ground, bench=Bench.of(type(collection).of(dataset, vectors, collection.query_vectors, embedder="")))


def flip(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """Users want suite A, then suite B, for all they ask or for one topic: when is a store with its worker right?"""
    for (name, ground), topic in product(grounds(), (False, True)):
        both = suites(ground)
        near = both.unit @ both.unit[ground.pool[0]]
        changes = near >= np.quantile(near, 1 - TOPIC) if topic else np.ones(len(near), dtype=bool)
        forgot = served(both, changes, [True] * AFTER)
        right = RIGHT * max(forgot)
        for before in BEFORE:
            kept = served(both, changes, [False] * before + [True] * AFTER)[before:]
            queries = [_until(right, shares) for shares in (forgot, kept)]
            yield {
                "collection": name,
                "changes": "one topic" if topic else "everything",
                "queries before": before * EACH,
                "base": forgot[0],
                "after the flip": kept[0],
                "right": right,
                "until right, forgot": queries[0],
                "until right": queries[1],
                "right at the end": kept[-1] >= right,
            }


def _until(right: float, shares: list[float]) -> int:
    """Queries until the share was *right*; those of all rounds where it never was."""
    return EACH * next((i for i, share in enumerate(shares) if share >= right), AFTER)


def served(ground: Ground, changes: np.ndarray, changed: list[bool]) -> list[float]:
    """Each round: how often the first result of other people's queries is of the suite that they want.

    Args:
        ground: A collection of two suites.
        changes: (M,) which queries want suite B once taste has *changed*, and suite A before; the others always A.
        changed: Whether taste has changed by each round.
    """
    rng, half = np.random.default_rng(ground.seed), len(ground.bench.unit_docs) // 2
    offsets: Offsets | None = None
    held, seen = ground.held[changes[ground.held]], []
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/tastes.db") as store:
        worker = Worker(store)
        for turn, late in enumerate(changed):
            first = np.argmax(ground.moved(offsets, held) @ ground.bench.unit_docs.T, axis=1)
            rows = rng.choice(ground.pool, EACH)
            lists = np.argsort(-(ground.moved(offsets, rows) @ ground.bench.unit_docs.T), axis=1)[:, :10]
            _answer(store, ground, turn, rows, lists, changes[rows] & late)
            seen.append(float((first // half == late).mean()))
            worker.round()
            version = store.registry.version()
            offsets = None if version is None else version.offsets
    return seen


def _answer(store: Store, ground: Ground, turn: int, rows: np.ndarray, lists: np.ndarray, second: np.ndarray) -> None:
    """Users call the nearest tool of the first suite, or of the *second* one, where it was found."""
    collection, half = ground.bench.collection, len(ground.bench.unit_docs) // 2
    right = second * half + np.argmax(ground.unit[rows] @ ground.bench.unit_docs[:half].T, axis=1)
    store.observe(
        [
            Served(
                f"{turn} {i}",
                collection.query_vectors[row],
                [
                    Candidate(str(collection.doc_ids[d]), collection.doc_vectors[d], reward=float(d == wanted))
                    for d in shown.tolist()
                ],
                task=collection.dataset.name,
            )
            for i, (row, shown, wanted) in enumerate(zip(rows.tolist(), lists, right.tolist(), strict=True))
        ],
        judge="calls",
    )


PARTS = {"flip": flip}
# By what the rows of a part are put together, and what is shown of them.
GROUPS = {"flip": ("changes", "queries before")}
