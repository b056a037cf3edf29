"""The facts of a report, as values; every text is short and every list is bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tttembed_rag.report.heldout import HeldOut, Lists
from tttembed_rag.stores import AuditLine
from tttembed_rag.stores.records import Day

# Rewarded queries, the last served ones, that a report learns from; a worker learns from more.
LEARNED = 500


@dataclass(frozen=True, slots=True)
class OffsetFacts:
    """An offset without its vector, its dose alpha and the n queries that it was learned from, with its evidence.

    Without a bound the interval of its gain is None. *reranking* says how deep a reranker must still look, *words*
    whether lists are sorted by words too and why; each is empty where that was not measured.
    """

    key: str
    served: bool
    alpha: float
    n: int
    gain: float | None
    interval: tuple[float, float] | None
    verdict: str
    reason: str
    needed: int | None
    reranking: str
    words: str


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """A version and what its offsets were learned from; the facts of a `Version` mean the same here.

    *aliases* are ``live`` and ``previous``, where they stand for it. The first *shared* offsets are listed, served ones
    first, then by rewarded queries; so many are *unlisted*. A *private* offset is served where the text of its query is
    asked again. *damage* says why its offsets cannot be read, and is empty if they can.
    """

    number: int
    at: float
    by: str
    note: str
    aliases: tuple[str, ...]
    embedder: str
    width: int
    rewarded: int
    kept: int
    served: int
    shared: tuple[OffsetFacts, ...] = ()
    unlisted: int = 0
    private: int = 0
    private_served: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """The live version and its state; None serves base vectors.

    It went live *since* a Unix second, and is *shared* where it is the shared tenant's, for lack of one of the tenant's
    own. *halted* says why base vectors are served nevertheless, and *trial* how it does on queries that it was not
    learned from; that is empty before the first look.
    """

    version: VersionFacts | None = None
    since: float | None = None
    shared: bool = False
    halted: str | None = None
    halted_since: float | None = None
    trial: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of the live version on the order of stored candidates.

    Of the last queries that were *looked* at, so many were *moved*; *examples* are some of these, those that nobody
    judged first.
    """

    looked: int = 0
    moved: int = 0
    examples: tuple[Lists, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Everything that a report tells of one tenant of a store, gathered *at* a Unix second.

    *versions* are those of the tenant that the live version belongs to, newest first, as is the *audit*; *days* and
    *drift*, the worker's comparisons, go from old to new. *judges* have how many rewards of theirs count here.
    *held_out* says what offsets learned from the last `LEARNED` rewarded queries do to others, and is None where there
    are too few; *today* are the shared offsets that a fit of those gives, where no version is live; *opposed* are
    sources whose rewards contradict the retriever's order, the surest first.
    """

    store: str
    tenant: str
    at: float
    texts: bool
    live: Live
    versions: tuple[VersionFacts, ...]
    judges: tuple[tuple[str, int], ...]
    days: tuple[Day, ...]
    drift: tuple[dict[str, Any], ...]
    held_out: HeldOut | None
    today: tuple[OffsetFacts, ...]
    opposed: tuple[str, ...]
    effect: Effect
    audit: tuple[AuditLine, ...]

    @property
    def name(self) -> str:
        """The name of the store, which stands for the project: of a file without its ending, else of the database."""
        return self.store.rstrip("/").rpartition("/")[2].removesuffix(".db").removesuffix(".sqlite")

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        served = any(day.queries for day in self.days)
        return not (self.versions or self.judges or self.audit or served)
