"""`tttembed report`: what a store has learned and serves, as a page to look at."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from tttembed_rag.cli.group import check_target, main
from tttembed_rag.cli.options import in_store, of_tenant
from tttembed_rag.system.files import write_whole


@main.command()
@in_store
@of_tenant
@click.option("--html", "page", metavar="OUT.html", type=click.Path(path_type=Path), help="Where the page goes.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON object.")
def report(url: str, tenant: str, page: Path | None, *, as_json: bool) -> None:
    """Tell what is live and why: evidence, versions, rewards, spend, drift, changes, documents that rose and fell.

    The page is one file that loads nothing from elsewhere and needs no script.
    """
    from tttembed_rag.report import gather, page_of

    if page is None and not as_json:
        raise click.UsageError("report: expected --html OUT.html, --json, or both")
    check_target(page)
    gathered = gather(url, tenant=tenant)
    if page is not None:
        write_whole(page, page_of(gathered).encode())
        if not as_json:
            click.echo(f"Report: {page}")
    if as_json:
        click.echo(json.dumps(asdict(gathered), default=str))
