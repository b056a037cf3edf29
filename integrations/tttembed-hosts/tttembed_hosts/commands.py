"""The commands that this distribution adds to `tttembed`, each by an entry point."""

from __future__ import annotations

import json
from pathlib import Path

import click
from tttembed_store.cli.group import as_objects, in_store, of_tenant, opened

from tttembed_rag.cli.group import counted, target

__all__ = ["annotate", "judgments"]


@click.command()
@click.argument("out", metavar="OUT", type=target)
@in_store
@of_tenant
@click.option("--judge", metavar="JUDGE", help="Fingerprint of whose rewards.  [default: whoever gave most of late]")
@click.option("--grades", default=3, show_default=True, type=click.IntRange(min=1), help="The highest grade.")
def judgments(out: Path, url: str, tenant: str, judge: str | None, grades: int) -> None:
    """Write the rewards of a store to OUT: TREC qrels, Quepid's ratings (.csv), or OpenSearch judgments (.json).

    `tttembed judge --judge feedback:OUT?scale=rubric:0,3` reads each of them. Documents are named by the ids they were
    recorded under.
    """
    from tttembed_hosts.judgments import write_judgments

    with opened(url) as store:
        named = judge or store.judge(tenant=tenant)
        rewards = {} if named is None else store.history.verdicts(tenant, judge=named)
        if not rewards:
            who = "a judge" if judge is None else repr(judge)
            raise click.UsageError(f"judgments: expected rewards of {who} for tenant {tenant!r}, found none")
        write_judgments(out, rewards, texts=store.history.texts(tenant), grades=grades, name=out.stem)
    click.echo(f"{out}: {len(rewards)} judgments of {named}, grades 0 to {grades}")


@click.command()
@click.argument("project", metavar="PROJECT")
@in_store
@of_tenant
@click.option("--judge", metavar="JUDGE", help="Fingerprint of whose rewards.  [default: whoever gave most of late]")
@click.option("--cut-at", type=click.IntRange(min=1), metavar="N", help="Texts of spans from N characters on are cut.")
@counted("--limit", 10_000, "Spans read at most, the newest.")
@as_objects
def annotate(
    project: str, url: str, tenant: str, judge: str | None, cut_at: int | None, limit: int, *, as_json: bool
) -> None:
    """Write a store's rewards onto the retrieved documents of a Phoenix PROJECT, where its relevance panels read them.

    PROJECT is phoenix+http://HOST:6006/PROJECT. A query and its documents are found by their texts.
    """
    from tttembed_store.spans import Reader, served_in

    from tttembed_hosts.phoenix import PhoenixProject

    phoenix = PhoenixProject.open(project)
    with opened(url) as store:
        named = judge or store.judge(tenant=tenant)
        if named is None:
            raise click.UsageError(f"--judge: expected a judge with rewards for tenant {tenant!r}, found none")
        queries = served_in(phoenix.spans(limit=limit), Reader(None, None, cut_at))
        ids = {served.query: store.text_id(served.query) for _, served in queries}
        rewards = store.history.verdicts(tenant, judge=named, query_ids=sorted(set(ids.values())))

        def verdict_of(query: str, text: str) -> float | None:
            return rewards.get((ids[query], store.text_id(text)))

        written = phoenix.annotate(queries, verdict_of, judge=named)
    if as_json:
        click.echo(json.dumps({"annotations": written, "retrievals": len(queries), "judge": named}))
    else:
        click.echo(f"{written} documents of {len(queries)} retrievals were annotated with rewards of {named}")
