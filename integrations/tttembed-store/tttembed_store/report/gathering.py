"""The facts of a report, gathered from a store: every text is short and every list is bounded."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, get_args

from tttembed_rag.errors import InputError, RewardError, StoreError, StoreUnavailable
from tttembed_rag.evaluate.page.heldout import HeldOut
from tttembed_rag.evaluate.page.moving import Effect, effect_of, shortened
from tttembed_rag.gate.belief import opposed
from tttembed_rag.gate.fit import fit
from tttembed_rag.offsets.offset import AnyScope, Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.observations import Served
from tttembed_store.report.crossfit import Watch, held_out
from tttembed_store.sql import Change, Store, TenantState, Version, open_store
from tttembed_store.sql.records import AUDIT, Day
from tttembed_store.worker.tenant import prevailing_judge, read_memory, read_trial

# Rewarded queries, the last served ones, that a report learns from; a worker learns from more.
LEARNED = 500
# How much a report tells at most: days, versions, shared offsets of each, changes, judges, sources.
_DAYS, _VERSIONS, _OFFSETS, _CHANGES, _JUDGES, _SOURCES = 30, 20, 20, 50, 20, 20
# How much is searched for examples: the last served queries, and the first candidates of each.
_QUERIES, _CANDIDATES = 100, 50
# Characters of a reason or note.
_NOTE = 400


@dataclass(frozen=True, slots=True)
class OffsetFacts:
    """An offset without its vector, its dose alpha and the n queries that it was learned from, with its evidence.

    An unbounded interval is None. *reranking* says how deep a reranker must still look, *words* whether lists are
    sorted by words too and why; each is empty where that was not measured.
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
    """The facts of a `Version`; *aliases* are ``live`` and ``previous``, where they stand for it."""

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


@dataclass(frozen=True, slots=True)
class Live:
    """The live version with its offsets, and its state; None serves base vectors.

    It went live *since* a Unix second, and is *shared* where the tenant has none of its own. *halted* says why base
    vectors are served nevertheless, and *trial* how it does on queries that came after it; empty before the first look.
    The first shared *offsets* are listed, served ones first, then by rewarded queries; so many are *unlisted*, and so
    many are *private*. *damage* says why they cannot be read, and is empty if they can.
    """

    version: VersionFacts | None = None
    since: float | None = None
    shared: bool = False
    halted: str | None = None
    halted_since: float | None = None
    trial: str = ""
    offsets: tuple[OffsetFacts, ...] = ()
    unlisted: int = 0
    private: int = 0
    private_served: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Everything that a report tells of one tenant of a store, gathered *at* a Unix second.

    *versions* are those of the tenant that the live version belongs to, newest first, as are the *changes*; the oldest
    of the *days* is the first. *judges* have how many rewards of theirs count here. *held_out* and *today*, the shared
    offsets of a fit where no version is live, are of the last `LEARNED` rewarded queries. *crowded* says where cosines
    lie close together; *opposed* are sources whose rewards contradict the retriever's order, the surest first.
    """

    store: str
    tenant: str
    at: float
    texts: bool
    live: Live
    crowded: str
    versions: tuple[VersionFacts, ...]
    judges: tuple[tuple[str, int], ...]
    days: tuple[Day, ...]
    held_out: HeldOut | None
    today: tuple[OffsetFacts, ...]
    opposed: tuple[str, ...]
    effect: Effect
    changes: tuple[Change, ...]

    @property
    def name(self) -> str:
        """The name of the store, which stands for the project: of a file without its ending, else of the database."""
        return self.store.rstrip("/").rpartition("/")[2].removesuffix(".db").removesuffix(".sqlite")

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        served = any(day.queries for day in self.days)
        return not (self.versions or self.judges or self.changes or served)


def gather(url: str, *, tenant: str = "", at: float | None = None, watch: Watch = iter) -> StoreReport:
    """The report of what the store at *url* has learned for *tenant* and serves to it.

    The last day ends *at* a Unix second, by default now. *watch* sees the parts go by that queries are held out in.
    """
    with open_store(url, create=False) as store:
        if tenant and tenant not in store.tenants():
            raise InputError(f"tenant: expected one of the store, got {tenant!r:.80}")
        serving = store.serving(tenant=tenant)
        owner = tenant if serving.version is None else serving.version.tenant
        live, offsets = _live(store, tenant, owner, serving)
        at = time.time() if at is None else at
        judges = store.judges(tenant=tenant)
        judge = prevailing_judge(store, tenant, read_memory(store, tenant))
        held, today, against = _learned_now(store, tenant, serving.version, offsets, judge, watch)
        versions = store.registry.versions(tenant=owner, limit=_VERSIONS)
        return StoreReport(
            store=store.name,
            tenant=tenant,
            at=at,
            texts=store.texts,
            live=live,
            crowded=offsets.crowded,
            versions=tuple(_version_facts(store, version, tenant) for version in versions),
            judges=tuple((shortened(name), count) for name, count in judges[:_JUDGES]),
            days=tuple(store.history.days(tenant, last=datetime.fromtimestamp(at, UTC).date(), count=_DAYS)),
            held_out=held,
            today=today,
            opposed=against,
            effect=_effect(store, tenant, serving.version, offsets, judge),
            changes=tuple(_change(line) for line in store.changes.lines(tenant=tenant, limit=_CHANGES)),
        )


def _live(store: Store, tenant: str, owner: str, serving: TenantState) -> tuple[Live, Offsets]:
    """The live version and its state, and its offsets; none where they are damaged."""
    live, offsets = Live(), Offsets([], width=1)
    if (version := serving.version) is not None:
        trial = read_trial(store, owner)
        live = Live(
            _version_facts(store, version, tenant),
            since=store.changes.last(["publish", "rollback"], [owner]) or version.at,
            shared=owner != tenant,
            trial=str(trial) if trial.version == version.number and trial.upper is not None else "",
        )
        try:
            visible = store.history.visible(version.offsets, owner=owner, tenant=tenant).values()
        except StoreUnavailable:
            raise
        except StoreError as exc:
            live, offsets = replace(live, damage=shortened(str(exc), _NOTE)), Offsets([], width=version.width)
        else:
            offsets = version.offsets
            shared = [_offset_facts(store, tenant, offset) for offset in visible if offset.query_id is None]
            shared.sort(key=lambda offset: (not offset.served, -offset.n, offset.key))
            private = [offset.served for offset in visible if offset.query_id is not None]
            live = replace(
                live,
                offsets=tuple(shared[:_OFFSETS]),
                unlisted=max(0, len(shared) - _OFFSETS),
                private=len(private),
                private_served=sum(private),
            )
    if serving.halted is not None:
        since = store.changes.last(["halt"], [tenant, owner])
        live = replace(live, halted=shortened(serving.halted, _NOTE), halted_since=since)
    return live, offsets


def _learned_now(
    store: Store, tenant: str, version: Version | None, offsets: Offsets, judge: str, watch: Watch
) -> tuple[HeldOut | None, tuple[OffsetFacts, ...], tuple[str, ...]]:
    """What offsets of the last rewards do to queries held out; these offsets, if no version is live; who objects."""
    embedder = None if version is None else version.embedder or None
    try:
        rewards = store.rewards(judge, tenant=tenant, embedder=embedder, last=LEARNED)
    except RewardError:
        return None, (), ()
    setting: Any = offsets.settings.get("scope")  # of a file that anybody may have written
    scope: AnyScope = setting if setting in get_args(AnyScope) else "auto"

    def details(names: Sequence[tuple[str, str]]) -> list[Served]:
        return store.history.recent(
            tenant, width=rewards.width, embedder=embedder or "", judge=judge, depth=_CANDIDATES, names=names
        )

    labels = store.history.verdicts(tenant, judge=AUDIT) or None
    held = held_out(rewards, details, scope=scope, judge=shortened(judge), labels=labels, watch=watch)
    against = tuple(shortened(name) for name in opposed(rewards))[:_SOURCES]
    if version is not None:
        return held, (), against
    shared = [offset for offset in fit(rewards, audit=labels).values() if offset.query_id is None]
    return held, tuple(_offset_facts(store, tenant, offset) for offset in shared[:_OFFSETS]), against


def _effect(store: Store, tenant: str, version: Version | None, offsets: Offsets, judge: str) -> Effect:
    """The effect of the live version on the last served queries of *tenant*."""
    if version is None or not any(offset.served for offset in offsets.values()):
        return Effect()
    recent = store.history.recent(
        tenant, width=offsets.width, embedder=version.embedder, judge=judge, limit=_QUERIES, depth=_CANDIDATES
    )
    return effect_of(offsets, recent, owner=version.tenant)


def _version_facts(store: Store, version: Version, tenant: str) -> VersionFacts:
    """A version as *tenant* may see it: of the shared tenant's, not its note."""
    aliases = sorted(store.registry.aliases(tenant=version.tenant).items())
    return VersionFacts(
        **{name: getattr(version, name) for name in ("number", "at", "width", "rewarded", "kept", "served")},
        by=shortened(version.by),
        note="" if version.tenant != tenant else shortened(version.note, _NOTE),
        aliases=tuple(alias for alias, number in aliases if number == version.number),
        embedder=shortened(version.embedder),
    )


def _offset_facts(store: Store, tenant: str, offset: Offset) -> OffsetFacts:
    evidence = offset.evidence
    bounded = evidence.interval is not None and all(map(math.isfinite, evidence.interval))
    return OffsetFacts(
        key=shortened(offset.key),
        served=offset.served,
        alpha=offset.alpha,
        n=offset.n,
        gain=evidence.gain,
        interval=evidence.interval if bounded else None,
        verdict=evidence.verdict,
        reason=shortened(store.history.in_words(tenant, evidence.reason), _NOTE),
        needed=evidence.needed,
        reranking="; ".join(offset.certified),
        words="" if offset.rescorer is None else str(offset.rescorer.evidence),
    )


def _change(line: Change) -> Change:
    tenant = None if line.tenant is None else shortened(line.tenant)
    return Change(line.at, tenant, shortened(line.by), shortened(line.action), shortened(line.detail, _NOTE))
