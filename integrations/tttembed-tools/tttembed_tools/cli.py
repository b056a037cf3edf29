"""`tttembed demo`, and `tttembed tools`: learning from calls of tools under cron, MCP servers behind one search."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from tttembed_store.cli.group import named

from tttembed_rag.cli.group import Commands, Many, counted, say, write_json
from tttembed_rag.cli.options import rows_written

abstains = click.option("--abstain", is_flag=True, help="Find no tool where none fits a request.")


@click.command()
@click.option("--seeds", default="0,1,2,3,4,5", type=Many(int, "N,..."), help="Splits.")
@rows_written
def demo(seeds: tuple[int, ...], json_path: Path | None) -> None:
    """Watch an agent's search for tools get better from rewards alone.

    The tools are those of a made-up office whose people use one of two servers for each kind of work.
    """
    from tttembed_tools.demo.tools import run_tool_demo

    quiet = json_path is not None and str(json_path) == "-"
    say: Callable[[str], None] = (lambda _: None) if quiet else click.echo
    rows = run_tool_demo(seeds, say)
    if json_path is not None:
        write_json(json_path, rows)


@click.group(cls=Commands, short_help="Search over the tools of agents that learns which of them worked.")
def tools() -> None:
    """Search over the tools of agents that learns from which of them worked."""


@tools.command()
@click.option(
    "--catalog",
    required=True,
    type=Path,
    metavar="PATH",
    help="The tools that are searched: a JSON file of tools, or a folder with SKILL.md files.",
)
@click.option("--store", required=True, metavar="URL", help="Where the search keeps what was called.")
@click.option("--embed", "embedder", default="minilm", metavar="SPEC", help="That of the search.")
@abstains
def learn(catalog: Path, store: str, embedder: str, *, abstain: bool) -> None:
    """Learn from the calls in a store, for every tenant, as `LearnedToolSearch.learn` does; one pass, for cron.

    A tenant is learned for where outcomes that no process has learned from are at least a tenth of the others.
    """
    from tttembed_store.sql import open_store
    from tttembed_store.worker import GROWTH

    from tttembed_tools import LearnedToolSearch

    with (
        open_store(store, create=False) as opened,
        LearnedToolSearch(catalog, embedder, store=opened, abstain=abstain) as search,
    ):
        lessons = search.learn_for_all(growth=GROWTH)
        for tenant, lesson in lessons.items():
            say(f"{named(tenant)}: {lesson}")
        if not lessons:
            say("nothing is new")


@tools.command()
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
@abstains
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
    abstain: bool,
) -> None:
    """An MCP server in front of other MCP servers, with two tools: search_tools and call_tool.

    The tools of the servers behind are found by what they should do. Which of them are called, and whether they work,
    is learned from, and served only where calls that it was not learned from support it. What it does is said on
    stderr. SIGTERM, SIGINT and the end of stdin end it; what was called until then is kept.
    """
    import asyncio

    from tttembed_rag import context
    from tttembed_tools import LearnedToolSearch
    from tttembed_tools.hosts import mcp as mcp_front

    servers = mcp_front.read_servers(catalog)
    way = {"transport": "stdio"} if http is None else _address(http)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(message)s"))
    for ours in ("tttembed_rag", "tttembed_store", "tttembed_tools"):
        logging.getLogger(ours).addHandler(lines)
    logging.getLogger("tttembed_tools").setLevel(logging.INFO)
    logging.getLogger("fastmcp").setLevel(logging.CRITICAL)  # it may quote addresses and commands with secrets
    search = LearnedToolSearch([], embedder, store=store, abstain=abstain)

    def end(*_: object) -> None:
        search.close()
        os._exit(0)  # a thread that waits for stdin cannot be ended otherwise

    # uvicorn takes a signal first, ends what is under way, and raises it once more.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server = mcp_front.front(servers, search, about=mcp_front.described(catalog), k=top, every=every, report=report)
    with search, search.learning(every, tenants=[tenant]), context(tenant=tenant, source=source):
        asyncio.run(server.run_async(show_banner=False, **way))


def _address(text: str) -> dict[str, Any]:
    """How a server over HTTP is run; h11 reads heads of 16 KiB, uvicorn's faster parser heads of any length."""
    host, _, port = text.rpartition(":")
    if not (port.isdigit() and int(port) < 65536):
        raise click.UsageError(f"--http: expected [HOST:]PORT, got {text!r}")
    settings = {"http": "h11", "log_level": "warning"}
    return {"transport": "http", "host": host or "127.0.0.1", "port": int(port), "uvicorn_config": settings}
