"""`tttembed store judgments`: a store's rewards as a file for search teams."""

from __future__ import annotations

from pathlib import Path

import click

from tttembed_rag.cli.group import check_target, operators
from tttembed_rag.cli.options import in_store, of_tenant, opened


@operators.command()
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@in_store
@of_tenant
@click.option("--judge", metavar="JUDGE", help="Fingerprint of whose rewards.  [default: whoever gave most of late]")
@click.option("--grades", default=3, show_default=True, type=click.IntRange(min=1), help="The highest grade.")
def judgments(out: Path, url: str, tenant: str, judge: str | None, grades: int) -> None:
    """Write the rewards of a store to OUT: TREC qrels, Quepid's ratings (.csv), or OpenSearch judgments (.json).

    `tttembed judge --judge feedback:OUT?scale=rubric:0,3` reads each of them. Documents are named by the ids they were
    recorded under.
    """
    from tttembed_rag.hosts.judgments import write_judgments

    check_target(out)
    with opened(url) as store:
        named = judge or store.judge(tenant=tenant)
        rewards = {} if named is None else store.history.verdicts(tenant, judge=named)
        if not rewards:
            who = "a judge" if judge is None else repr(judge)
            raise click.UsageError(f"judgments: expected rewards of {who} for tenant {tenant!r}, found none")
        write_judgments(out, rewards, texts=store.history.texts(tenant), grades=grades, name=out.stem)
    click.echo(f"{out}: {len(rewards)} judgments of {named}, grades 0 to {grades}")
