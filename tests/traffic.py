"""Served queries for the tests of a store, and what they teach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tttembed_store import Candidate, Served, Store, TenantOffsets
from tttembed_store.following.tenants import Published, TenantSnapshot

from tttembed_rag.gate.fit import fit
from tttembed_rag.offsets.offsets import Offsets

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
    return [replace(one, candidates=[replace(shown, reward=None) for shown in one.candidates]) for one in served]


def learned(store: Store, tenant: str = "") -> Offsets:
    """What the store's rewards teach, by the plain rule."""
    return fit(store.rewards(JUDGE, tenant=tenant), scope="task", gate=False)


def facts(offsets: Offsets) -> list[Any]:
    """All that an `Offsets` says, to compare."""
    return [
        (key, one.vector.tobytes(), one.alpha, one.n, one.evidence, one.certificate) for key, one in offsets.items()
    ]


def frozen(shared: Offsets | None = None, **owned: Offsets) -> TenantOffsets:
    """Live offsets that nobody publishes to: the *shared* ones, and those that each tenant of *owned* has."""
    offsets = owned if shared is None else {"": shared, **owned}
    return TenantOffsets(Published({tenant: TenantSnapshot.of(its, tenant) for tenant, its in offsets.items()}))
