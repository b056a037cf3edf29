"""`tttembed show` and `explain`: what was learned, and what it does to a query."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tttembed_rag.cli.group import main, say
from tttembed_rag.cli.options import PathOrURL, opened
from tttembed_rag.cli.telling import offset_facts, offset_line, print_versions, served_now, tell
from tttembed_rag.offsets.lookup import Offsets


@main.command()
@click.argument("file", metavar="FILE|URL", type=PathOrURL())
@click.option("--tenant", default="", metavar="NAME", help="Whose offsets of a store.  [default: the shared tenant]")
@click.option("--all", "everything", is_flag=True, help="A line for every offset, private and local ones too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per offset.")
def show(file: Path | str, tenant: str, *, everything: bool, as_json: bool) -> None:
    """Print what the offsets of a saved FILE were learned from and on what evidence they are served.

    A line for each task, and one that counts private offsets; --all lists these too.

    Of a store, by its URL, its versions are listed, and the offsets of the live one.
    """
    if isinstance(file, Path):
        offsets = Offsets.load(file)
    else:
        with opened(file) as store:
            if not as_json:
                print_versions(store, tenant, 10, as_json=False)
            live, now = store.serving(tenant=tenant).version, served_now(store, tenant)
            offsets = Offsets([], width=1)
            if live is not None:
                offsets = store.history.visible(live.offsets, owner=live.tenant, tenant=tenant)
    tell(offsets, everything=everything, as_json=as_json)
    if not (isinstance(file, Path) or as_json):
        say(now)


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("query_id", metavar="QUERY_ID")
@click.option(
    "--offsets", "file", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Saved offsets."
)
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors of DIR: vectors/NAME.npz.")
@click.option("--rewards", help="scores/NAME.tsv of DIR, or qrels: what was said of each document.")
@click.option("--task", help="Task key of the query.  [default: the name of DIR]")
@click.option("--top", default=10, show_default=True, help="First results looked at, before and after.")
@click.option("--json", "as_json", is_flag=True, help="The explanation as one JSON object.")
def explain(folder: Path, query_id: str, file: Path, *, as_json: bool, **options: Any) -> None:
    """Print which documents rose and fell for one query under saved offsets, and what the judge said of them."""
    from tttembed_rag.evaluate import explaining

    offsets = Offsets.load(file)
    explanation = explaining.explain(folder, query_id, offsets, **options)
    if as_json:
        moves = {
            "rose": [asdict(move) for move in explanation.rose],
            "fell": [asdict(move) for move in explanation.fell],
        }
        offset = offset_facts(explanation.offset, offsets)
        click.echo(json.dumps({"query_id": query_id, "query": explanation.text, "offset": offset} | moves))
        return
    say(f"{query_id}: {_shortened(explanation.text, 90)}")
    say(f"served by {offset_line(explanation.offset)}")
    for word, moves_ in (("rose", explanation.rose), ("fell", explanation.fell)):
        for move in moves_:
            reward = "not judged" if move.reward is None else f"reward {move.reward:g}"
            say(
                f"{word} {abs(move.rank - move.rank_before):>4}: {move.rank_before:>5} -> {move.rank:<5} "
                f"score {move.score_before:.3f} {move.score - move.score_before:+.3f}  {reward:<12} "
                f"{move.document}: {_shortened(move.text, 60)}"
            )
    click.echo(f"{len(explanation.moves) - len(explanation.rose) - len(explanation.fell)} documents kept their rank")


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder="...")
