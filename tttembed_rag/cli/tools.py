"""`tttembed tools`: MCP servers behind one search that learns from what is called, and learning under cron."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tttembed_rag.cli.group import counted, main, say
from tttembed_rag.cli.telling import named

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def judged(command: CommandT) -> CommandT:
    """The options of a judge that is asked about tools that nobody called."""
    for option in (
        click.option("--price", default="", metavar="USD", help="As for `tttembed worker`."),
        click.option(
            "--budget", default="pairs=200", show_default=True, metavar="CAPS", help="Of --judge, per day (UTC)."
        ),
        click.option(
            "--judge", metavar="SPEC", help="Asked about a sample of the tools that were listed and not called."
        ),
    ):
        command = option(command)
    return command


@main.group()
def tools() -> None:
    """Search over the tools of agents that learns from which of them worked."""


@tools.command()
@click.option(
    "--catalog",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The servers behind, as MCP clients have them: a JSON file with mcpServers.",
)
@click.option("--store", metavar="URL", help="What was learned, kept: sqlite:///FILE.  [default: forgotten at the end]")
@click.option("--embedder", default="minilm", show_default=True, metavar="SPEC", help="As for `tttembed data`.")
@click.option("--http", metavar="[HOST:]PORT", help="Serve HTTP at /mcp.  [default: one client on stdin and stdout]")
@click.option("--tenant", default="", metavar="T", help="Whose requests these are.")
@click.option(
    "--source", default="", metavar="NAME", help="Who calls, where no header X-TTT-Source says.  [default: trusted]"
)
@click.option("--every", default=60.0, show_default=True, metavar="SECONDS", help="Between two passes of learning.")
@counted("--top", 8, "Tools found at most.")
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

    from tttembed_rag.judging.spending import Budget, Price
    from tttembed_rag.serving.context import context
    from tttembed_rag.system.background import checked_interval
    from tttembed_rag.tools.mcp_server import Front, read_servers, serve_http, serve_stdio
    from tttembed_rag.tools.search import LearnedToolSearch

    checked_interval("every", every)
    servers = read_servers(catalog)
    way: Any = serve_stdio if http is None else serve_http(*_address(http))
    said = logging.StreamHandler(sys.stderr)
    said.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("tttembed_rag").addHandler(said)
    logging.getLogger("tttembed_rag.tools").setLevel(logging.INFO)
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
        asyncio.run(Front(search, servers, k=top, every=every).run(way))


@tools.command()
@click.option(
    "--catalog",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The tools that are searched: a JSON file of tools, or a folder with SKILL.md files.",
)
@click.option("--store", required=True, metavar="URL", help="Where the search keeps what was called.")
@click.option("--embedder", default="minilm", show_default=True, metavar="SPEC", help="That of the search.")
@click.option(
    "--grown", default=0.1, show_default=True, type=click.FloatRange(min=0), metavar="SHARE", help="Worth a pass."
)
@judged
def learn(catalog: Path, store: str, embedder: str, grown: float, judge: str | None, budget: str, price: str) -> None:
    """Learn from the calls in a store, for every tenant, as `LearnedToolSearch.learn` does; one pass, for cron.

    A tenant is learned for where requests that no process has learned from are at least a share --grown of the others.
    """
    from tttembed_rag.judging.spending import Budget, Price
    from tttembed_rag.stores import open_store
    from tttembed_rag.tools.search import LearnedToolSearch

    caps, cost = Budget.parse(budget), Price.parse(price)
    with (
        open_store(store, create=False) as opened,
        LearnedToolSearch(catalog, embedder, store=opened, judge=judge, budget=caps, price=cost) as search,
    ):
        for tenant, lesson in search.learn_for_all(grown=grown).items():
            say(f"{named(tenant)}: {lesson}")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isdigit() and int(port) < 65536):
        raise click.UsageError(f"--http: expected [HOST:]PORT, got {text!r}")
    return host or "127.0.0.1", int(port)
