"""`tttembed fit`, `show` and `explain`: offsets from rewards, what was learned, and what it does to a query."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from tttembed_rag.cli.group import check_target, counted, main, say
from tttembed_rag.cli.options import PathOrURL, opened
from tttembed_rag.cli.telling import print_versions, served_now, with_origin
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope, Offset
from tttembed_rag.rewards import Rewards
from tttembed_rag.scales import Scale


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
            live, now = store.serving(tenant=tenant).version, served_now(store, tenant)
            offsets = live.offsets if live is not None else Offsets([], width=1)
    _tell(offsets, as_json=as_json)
    if not (isinstance(file, Path) or as_json):
        say(now)


@main.command("fit")
@click.argument("source", metavar="DIR|URL", type=PathOrURL())
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Where the offsets go.")
@click.option("--judge", help="Whose rewards of a store.  [default: the only judge]")
@click.option("--tenant", default="", metavar="NAME", help="Whose rewards of a store.  [default: the shared tenant]")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last served N queries of a store.")
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors of DIR: vectors/NAME.npz.")
@click.option("--rewards", help="Rewards of DIR: scores/NAME.tsv, or qrels (simulated judge).")
@click.option("--scale", default="probability", show_default=True, help="probability, logit or rubric:LOW,HIGH.")
@counted("--depth", 10, "Rewarded candidates per query of DIR.")
@click.option("--scope", type=click.Choice(get_args(AnyScope)), default="auto", show_default=True)
@click.option("--no-gate", is_flag=True, help="The plain rule: serve what was learned without asking for evidence.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per offset.")
def learn(source: Path | str, out: Path, scope: Any, *, no_gate: bool, as_json: bool, **options: Any) -> None:
    """Learn offsets from the rewards of a BEIR folder with stored vectors, or of a store, and save them."""
    from tttembed_rag.gate.deciding import fit

    check_target(out)
    if scope == "auto" and no_gate:
        raise click.UsageError("--no-gate needs --scope global, task, local or query: auto is chosen by evidence")
    embedder = ""
    if isinstance(source, str):
        rewards, embedder = _of_store(source, **options)
    else:
        rewards = _of_folder(source, **options)
    offsets = fit(rewards, scope=scope, gate=not no_gate)
    with_origin(offsets, embedder=embedder).save(out)
    _tell(offsets, as_json=as_json)
    if not as_json:
        served = sum(offset.served for offset in offsets.values())
        click.echo(f"{out}: {len(offsets)} offsets from {len(rewards)} rewarded queries, {served} served")


def _of_store(url: str, judge: str | None, tenant: str, last: int | None, **_: Any) -> tuple[Rewards, str]:
    """The rewards of one judge in a store, and the embedding model of their vectors."""
    with opened(url) as store:
        judges = [name for name, _ in store.judges(tenant=tenant)]
        if judge is None and len(judges) > 1:
            raise click.UsageError(f"--judge: expected one of {', '.join(judges)}")
        judge = judge or (judges[0] if judges else "any")
        embedder = store.embedder(judge, tenant=tenant)
        return store.rewards(judge, tenant=tenant, embedder=embedder, last=last), embedder or ""


def _of_folder(folder: Path, vectors: str, rewards: str | None, scale: str, depth: int, **_: Any) -> Rewards:
    """The rewards of the judged queries of a BEIR folder."""
    from tttembed_rag.evaluate.collection import open_collection, pooled_rewards

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

    offsets = Offsets.load(file)
    explanation = explaining.explain(folder, query_id, offsets, **options)
    if as_json:
        moves = {
            "rose": [asdict(move) for move in explanation.rose],
            "fell": [asdict(move) for move in explanation.fell],
        }
        offset = _facts(explanation.offset, offsets)
        click.echo(json.dumps({"query_id": query_id, "query": explanation.text, "offset": offset} | moves))
        return
    say(f"{query_id}: {_shortened(explanation.text, 90)}")
    say(f"served by {_line(explanation.offset)}")
    for word, moves_ in (("rose", explanation.rose), ("fell", explanation.fell)):
        for move in moves_:
            reward = "not judged" if move.reward is None else f"reward {move.reward:g}"
            say(
                f"{word} {abs(move.rank - move.rank_before):>4}: {move.rank_before:>5} -> {move.rank:<5} "
                f"score {move.score_before:.3f} {move.score - move.score_before:+.3f}  {reward:<12} "
                f"{move.document}: {_shortened(move.text, 60)}"
            )
    click.echo(f"{len(explanation.moves) - len(explanation.rose) - len(explanation.fell)} documents kept their rank")


def _tell(offsets: Offsets, *, as_json: bool) -> None:
    """Print the judge that gave the rewards, and a line for each offset."""
    if not as_json and (judge := offsets.settings.get("judge")) is not None:
        say(f"rewards: {judge}")
    for offset in offsets.values():
        say(json.dumps(_facts(offset, offsets)) if as_json else _line(offset))


def _facts(offset: Offset, offsets: Offsets) -> dict[str, Any]:
    """One of *offsets* as a JSON object, without its vector."""
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
        "judge": offsets.settings.get("judge"),
    }


def _line(offset: Offset) -> str:
    """An offset in one line that a person understands."""
    noun = "query" if offset.n == 1 else "queries"
    return f"{offset.key}: {offset.n} rewarded {noun}, dose {offset.alpha:.2f}, {offset.evidence}"


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder="...")
