"""`tttembed store`: what a store holds, which offsets are live, and what is forgotten."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.group import counted, say, target, text
from tttembed_rag.cli.telling import with_origin
from tttembed_rag.offsets.offsets import Offsets
from tttembed_store.cli.group import (
    as_objects,
    in_store,
    named,
    of_all,
    of_tenant,
    on_record,
    opened,
    operators,
    print_versions,
    served_now,
    signed,
    version_facts,
    when,
)

if TYPE_CHECKING:
    from tttembed_store.sql import Store, Version

# Tenants that one line names at most.
_NAMED = 10


@operators.command()
@in_store
def create(url: str) -> None:
    """Make a store where none is; one that is there stays as it is."""
    with opened(url, create=True) as store:
        say(f"{store.name} is ready")


@operators.command()
@click.argument("file", type=Path)
@in_store
@of_tenant
@text("--embedder", "NAME", "Whose vectors FILE was learned from; needed where it says none.")
@on_record
@as_objects
def publish(file: Path, url: str, tenant: str, embedder: str, *, as_json: bool, **signature: Any) -> None:
    """Serve the offsets of FILE from now on, as a new version.

    Whoever serves vectors of another embedding model than they were learned from keeps base vectors.
    """
    offsets = Offsets.load(file)
    learned_from, probe = (str(offsets.settings.get(name, "")) for name in ("embedder", "probe"))
    if embedder and learned_from not in ("", embedder):
        raise click.UsageError(f"--embedder: expected that of {file}, {learned_from!r}, got {embedder!r}")
    if not (embedder or learned_from):
        raise click.UsageError(
            f"--embedder: expected the name of the model whose vectors {file} was learned from, which the file "
            "does not say: offsets of one model are noise to another"
        )
    with opened(url, create=True) as store:
        learned = with_origin(offsets, embedder="", probe="")  # which the version keeps beside them
        version = store.registry.publish(
            learned, tenant=tenant, embedder=embedder or learned_from, probe=probe, **signature
        )
        _say(store, version, as_json=as_json)


@operators.command()
@in_store
@of_tenant
@click.option("--to", type=int, metavar="N", help="The version to serve.  [default: the one before]")
@on_record
@as_objects
def rollback(url: str, tenant: str, to: int | None, *, as_json: bool, **signature: Any) -> None:
    """Serve the previous version again, or version N; twice goes back twice."""
    with opened(url) as store:
        _say(store, store.registry.rollback(tenant=tenant, to=to, **signature), as_json=as_json)


@operators.command()
@click.argument("out", metavar="OUT", type=target)
@in_store
@of_tenant
@click.option("--version", "number", type=int, metavar="N", help="Which.  [default: the live one]")
def export(out: Path, url: str, tenant: str, number: int | None) -> None:
    """Write a version's offsets to a file, with the embedding model they were learned from, for `publish`."""
    with opened(url) as store:
        version = store.registry.version(number if number is not None else "live", tenant=tenant)
        if version is None:
            which = "a live version" if number is None else f"version {number}"
            raise click.UsageError(f"export: expected {which} of tenant {tenant!r}, found none")
        with_origin(version.offsets, embedder=version.embedder, probe=version.probe).save(out)
    click.echo(f"{out}: version {version.number}, {version.kept} offsets, {version.served} served")


@operators.command("export-rewards")
@click.argument("out", metavar="DIR", type=Path)
@in_store
@of_tenant
@click.option("--judge", metavar="NAME", help="Whose.  [default: of the newest rewarded query]")
@counted("--shards", 1, "Files of each table.")
def export_rewards(out: Path, url: str, tenant: str, judge: str | None, shards: int) -> None:
    """Write the rewards that a fit would learn from to a folder of Parquet files, for `Rewards.from_parquet`."""
    with opened(url) as store:
        judge = judge or store.judge(tenant=tenant)
        if judge is None:
            raise click.UsageError(f"export-rewards: expected rewards of tenant {tenant!r}, found none")
        rewards = store.rewards(judge, tenant=tenant)
        rewards.to_parquet(out, shards=shards)
    say(f"{out}: {len(rewards)} queries, {rewards.budget} rewards of {judge}")


@operators.command()
@in_store
@of_tenant
@counted("--limit", 20, "Newest versions listed.")
@as_objects
def versions(url: str, tenant: str, limit: int, *, as_json: bool) -> None:
    """List the newest versions: when, by whom, which is live, how many offsets are served, on what evidence."""
    with opened(url) as store:
        print_versions(store, tenant, limit, as_json=as_json)
        if not as_json:
            say(served_now(store, tenant))


@operators.command()
@in_store
@of_all
@on_record
def halt(url: str, tenant: str | None, **signature: Any) -> None:
    """Serve base vectors, whatever is live, until `resume`."""
    with opened(url) as store:
        known = tenant is None or tenant in store.tenants()
        store.registry.halt(tenant=tenant, **signature)
    say(f"halted: {'all tenants' if tenant is None else named(tenant)}")
    if not known:  # it may be served what is shared, and never have sent anything
        click.echo(f"tenant {tenant!r} is new to this store: is that its name?", err=True)


@operators.command()
@in_store
@of_all
@on_record
def resume(url: str, tenant: str | None, **signature: Any) -> None:
    """Serve again what is live."""
    with opened(url) as store:
        store.registry.resume(tenant=tenant, **signature)
        say(f"resumed: {'all tenants' if tenant is None else named(tenant)}")
        known = store.tenants() if tenant is None else []
        left = [tenant for tenant in known if store.registry.halted(tenant=tenant, own=True) is not None]
        if left:
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            say(f"still halted, each by itself: {', '.join(map(named, left[:_NAMED]))}{more}")
        say(served_now(store, tenant or ""))


@operators.command()
@in_store
@click.option("--tenant", required=True, metavar="NAME", help='Whose; "" is the shared tenant.')
@click.option("--query", "query_id", metavar="ID", help="A query id, or its text.")
@click.option("--source", metavar="NAME", help="A source, such as a user: only the rewards that it gave.")
@click.option("--all", "everything", is_flag=True, help="Everything of the tenant.")
@click.option("--unseen", is_flag=True, help="Also a source without rewards, as they were dropped or expired.")
@signed
@as_objects
def forget(
    url: str,
    tenant: str,
    query_id: str | None,
    source: str | None,
    by: str,
    *,
    everything: bool,
    unseen: bool,
    as_json: bool,
) -> None:
    """Delete a query, a source, or all of a tenant, and every version that may have learned from it.

    A query that was captured without an id is found by its text. With --source, the queries stay, and the rewards that
    it gave go; a source without rewards is refused, unless it was forgotten before or with --unseen. Exit code 1: no
    query is called so.
    """
    if (query_id is not None) + (source is not None) + everything != 1:
        raise click.UsageError("forget: expected one of --query, --source and --all")
    if unseen and source is None:
        raise click.UsageError("--unseen: expected with --source, got it alone")
    with opened(url) as store:
        _check_known(store, tenant)
        gone = store.forget(tenant=tenant, query_id=query_id, source=source, unseen=unseen, by=by)
        left, now = store.counts(tenant), store.serving(tenant=tenant)
    if as_json:
        click.echo(json.dumps({"forgotten": asdict(gone), "left": asdict(left)}))
    else:
        click.echo(
            f"forgotten: {gone.queries} queries, {gone.documents} documents, {gone.pairs} pairs, {gone.rewards} "
            f"rewards, {gone.versions} versions that may have learned from them\n"
            f"left of tenant {tenant!r}: {left.queries} queries, {left.rewards} rewards"
        )
        if gone.versions and now.version is None and now.halted is None:
            click.echo(
                "base vectors are served until the next fit, which learns what it would have learned had the rest "
                "never been seen"
            )
    if query_id is not None and not gone.queries:
        click.echo(f"--query: expected the id or text of a query of tenant {tenant!r}, found none", err=True)
        raise click.exceptions.Exit(1)


def _check_known(store: Store, tenant: str | None) -> None:
    """Refuse a *tenant* that the store never heard of; None is all of them."""
    if tenant is not None and tenant not in store.tenants():
        raise click.UsageError(f"--tenant: expected a tenant of the store, got {tenant!r:.80}")


@operators.command()
@in_store
@of_all
@counted("--limit", 20, "Newest changes listed.")
@as_objects
def changes(url: str, tenant: str | None, limit: int, *, as_json: bool) -> None:
    """List the newest changes: when, by whom, what."""
    with opened(url) as store:
        _check_known(store, tenant)
        for line in store.changes.lines(tenant=tenant, limit=limit):
            tenant_name = "all tenants" if line.tenant is None else line.tenant or "shared"
            text = f"{when(line.at)}  {tenant_name:<14}  {line.by:<14}  {line.action:<10}  {line.detail}"
            say(json.dumps(asdict(line)) if as_json else text.rstrip())


@operators.command()
@in_store
@of_all
@as_objects
def counts(url: str, tenant: str | None, *, as_json: bool) -> None:
    """Count what was observed, what was judged and what waits."""
    with opened(url) as store:
        _check_known(store, tenant)
        totals = asdict(store.counts(tenant))
        judges, failures = store.judges(tenant=tenant), store.judge_queue.failures(tenant)
    if as_json:
        failed = [{"judge": judge, "why": why, "queries": queries} for judge, why, queries in failures]
        click.echo(json.dumps(totals | {"judges": dict(judges), "failures": failed}))
        return
    for name, value in totals.items():
        click.echo(f"{name:<10}{value:>14,}")
    for judge, rewards in judges:
        say(f"{rewards:>24,} rewards of {judge}")
    for judge, why, queries in failures:
        say(f"{queries:>24,} queries wait that {judge} failed at: {why}")


@operators.command()
@in_store
@click.option("--judge", required=True, metavar="JUDGE", help="Its fingerprint, as `counts` and the worker print it.")
@of_all
@signed
def retry(url: str, judge: str, tenant: str | None, by: str) -> None:
    """Let pairs wait again that a judge declined, and ask at once about queries that it failed at.

    For when a server, or a proxy before it, was at fault and is mended.
    """
    with opened(url) as store:
        count = store.judge_queue.ask_again(judge, by=by, tenant=tenant)
        known = dict(store.judges(tenant=None)) | {name: 0 for name, *_ in store.judge_queue.failures(None)}
    if not count and judge not in known:
        raise click.UsageError(f"--judge: expected one of the store ({', '.join(known) or 'none'}), got {judge!r:.80}")
    say(f"{count} declined pairs wait again for {judge}")


def _say(store: Store, version: Version, *, as_json: bool) -> None:
    """Print that a version is live, and what is served."""
    if as_json:
        click.echo(json.dumps(version_facts(version) | {"aliases": ["live"]}))
        return
    say(f"version {version.number} is live: {version.served} of {version.kept} offsets served")
    say(served_now(store, version.tenant))
