"""The facts of a report, as values; every text is short and every list is bounded."""

from __future__ import annotations

from dataclasses import dataclass

from tttembed_rag.report.heldout import HeldOut, Lists
from tttembed_rag.stores import AuditLine
from tttembed_rag.stores.records import Day
from tttembed_rag.worker.drift import Drift

# Rewarded queries, the last served ones, that a report learns from; a worker learns from more.
LEARNED = 500


@dataclass(frozen=True, slots=True)
class OffsetFacts:
    """An offset without its vector.

    Attributes:
        key: Its key.

        served: Whether it is served.

        alpha: Its dose.

        n: Rewarded queries it was learned from.

        gain: Mean cross-fitted gain; None where it was not measured.

        interval: Interval of the gain; None where it was not measured, or is unbounded.

        verdict: Verdict of the gate.

        reason: The verdict in words.

        needed: About how many more rewarded queries would settle it; None where nothing is open.

        reranking: How deep a reranker must still look, in words; empty where that was not measured.
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


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """A version and what its offsets were learned from.

    Attributes:
        number: Rises with every version of the store.

        at: When it was published, in Unix seconds.

        by: The name of the one who published it.

        note: The reason.

        aliases: ``live``, ``previous`` and ``candidate``, where they stand for it.

        embedder: Fingerprint of the embedding model; empty where it is not known.

        width: Width d of its vectors.

        rewarded: Rewarded queries it was learned from.

        kept: Offsets it holds.

        served: Offsets of it that are served.

        shared: Shared offsets, served ones first, then by rewarded queries.

        unlisted: Shared offsets that are not in that list.

        private: Private offsets it holds.

        private_served: Private offsets of it that are served, each where the text of its query is asked again.

        damage: Why its offsets cannot be read; empty if they can.
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
    """The live version and its state.

    Attributes:
        version: The live version; None serves base vectors.

        since: When it went live, in Unix seconds; None without one.

        shared: Whether it is the shared tenant's, for lack of one of the tenant's own.

        halted: Why base vectors are served nevertheless; None if they are not.

        halted_since: When it was halted, in Unix seconds; None if it is not.

        trial: How it does on queries it was not learned from; empty before the first look.
    """

    version: VersionFacts | None = None
    since: float | None = None
    shared: bool = False
    halted: str | None = None
    halted_since: float | None = None
    trial: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of fresh traffic with what was learned from.

    Attributes:
        at: When it was made, in Unix seconds.

        queries: How far queries moved.

        rewards: How far rewards moved.
    """

    at: float
    queries: Drift
    rewards: Drift


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of the live version on the order of stored candidates.

    Attributes:
        looked: Queries looked at, the last served ones.

        moved: Queries of them that get another order.

        examples: The last served queries that get another order, queries that nobody judged first.
    """

    looked: int = 0
    moved: int = 0
    examples: tuple[Lists, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Everything that a report tells of one tenant of a store.

    Attributes:
        store: URL of the store, without a password.

        tenant: The tenant; "" is the shared tenant.

        at: When it was gathered, in Unix seconds.

        texts: Whether the store keeps texts.

        live: What is served.

        versions: The newest versions of the tenant that the live version belongs to, newest first.

        judges: Judges and how many rewards of theirs count for the tenant, the busiest first.

        days: The last days, oldest first.

        drift: Comparisons of fresh traffic with what was learned from, oldest first.

        held_out: What offsets learned from the last `LEARNED` rewarded queries do to queries that they were not learned
            from; None where there are too few.

        today: The shared offsets that a fit of those gives, where no version is live.

        effect: What the live version does to recent queries.

        audit: The newest changes that concern the tenant, newest first.
    """

    store: str
    tenant: str
    at: float
    texts: bool
    live: Live
    versions: tuple[VersionFacts, ...]
    judges: tuple[tuple[str, int], ...]
    days: tuple[Day, ...]
    drift: tuple[Comparison, ...]
    held_out: HeldOut | None
    today: tuple[OffsetFacts, ...]
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
