"""`tttembed fit`, `show` and `explain`: offsets from rewards, what was learned, and what it does to a query."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from tttembed_rag.cli.group import check_target, main, say
from tttembed_rag.cli.store import PathOrURL, opened, print_versions
from tttembed_rag.offsets import Offset, Offsets
from tttembed_rag.rewards import Rewards, Scale


@main.command()
@click.argument("file", metavar="FILE|URL", type=PathOrURL())
@click.option("--tenant", default="", metavar="NAME", help="Whose offsets of a store.  [default: the shared tenant]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per offset.")
def show(file: Path | str, tenant: str, *, as_json: bool) -> None:
    """Print what every offset of a saved FILE was learned from and on what evidence it is served.

    Of a store, by its URL, its versions are listed, and the offsets of the live one.
    """
    if isinstance(file, Path):
        offsets = Offsets.load(file)
    else:
        with opened(file) as store:
            if not as_json:
                print_versions(store, tenant, 10, as_json=False)
            live = store.serving(tenant=tenant).version
            offsets = live.offsets if live is not None else Offsets([], width=1)
    for offset in offsets.values():
        say(json.dumps(_facts(offset)) if as_json else _line(offset))


@main.command("fit")
@click.argument("source", metavar="DIR|URL", type=PathOrURL())
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Where the offsets go.")
@click.option("--judge", help="Whose rewards of a store.  [default: the only judge]")
@click.option("--tenant", default="", metavar="NAME", help="Whose rewards of a store.  [default: the shared tenant]")
@click.option("--last", type=int, metavar="N", help="Only the last served N queries of a store.")
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors of DIR: vectors/NAME.npz.")
@click.option("--rewards", help="Rewards of DIR: scores/NAME.tsv, or qrels (simulated judge).")
@click.option("--scale", default="probability", show_default=True, help="probability, logit or rubric:LOW,HIGH.")
@click.option("--depth", default=10, show_default=True, help="Rewarded candidates per query of DIR.")
@click.option("--scope", type=click.Choice(["auto", "global", "task", "query"]), default="auto", show_default=True)
@click.option("--no-gate", is_flag=True, help="The plain rule: serve what was learned without asking for evidence.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per offset.")
def learn(source: Path | str, out: Path, scope: Any, *, no_gate: bool, as_json: bool, **options: Any) -> None:
    """Learn offsets from the rewards of a BEIR folder with stored vectors, or of a store, and save them."""
    from tttembed_rag.gate import fit

    check_target(out)
    if scope == "auto" and no_gate:
        raise click.UsageError("--no-gate needs --scope global, task or query: auto is chosen by evidence")
    rewards = _of_store(source, **options) if isinstance(source, str) else _of_folder(source, **options)
    offsets = fit(rewards, scope=scope, gate=not no_gate)
    offsets.save(out)
    for offset in offsets.values():
        say(json.dumps(_facts(offset)) if as_json else _line(offset))
    if not as_json:
        served = sum(offset.served for offset in offsets.values())
        click.echo(f"{out}: {len(offsets)} offsets from {len(rewards)} rewarded queries, {served} served")


def _of_store(url: str, judge: str | None, tenant: str, last: int | None, **_: Any) -> Rewards:
    """The rewards of one judge in a store."""
    with opened(url) as store:
        judges = [name for name, _ in store.judges(tenant=tenant)]
        if judge is None and len(judges) > 1:
            raise click.UsageError(f"--judge: expected one of {', '.join(judges)}")
        return store.rewards(judge or (judges[0] if judges else "any"), tenant=tenant, last=last)


def _of_folder(folder: Path, vectors: str, rewards: str | None, scale: str, depth: int, **_: Any) -> Rewards:
    """The rewards of a BEIR folder, for the queries of which any was judged."""
    from tttembed_rag.evaluate.experiment import open_collection, pooled_rewards

    if rewards is None:
        raise click.UsageError("--rewards: expected scores/NAME.tsv of the folder by its NAME, or qrels")
    collection = open_collection(folder, vectors=vectors, rewards=rewards, scale=Scale.parse(scale), index="flat")
    judged = [row for row in range(len(collection.query_ids)) if len(collection.candidates(row, depth)[0])]
    return pooled_rewards([collection], [np.array(judged, dtype=np.intp)], depth)


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
    say(f"{query_id}: {_shortened(found.text, 90)}")
    say(f"served by {_line(found.offset)}")
    for word, moves_ in (("rose", found.rose), ("fell", found.fell)):
        for move in moves_:
            reward = "not judged" if move.reward is None else f"reward {move.reward:g}"
            say(
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
