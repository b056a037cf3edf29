"""`tttembed show` and `tttembed explain`: what was learned, and what it does to a query."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tttembed_rag.cli.group import main
from tttembed_rag.offsets import Offset, Offsets


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per offset.")
def show(file: Path, *, as_json: bool) -> None:
    """Print what every offset of a saved FILE was learned from and on what evidence it is served."""
    offsets = Offsets.load(file)
    for offset in offsets.values():
        click.echo(json.dumps(_facts(offset)) if as_json else _line(offset))


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

    found = explaining.explain(folder, query_id, Offsets.load(file), **options)
    if as_json:
        moves = {"rose": [asdict(move) for move in found.rose], "fell": [asdict(move) for move in found.fell]}
        click.echo(json.dumps({"query_id": query_id, "query": found.text, "offset": _facts(found.offset)} | moves))
        return
    click.echo(f"{query_id}: {_shortened(found.text, 90)}\nserved by {_line(found.offset)}")
    for word, moves_ in (("rose", found.rose), ("fell", found.fell)):
        for move in moves_:
            reward = "not judged" if move.reward is None else f"reward {move.reward:g}"
            click.echo(
                f"{word} {abs(move.rank - move.rank_before):>4}: {move.rank_before:>5} -> {move.rank:<5} "
                f"score {move.score_before:.3f} {move.score - move.score_before:+.3f}  {reward:<12} "
                f"{move.document}: {_shortened(move.text, 60)}"
            )
    click.echo(f"{len(found.moves) - len(found.rose) - len(found.fell)} documents kept their rank")


def _facts(offset: Offset) -> dict[str, Any]:
    """What is known of an offset, without its vector."""
    evidence = offset.evidence
    return {
        "key": offset.key,
        "served": offset.served,
        "alpha": offset.alpha,
        "n": offset.n,
        "gain": evidence.gain,
        "interval": evidence.interval,
        "verdict": evidence.verdict,
        "reason": evidence.reason,
        "needed": evidence.needed,
    }


def _line(offset: Offset) -> str:
    """The same in one line a person understands."""
    noun = "query" if offset.n == 1 else "queries"
    return f"{offset.key}: {offset.n} rewarded {noun}, dose {offset.alpha:.2f}, {offset.evidence}"


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder="...")
