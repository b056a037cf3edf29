"""The values that a store gives, and the checks of the values that it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError, RewardError, VectorError
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.vectors.checks import as_floats, checked_norms

# The judge whose rewards are trusted labels: nothing is learned from them, they confirm or refuse what was learned.
AUDIT = "audit"
# The judge whose rewards are for calls of tools: `tttembed_tools` alone learns from them.
TOOL_CALLS = "tool use"
# The one source of all feedback over HTTP whose source nobody names.
ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Counts:
    """How much a store, or one tenant, holds.

    The rewards are those of all judges and sources, and pairs are waiting that no judge has answered. The size in bytes
    is that of the whole database, also where one tenant is asked for.
    """

    queries: int
    documents: int
    pairs: int
    rewards: int
    waiting: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Spend:
    """What judges were paid for: pairs asked about, tokens and US dollars."""

    pairs: int = 0
    tokens: float = 0.0
    usd: float = 0.0

    def __add__(self, other: Spend) -> Spend:
        return Spend(self.pairs + other.pairs, self.tokens + other.tokens, self.usd + other.usd)

    def __sub__(self, other: Spend) -> Spend:
        return Spend(self.pairs - other.pairs, self.tokens - other.tokens, self.usd - other.usd)


@dataclass(frozen=True, slots=True)
class Day:
    """A day by UTC: queries that were last served on it, rewards of their candidates, what judges were paid.

    Rewards are those of all judges; the spend is that of the whole store, for all tenants.
    """

    day: date
    queries: int
    rewards: int
    spend: Spend


@dataclass(frozen=True)
class Version:
    """Offsets that were published for a *tenant*, *at* a Unix second *by* somebody, and what is known of them.

    Attributes:
        number: Rises with every version of a store, of any tenant.
        note: The reason.
        embedder: Fingerprint of the model that made the vectors it was learned from; empty where it is not known.
        width: Width d of its vectors.
        rewarded: Rewarded queries it was learned from.
        kept: Offsets it holds.
        served: Offsets of it that are served.
        probe: JSON text that the publisher wants to find again; may be empty.
        evidence: In one line, on what its offsets are served.
    """

    number: int
    tenant: str
    at: float
    by: str
    note: str
    embedder: str
    width: int
    rewarded: int
    kept: int
    served: int
    probe: str
    evidence: str
    _load: Callable[[int], Offsets] = field(repr=False, compare=False)

    @cached_property
    def offsets(self) -> Offsets:
        """The offsets, read once.

        Raises:
            StoreError: They are damaged, or were forgotten since.
        """
        return self._load(self.number)


@dataclass(frozen=True, slots=True)
class Generations:
    """What changes with what is served, of all tenants in one moment.

    They are *halted* for a reason, or None; by tenant, the number of its *own* rises with each change of its version or
    halt. The shared tenant, "", is there; of all others those alone that ever had something of their own.
    """

    halted: str | None
    own: dict[str, int]


@dataclass(frozen=True, slots=True)
class TenantState:
    """What a process must serve to a tenant, read in one moment.

    Attributes:
        generation: Differs whenever any of this differs.
        version: The live version of the tenant, else of the shared tenant; None serves base vectors.
        halted: Why base vectors are served instead of the live version; None if they are not.
    """

    generation: int
    version: Version | None
    halted: str | None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of an owner to work for a tenant alone for a while.

    The token tells it from all other leases of the tenant: a store refuses changes under one that is lost.
    """

    tenant: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What `Store.forget` deleted: documents were shown for no other query, and versions may have learned from it."""

    queries: int = 0
    documents: int = 0
    pairs: int = 0
    rewards: int = 0
    versions: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One change, made *at* a Unix second *by* somebody; where its *tenant* is None it concerns all tenants."""

    at: float
    tenant: str | None
    by: str
    action: str
    detail: str


def checked_vector(argument: str, value: ArrayLike) -> bytes:
    """A vector (d,) as the bytes of its little-endian float32 numbers."""
    vector = as_floats(argument, value)
    if vector.ndim != 1 or not vector.size:
        raise VectorError(f"{argument}: expected a vector (d,), got shape {vector.shape}")
    with np.errstate(over="ignore"):
        single = vector.astype("<f4", copy=False)
        square = np.vdot(single, single)
    if not 0 < square < np.inf:  # raises, or the square alone is out of range
        checked_norms(argument, single[None])
    return single.tobytes()


def checksum(vector: bytes) -> bytes:
    """8 bytes by which a damaged vector is recognised."""
    return hashlib.blake2b(vector, digest_size=8).digest()


def checked_reward(argument: str, value: Any) -> float:
    """*value* as a reward in [0, 1]."""
    try:
        reward = float(value)
    except (TypeError, ValueError) as exc:
        raise RewardError(f"{argument}: expected a number in [0, 1], got {value!r:.40}") from exc
    if not 0.0 <= reward <= 1.0:
        raise RewardError(f"{argument}: expected a number in [0, 1], got {reward:g} (declare the judge's scale)")
    return reward


def row_of(name: str) -> int:
    """The id of a row from the id that `JudgeQueue.waiting` gave it."""
    if not (name[1:].isdecimal() and name[:1] in ("q", "d")):
        raise InputError(f"verdicts: expected ids of JudgeQueue.waiting, got {name!r:.40}")
    return int(name[1:])
