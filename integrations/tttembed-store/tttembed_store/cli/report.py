"""`tttembed report`: what a store has learned and serves, as a page to look at."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from tttembed_rag.cli.group import target
from tttembed_rag.system.files import write_whole
from tttembed_rag.system.progress import watched
from tttembed_store.cli.group import in_store, of_tenant


@click.command(short_help="Tell what offsets do to queries they were not learned from.")
@in_store
@of_tenant
@click.option("--html", "page", metavar="OUT.html", type=target, help="Where the page goes.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON object.")
def report(url: str, tenant: str, page: Path | None, *, as_json: bool) -> None:
    """Tell what offsets do to queries that they were not learned from, what is live and why, and what it cost.

    Judged queries are held out in fifths, each served by what the gate publishes from the other four: look at the
    page before you publish, and afterwards. It is one file without a script that loads nothing from elsewhere.
    """
    from tttembed_store.report import gather, page_of

    if page is None and not as_json:
        raise click.UsageError("report: expected --html OUT.html, --json, or both")
    gathered = gather(url, tenant=tenant, watch=lambda parts: watched(parts, len(parts), "held-out fifths"))
    if page is not None:
        write_whole(page, page_of(gathered).encode())
        if not as_json:
            click.echo(f"Report: {page}")
    if as_json:
        click.echo(json.dumps(asdict(gathered), default=str))
