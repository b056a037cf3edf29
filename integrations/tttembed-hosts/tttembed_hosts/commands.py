"""The commands that this distribution adds to `tttembed`, each by an entry point."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from tttembed_rag.cli.group import counted, target
from tttembed_rag.cli.options import as_objects, in_store, judged, of_tenant, opened

__all__ = ["annotate", "judgments", "serve"]


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
    from tttembed_hosts.phoenix import PhoenixProject
    from tttembed_rag.capture.spans import Reader, retrievals_of

    phoenix = PhoenixProject.open(project)
    with opened(url) as store:
        named = judge or store.judge(tenant=tenant)
        if named is None:
            raise click.UsageError(f"--judge: expected a judge with rewards for tenant {tenant!r}, found none")
        found = retrievals_of(phoenix.spans(limit=limit), Reader(None, None, cut_at))
        ids = {one.query: store.text_id(one.query) for one in found}
        rewards = store.history.verdicts(tenant, judge=named, query_ids=sorted(set(ids.values())))

        def verdict_of(query: str, text: str) -> float | None:
            return rewards.get((ids[query], store.text_id(text)))

        written = phoenix.annotate(found, verdict_of, judge=named)
    if as_json:
        click.echo(json.dumps({"annotations": written, "retrievals": len(found), "judge": named}))
    else:
        click.echo(f"{written} documents of {len(found)} retrievals were annotated with rewards of {named}")


@click.command()
@click.option(
    "--catalog",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The servers behind, as MCP clients have them: a JSON file with mcpServers.",
)
@click.option("--store", metavar="URL", help="What was learned, kept: sqlite:///FILE.  [default: forgotten at the end]")
@click.option("--embed", "embedder", default="minilm", show_default=True, metavar="SPEC", help="As for `data`.")
@click.option("--http", metavar="[HOST:]PORT", help="Serve HTTP at /mcp.  [default: one client on stdin and stdout]")
@click.option("--tenant", default="", show_default=False, metavar="T", help="Whose requests these are.")
@click.option(
    "--source", default="", show_default=False, metavar="NAME", help="Who calls, where no header X-TTT-Source says."
)
@click.option(
    "--every",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Between two passes of learning.",
)
@counted("--top", 8, "Tools found at most.")
@click.option("--report", is_flag=True, help="A third tool, report_outcome, for tools that are called elsewhere.")
@judged
def serve(
    catalog: Path,
    store: str | None,
    embedder: str,
    http: str | None,
    tenant: str,
    source: str,
    every: float,
    top: int,
    *,
    report: bool,
    judge: str | None,
    budget: str,
    price: str,
) -> None:
    """An MCP server in front of other MCP servers, with two tools: search_tools and call_tool.

    The tools of the servers behind are found by what they should do. Which of them are called, and whether they work,
    is learned from, and served only where calls that it was not learned from support it. What it does is said on
    stderr. SIGTERM, SIGINT and the end of stdin end it; what was called until then is kept.
    """
    import asyncio

    from tttembed_hosts import mcp_front
    from tttembed_rag import context
    from tttembed_rag.judging import Budget, Price
    from tttembed_rag.search import LearnedToolSearch

    servers = mcp_front.read_servers(catalog)
    way = {"transport": "stdio"} if http is None else _address(http)
    said = logging.StreamHandler(sys.stderr)
    said.setFormatter(logging.Formatter("%(message)s"))
    for ours, told in (("tttembed_rag", "tttembed_rag.search"), ("tttembed_hosts", "tttembed_hosts")):
        logging.getLogger(ours).addHandler(said)
        logging.getLogger(told).setLevel(logging.INFO)
    logging.getLogger("fastmcp").setLevel(logging.CRITICAL)  # it may quote addresses and commands with secrets
    search = LearnedToolSearch(
        [], embedder, store=store, judge=judge, budget=Budget.parse(budget), price=Price.parse(price)
    )

    def end(*_: object) -> None:
        search.close()
        os._exit(0)  # a thread that waits for stdin cannot be ended otherwise

    # uvicorn takes a signal first, ends what is under way, and raises it once more.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with search, context(tenant=tenant, source=source):
        server = mcp_front.front(servers, search, about=mcp_front.described(catalog), k=top, every=every, report=report)
        asyncio.run(mcp_front.serve(server, search, every=every, **way))


def _address(text: str) -> dict[str, Any]:
    """How a server over HTTP is run; h11 reads heads of 16 KiB, uvicorn's faster parser heads of any length."""
    host, _, port = text.rpartition(":")
    if not (port.isdigit() and int(port) < 65536):
        raise click.UsageError(f"--http: expected [HOST:]PORT, got {text!r}")
    settings = {"http": "h11", "log_level": "warning"}
    return {"transport": "http", "host": host or "127.0.0.1", "port": int(port), "uvicorn_config": settings}
