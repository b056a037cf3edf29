"""Served queries for the tests of a store, and what they teach."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from tttembed_store import Candidate, Served, Store, StoreLog, TenantOffsets, open_store
from tttembed_store.following.tenants import Published, TenantSnapshot

from tttembed_rag import Evidence, Offset, Offsets, Rewards, fit

JUDGE = "judge-a"


def traffic(count: int, *, first: int = 0, tenant: str = "", depth: int = 4, texts: bool = True) -> list[Served]:
    """Served queries number *first* on, rewarded by a judge; the same whenever they are asked for.

    Query n was served at second n to *tenant*, with documents of a pool of 20.
    """
    pool = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)
    served = []
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        vector = rng.standard_normal(8).astype(np.float32)
        candidates = [
            Candidate(f"d{row}", pool[row], f"document {row} of {tenant}" if texts else "", float(rng.random()))
            for row in rng.choice(20, depth, replace=False).tolist()
        ]
        asked = f"question {number} of {tenant}" if texts else ""
        served.append(Served(f"q{number}", vector, candidates, asked, f"t{number % 2}", tenant, float(number), "e"))
    return served


def unrewarded(served: list[Served]) -> list[Served]:
    """The same before a judge has seen them."""
    return [replace(query, candidates=[replace(shown, reward=None) for shown in query.candidates]) for query in served]


def learned(store: Store, tenant: str = "") -> Offsets:
    """What the store's rewards teach, by the plain rule."""
    return fit(store.rewards(JUDGE, tenant=tenant), scope="task", gate=False)


def facts(offsets: Offsets) -> list[Any]:
    """All that an `Offsets` says, to compare."""
    return [
        (key, offset.vector.tobytes(), offset.alpha, offset.n, offset.evidence, offset.certificate)
        for key, offset in offsets.items()
    ]


def frozen(shared: Offsets | None = None, **owned: Offsets) -> TenantOffsets:
    """Live offsets that nobody publishes to: the *shared* ones, and those that each tenant of *owned* has."""
    offsets = owned if shared is None else {"": shared, **owned}
    return TenantOffsets(Published({tenant: TenantSnapshot.of(its, tenant) for tenant, its in offsets.items()}))


def rewarded(
    rewards: Rewards,
    rows: Iterable[int],
    *,
    at: float = 0.0,
    name: str = "q",
    texts: Callable[[str], str] = str,
    unjudged: int = 0,
) -> list[Served]:
    """Queries of a reward set as they were served, each a second before the last; *texts* makes all their texts.

    The last *unjudged* candidates of each have no reward.
    """
    served = []
    for row in rows:
        shown = range(rewards.starts[row], rewards.starts[row + 1])
        values = [*rewards.values[shown[: len(shown) - unjudged]].tolist(), *[None] * unjudged]
        candidates = [
            Candidate(texts(f"d{j}"), rewards.doc_vectors[j], texts(f"document {j}"), value)
            for j, value in zip(shown, values, strict=True)
        ]
        names = texts(f"query {row}"), texts("task")
        served.append(Served(f"{name}{row}", rewards.query_vectors[row], candidates, *names, at=at - row, embedder="e"))
    return served


def fan(count: int = 6) -> list[Candidate]:
    """Documents fanned out from the first dimension to the second, the farther the better rewarded."""
    angles = np.linspace(0.0, np.pi / 2, count)
    return [
        Candidate(f"d{i}", np.array([np.cos(a), np.sin(a)]), f"text {i}", i / (count - 1)) for i, a in enumerate(angles)
    ]


def observed(url: str, query_id: str, candidates: list[Candidate] | None = None, **facts: Any) -> None:
    """A query along the first dimension that was served."""
    query = Served(query_id, np.array([1.0, 0.0]), fan() if candidates is None else candidates, **facts)
    with open_store(url) as store:
        store.observe([query], judge="j")


def task_offset(task: str, vector: Any, evidence: Evidence) -> Offset:
    """A shared offset of a task."""
    return Offset("task", np.array(vector, np.float32), 1.0, 9, evidence, task=task)


def turned(task: str = "default") -> Offsets:
    """An offset in two dimensions that turns a query along the second."""
    return Offsets([task_offset(task, [0.0, 2.0], Evidence(9, 0.1, (0.05, 0.15), "published", "steady"))], width=2)


def published(url: str, offsets: Offsets, **facts: Any) -> str:
    """The *url* of a store, in which these offsets are live now."""
    with open_store(url) as store:
        store.registry.publish(offsets, by="me", **facts)
    return url


def recorded(store: Store, log: StoreLog) -> dict[str, list[str]]:
    """The texts of the queries that were recorded, by tenant."""
    log.flush()
    waiting = {tenant: store.judge_queue.waiting("j", tenant=tenant) for tenant in store.tenants()}
    return {tenant: sorted(served.query for served in queries) for tenant, queries in waiting.items() if queries}
