"""Gathering what a report tells from a store, a bounded part of it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from tttembed_rag.errors import InputError, StoreError, StoreUnavailable
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Offset
from tttembed_rag.report.facts import Drifted, Known, Live, Published, Report
from tttembed_rag.report.moving import effect_of, shortened
from tttembed_rag.stores import AuditLine, Store, Version, history, open_store
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.states import DRIFT
from tttembed_rag.worker.drift import Drift
from tttembed_rag.worker.memory import read_trial

# What is told at most: days, versions, shared offsets of each, changes, judges.
_DAYS, _VERSIONS, _OFFSETS, _CHANGES, _JUDGES = 30, 20, 20, 50, 20
# What is looked at for examples: the last served queries, and the first candidates of each.
_QUERIES, _CANDIDATES = 100, 50
# Characters of a reason or note.
_NOTE = 400


def gather(url: str, *, tenant: str = "", at: float | None = None) -> Report:
    """What the store at *url* has learned for *tenant* and serves it.

    Args:
        url: Of a store that exists.

        tenant: Whose; "" is the shared tenant.

        at: Unix seconds at which the last day ends; None is now, by the database's clock.

    Raises:
        StoreError: There is no store, or it cannot be read.

        InputError: It never heard of that tenant.
    """
    with open_store(url, create=False) as store, closing(Database(url)) as database:
        if tenant and tenant not in store.tenants():
            raise InputError(f"tenant: expected one of the store, got {tenant!r:.80}")
        serving = store.serving(tenant=tenant)
        owner = tenant if serving.version is None else serving.version.tenant
        judges = store.judges(tenant=tenant)
        live, offsets = _live(store, tenant, serving.version)
        with database.read() as connection:
            at = database.now(connection) if at is None else at
            if serving.version is not None:
                live = replace(live, since=history.live_since(connection, serving.version))
            if serving.halted is not None:
                halted = shortened(serving.halted, _NOTE)
                since = history.halted_since(connection, [tenant, owner])
                live = replace(live, halted=halted, halted_since=since)
            judge = judges[0][0] if judges else ""
            recent = (
                history.recent(
                    connection,
                    tenant,
                    width=offsets.width,
                    embedder=serving.version.embedder if serving.version is not None else "",
                    judge=judge,
                    limit=_QUERIES,
                    depth=_CANDIDATES,
                )
                if any(offset.served for offset in offsets.values())
                else []
            )
            days = history.days(connection, tenant, last=datetime.fromtimestamp(at, UTC).date(), count=_DAYS)
            changes = history.changes(connection, tenant, _CHANGES)
        return Report(
            store=store.name,
            tenant=tenant,
            at=at,
            texts=store.texts,
            live=live,
            versions=tuple(_versions(store, owner, live.version)),
            judges=tuple((shortened(name), count) for name, count in judges[:_JUDGES]),
            days=tuple(days),
            drift=_drift(store, tenant),
            effect=effect_of(offsets, recent, shortened(judge), owner=owner),
            audit=tuple(_change(line) for line in changes),
        )


def _live(store: Store, tenant: str, version: Version | None) -> tuple[Live, Offsets]:
    """What is live, without its times, and its offsets; none where they are damaged."""
    if version is None:
        return Live(), Offsets([], width=1)
    aliases = _aliases(store, version.tenant)
    trial = read_trial(store, version.tenant)
    told = _published(version, aliases[version.number])
    live = Live(
        told,
        shared=version.tenant != tenant,
        trial=str(trial) if trial.version == version.number and trial.upper is not None else "",
    )
    return live, Offsets([], width=version.width) if told.damage else version.offsets


def _versions(store: Store, tenant: str, live: Published | None) -> Iterable[Published]:
    """The newest versions, each read and let go; *live* is read already."""
    aliases = _aliases(store, tenant)
    listed = store.versions(tenant=tenant, limit=_VERSIONS)[::-1]
    while listed:
        version = listed.pop()
        if live is not None and live.number == version.number:
            yield live
        else:
            yield _published(version, aliases[version.number])


def _aliases(store: Store, tenant: str) -> Mapping[int, Sequence[str]]:
    aliases: dict[int, list[str]] = defaultdict(list)
    for alias, number in sorted(store.aliases(tenant=tenant).items()):
        aliases[number].append(alias)
    return aliases


def _published(version: Version, aliases: Sequence[str]) -> Published:
    told = Published(
        number=version.number,
        at=version.at,
        by=shortened(version.by),
        note=shortened(version.note, _NOTE),
        aliases=tuple(aliases),
        embedder=shortened(version.embedder),
        width=version.width,
        rewarded=version.rewarded,
        kept=version.kept,
        served=version.served,
    )
    try:
        offsets = version.offsets
    except StoreUnavailable:
        raise
    except StoreError as exc:
        return replace(told, damage=shortened(str(exc), _NOTE))
    shared = [_known(offset) for offset in offsets.values() if offset.query_id is None]
    private = [offset.served for offset in offsets.values() if offset.query_id is not None]
    shared.sort(key=lambda known: (not known.served, -known.n, known.key))
    return replace(
        told,
        shared=tuple(shared[:_OFFSETS]),
        unlisted=max(0, len(shared) - _OFFSETS),
        private=len(private),
        private_served=sum(private),
    )


def _known(offset: Offset) -> Known:
    """An offset as it is told."""
    evidence = offset.evidence
    bounded = evidence.interval is not None and all(map(math.isfinite, evidence.interval))
    return Known(
        key=shortened(offset.key),
        served=offset.served,
        alpha=offset.alpha,
        n=offset.n,
        gain=evidence.gain,
        interval=evidence.interval if bounded else None,
        verdict=evidence.verdict,
        reason=shortened(evidence.reason, _NOTE),
        needed=evidence.needed,
    )


def _drift(store: Store, tenant: str) -> tuple[Drifted, ...]:
    text = store.state(DRIFT, tenant=tenant)
    return tuple(
        Drifted(entry["at"], Drift(**entry["queries"]), Drift(**entry["rewards"])) for entry in json.loads(text or "[]")
    )


def _change(line: AuditLine) -> AuditLine:
    tenant = None if line.tenant is None else shortened(line.tenant)
    return AuditLine(line.at, tenant, shortened(line.by), shortened(line.action), shortened(line.detail, _NOTE))
