"""`tttembed show` and `explain`: what was learned, and what it does to a query."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.embedding import embedded_by
from tttembed_rag.cli.group import main, say, text
from tttembed_rag.cli.options import on_scale, path_alone, path_or_url, printed_of_offsets
from tttembed_rag.cli.rows import check_folder, is_file_of_rows, read_embedded, refuse_of_folder, tasks_of, vectors_of
from tttembed_rag.cli.telling import offset_facts, offset_lines, tell
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.extensions import of_store

if TYPE_CHECKING:
    from tttembed_rag.evaluate.explaining import Explanation

# Rewarded queries that are named in lines of their own.
_MOVERS = 5
# Words that a document shares with the query, the rarest first, that stand in its line.
_WORDS = 4


@main.command(short_help="Print what was learned, and on what evidence it is served.")
@click.argument("file", metavar="FILE|URL", type=path_or_url)
@text("--tenant", "NAME", "Whose offsets of a store.  [default: the shared tenant]")
@printed_of_offsets
def show(file: Path | str, tenant: str, *, everything: bool, verbose: bool, as_json: bool) -> None:
    """Print what the offsets of a saved FILE were learned from and on what evidence they are served.

    A line for each task, and one that counts private offsets; --all lists these too.

    Of a store, by its URL, its versions are listed, and the offsets of the live one.
    """
    if isinstance(file, Path):
        tell(Offsets.load(file), everything=everything, verbose=verbose, as_json=as_json)
        return
    served = of_store("serving", brings="what a store serves is known to a part")
    offsets, now = served(file, tenant, as_json=as_json)
    tell(offsets, everything=everything, verbose=verbose, as_json=as_json)
    if not as_json:
        say(now)


@main.command(short_help="Print which documents rose and fell for one query, and why.")
@click.argument("folder", metavar="DIR|FILE", type=path_alone)
@click.argument("query_id", metavar="QUERY")
@click.option("--offsets", "file", required=True, metavar="FILE", type=Path, help="Saved offsets.")
@click.option("--vectors", default="minilm", help="Stored vectors of DIR: vectors/NAME.npz.")
@embedded_by("the texts of FILE")
@click.option("--rewards", help="scores/NAME.tsv of DIR or a log, or qrels: what was said of each document.")
@on_scale
@click.option("--task", help="Task key of the query.  [default: the one of the offsets, or the name of DIR]")
@click.option("--top", default=10, help="First results looked at, before and after.")
@click.option("--json", "as_json", is_flag=True, help="The explanation as one JSON object.")
def explain(
    folder: Path,
    query_id: str,
    file: Path,
    vectors: str,
    embed: str | None,
    scale: Scale | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Print which documents rose and fell for one query under saved offsets, and what the judge said of them.

    QUERY is the id of a query of a BEIR folder; or the text of one of FILE, your own feedback or a judged log as
    `tttembed fit` takes it. Of a local offset the rewarded queries are named that moved this one, each with its share
    of the move.
    """
    offsets = Offsets.load(file)
    if is_file_of_rows(folder):
        refuse_of_folder([folder], "vectors")
        explanation = _of_rows(folder, query_id, offsets, embed, scale, **options)
    else:
        from tttembed_rag.evaluate.explaining import explain

        check_folder(folder, embed)
        explanation = explain(folder, query_id, offsets, vectors=vectors, **options)
    moves = {word: getattr(explanation, word) for word in ("rose", "fell", "kept")}
    if as_json:
        offset = offset_facts(explanation.offset, offsets)
        movers = [asdict(mover) for mover in explanation.movers]
        facts = {"query_id": query_id, "query": explanation.text, "offset": offset, "moved_by": movers}
        click.echo(json.dumps(facts | {word: [asdict(move) for move in some] for word, some in moves.items()}))
        return
    say(_titled(query_id, explanation.text, 90))
    served, *more = offset_lines(explanation.offset)
    for line in (f"served by {served}", *more):
        say(line)
    for mover in explanation.movers[:_MOVERS]:
        text = "" if mover.text == mover.query_id else _shortened(mover.text, 60)
        say(f"moved by {mover.query_id or 'a query that is not here'}: {mover.share:+.0%}  {text}".rstrip())
    if rest := explanation.movers[_MOVERS:]:
        say(f"and by {len(rest)} more: {sum(mover.share for mover in rest):+.0%}")
    for word, some in moves.items():
        for move in some:
            reward = "not judged" if move.reward is None else f"reward {move.reward:.3g}"
            words = f"  words: {', '.join(move.words[:_WORDS])}" if move.words else ""
            say(
                f"{word} {abs(move.rank - move.rank_before):>4}: {move.rank_before:>5} -> {move.rank:<5} "
                f"score {move.score_before:.3f} {move.score - move.score_before:+.3f}  {reward:<12} "
                f"{_titled(move.document, move.text, 60)}{words}"
            )
    click.echo(_LEGEND)
    if any(move.words for move in explanation.moves):
        click.echo(
            "words: those that the document shares with the query, rarest first: the list is sorted by them too."
        )


def _of_rows(
    file: Path,
    query: str,
    offsets: Offsets,
    embed: str | None,
    scale: Scale | None,
    *,
    rewards: str | None,
    task: str | None,
    top: int,
) -> Explanation:
    """The effect of *offsets* on a *query* of the user's own *file*."""
    from tttembed_rag.evaluate.explaining import explain_in, task_of

    of_task = task or task_of(offsets, DEFAULT_TASK)
    read = read_embedded(file, embed=embed, rewards=rewards, scale=scale, task=of_task)
    learned_for = offsets.settings.get("embedder", read.embedder)
    if learned_for != read.embedder:
        raise click.UsageError(f"--embed: expected the model of the offsets, {learned_for}, got {read.embedder}")
    for dataset, scores, _ in tasks_of(read):
        if query in dataset.queries and task in (None, dataset.name):
            return explain_in(dataset, query, offsets, *vectors_of(read, dataset), scores, task=dataset.name, top=top)
    raise click.UsageError(f"QUERY: expected the text of a query of {file}, got {query!r}")


# What the numbers of a document's line mean.
_LEGEND = (
    "rose, fell, kept: ranks, and the rank before -> with the offset. score: cosine similarity of document and query\n"
    "vector before, and its change. reward: what was said of the document for this query; not judged: nothing was."
)


def _titled(name: str, text: str, width: int) -> str:
    """A name and the beginning of a text; the text alone where that is the name."""
    return _shortened(text, width) if name == text else f"{name}: {_shortened(text, width)}"


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder="...")
