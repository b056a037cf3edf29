"""`tttembed tools`: learning from calls of tools under cron; MCP servers behind one search are added by others."""

from __future__ import annotations

from pathlib import Path

import click

from tttembed_rag.cli.group import main, say
from tttembed_rag.cli.options import judged
from tttembed_rag.cli.telling import named


@main.group(short_help="Search over the tools of agents that learns which of them worked.")
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
@judged
def learn(catalog: Path, store: str, embedder: str, judge: str | None, budget: str, price: str) -> None:
    """Learn from the calls in a store, for every tenant, as `LearnedToolSearch.learn` does; one pass, for cron.

    A tenant is learned for where requests that no process has learned from are at least a tenth of the others.
    """
    from tttembed_rag.judging.spending import Budget, Price
    from tttembed_rag.search import GROWTH, LearnedToolSearch
    from tttembed_rag.stores import open_store

    caps, cost = Budget.parse(budget), Price.parse(price)
    with (
        open_store(store, create=False) as opened,
        LearnedToolSearch(catalog, embedder, store=opened, judge=judge, budget=caps, price=cost) as search,
    ):
        for tenant, lesson in search.learn_for_all(grown=GROWTH).items():
            say(f"{named(tenant)}: {lesson}")
