"""`tttembed fit`: offsets from rewards, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import click
import numpy as np

from tttembed_rag.cli.embedding import embedded_by
from tttembed_rag.cli.group import counted, main, target, text, together
from tttembed_rag.cli.labels import read_labels
from tttembed_rag.cli.options import (
    by_language,
    on_scale,
    path_alone,
    path_or_url,
    printed_of_offsets,
    warn_of_sources,
    whether_trusted,
)
from tttembed_rag.cli.rows import check_folder, read_embedded, refuse_given, refuse_of_folder
from tttembed_rag.cli.telling import tell, with_origin
from tttembed_rag.offsets.offset import AnyScope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.languages import language_means, language_of
from tttembed_rag.system.extensions import of_store

if TYPE_CHECKING:
    from tttembed_rag.judging.biases import Texts


# Whose rewards they are, and on which scale.
whose_rewards = together(
    click.option("--task", default=DEFAULT_TASK, help="Task of rows of FILE that name none."),
    by_language,
    click.option("--judge", help="Whose rewards of a store.  [default: the only judge]"),
    text("--tenant", "NAME", "Whose rewards of a store.  [default: the shared tenant]"),
    click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last served N queries of a store."),
    click.option("--rewards", metavar="NAME", help="Rewards of DIR or a log: scores/NAME.tsv; or qrels (simulated)."),
    on_scale,
    counted("--depth", 10, "Rewarded candidates per query of DIR."),
    whether_trusted,
)
# Where rewards are: what `read_rewards` takes.
from_source = click.argument("source", metavar="FILE|DIR|URL", type=path_or_url)
rewards_options = together(
    from_source,
    embedded_by("the texts of FILE, or of a store"),
    click.option("--vectors", default="minilm", help="Stored vectors of DIR: vectors/NAME.npz."),
    whose_rewards,
)


@main.command("fit")
@rewards_options
@click.option("--out", required=True, metavar="FILE", type=target, help="Where the offsets go.")
@click.option("--scope", type=click.Choice(get_args(AnyScope)), default="auto")
@click.option("--no-gate", is_flag=True, help="The plain rule: serve what was learned without asking for evidence.")
@click.option("--start", metavar="FILE", type=Path, help="Offsets that are served already, as of `tttembed language`.")
@click.option("--audit", metavar="FILE", type=Path, help="Labels that `audit draw` asked for.")
@click.option(
    "--engine", metavar="NAME", help="Of a folder of Parquet: local, ray or ray://HOST:PORT.  [default: local]"
)
@printed_of_offsets
def learn(
    source: Path | str,
    out: Path,
    scope: Any,
    start: Path | None,
    audit: Path | None,
    engine: str | None,
    *,
    no_gate: bool,
    everything: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Learn offsets from rewards, and save them.

    FILE is your own feedback, CSV with a header or JSON lines: query, document (their texts), and one of reward (in
    [0, 1], or on --scale), thumb (1 up, -1 down, 0 taken back), click (1 clicked, 0 shown and not clicked; with
    position) or success (1, 0); task and source (who said it) where there are several. Or it is a log of served
    queries as `tttembed judge` reads it, with --rewards. DIR is a BEIR folder with stored vectors; or a folder of
    Parquet files as `tttembed store export-rewards` writes it, each file of queries a shard, held where --engine says.
    URL is a store.
    """
    from tttembed_rag.gate.fit import fit
    from tttembed_rag.judging.biases import warnings_of

    if scope == "auto" and no_gate:
        raise click.UsageError("--no-gate needs --scope global, task, local or query: auto is chosen by evidence")
    if audit is not None and no_gate:
        raise click.UsageError("--audit: expected the gate, which asks it, got --no-gate")
    labels = None if audit is None else read_labels(audit)
    if isinstance(source, Path) and is_sharded(source):
        refuse_all_but_scale(source)
        fit_folder = of_store("fit-folder", brings="learning from a folder of Parquet files is a part")
        held, scale = engine or "local", options["scale"] or Scale()
        offsets, learned = fit_folder(source, engine=held, scope=scope, gate=not no_gate, scale=scale, audit=labels)
        warning = ""
    elif engine:
        raise click.UsageError(f"--engine: expected a folder of Parquet files, got {source}")
    else:
        known = read_rewards(source, **options)
        rewards = known.rewards
        ids = rewards.query_ids.tolist()
        if labels and not {query for query, _ in labels} & set(ids):
            got, _ = next(iter(labels))
            raise click.UsageError(f"{audit}: expected labels of queries of {source}, as {ids[0]!r}, got {got!r}")
        begun = None if start is None else Offsets.load(start)
        offsets, learned = fit(rewards, scope=scope, gate=not no_gate, audit=labels, start=begun), len(rewards)
        folder = isinstance(source, Path) and source.is_dir()
        doubt = (options["scale"] or Scale()).doubt(rewards.values) if folder else ""
        warning = "\n".join(filter(None, [doubt, *warnings_of(*known)]))
    offsets = with_origin(offsets, warning=warning)
    offsets.save(out)
    tell(offsets, everything=everything, verbose=verbose, as_json=as_json)
    if not as_json:
        served = sum(offset.served for offset in offsets.values())
        queries = f"{learned} rewarded queries{_counted(offsets, learned)}"
        click.echo(f"{out}: {len(offsets)} offsets from {queries}, {served} served")


@main.command(short_help="Take the pull of a query's own language away, without verdicts.")
@click.argument("folder", metavar="DIR", type=path_alone)
@click.option("--vectors", default="minilm", help="Stored vectors of DIR: vectors/NAME.npz.")
@click.option("--out", required=True, metavar="FILE", type=target, help="Where the offsets go.")
@printed_of_offsets
def language(folder: Path, vectors: str, out: Path, *, everything: bool, verbose: bool, as_json: bool) -> None:
    """Learn an offset for each language from the documents of DIR, and its queries, and save them; no verdict is asked.

    DIR is a BEIR folder with stored vectors. A line says of each language what part of the first ten documents has the
    language of the query, before and after. Serve them as the offsets of tasks named by language, and give them to
    `tttembed fit --language --start FILE` once there are verdicts.
    """
    from tttembed_rag.evaluate.files import embedder_of, load_beir, load_vectors

    dataset = load_beir(folder, labels=False)
    documents, queries = load_vectors(folder, vectors, dataset)
    spoken = [[language_of(text) or "" for text in some.values()] for some in (dataset.documents, dataset.queries)]
    of_queries = (queries, spoken[1]) if len(queries) else ()
    offsets = language_means(documents, spoken[0], *of_queries, embedder=embedder_of(folder, vectors))
    offsets.save(out)
    tell(offsets, everything=everything, verbose=verbose, as_json=as_json)


def _counted(offsets: Offsets, learned: int) -> str:
    """As how many queries the gate counts those that were *learned* from, where these are fewer."""
    tasks: dict[str | None, int] = {}
    for offset in offsets.values():
        if offset.query_id is None and offset.scope != "global":
            tasks[offset.task] = max(tasks.get(offset.task, 0), offset.n)
    counted = sum(tasks.values())
    if not 0 < counted < learned:
        return ""
    return f" (the gate counts {counted}: near repeats of a query, and those of one source that are alike, count less)"


def is_sharded(folder: Path) -> bool:
    """Whether *folder* holds the two tables of `Rewards.to_parquet`."""
    return all((folder / table).is_dir() for table in ("queries", "documents"))


def refuse_all_but_scale(folder: Path) -> None:
    """Refuse the options that say where rewards are, of which a *folder* of Parquet files says all but the scale."""
    names = ("embed", "task", "language", "judge", "tenant", "last", "vectors", "rewards", "depth", "trusted")
    refuse_given(names, "a store, a file or a BEIR folder", f"{folder}, a folder of Parquet files")


class KnownRewards(NamedTuple):
    """The rewards of a source, by ids the lengths of documents and which were first served later, and the texts."""

    rewards: Rewards
    lengths: Mapping[str, int]
    arrivals: Mapping[str, int] = MappingProxyType({})
    texts: Callable[[Rewards], Texts] | None = None


def read_rewards(
    source: Path | str,
    *,
    embed: str | None,
    task: str,
    language: bool,
    judge: str | None,
    tenant: str,
    last: int | None,
    vectors: str,
    rewards: str | None,
    scale: Scale | None,
    depth: int,
    trusted: bool | None,
) -> KnownRewards:
    """The rewards that `rewards_options` ask for, and what is known of their texts."""
    if isinstance(source, str):
        refuse_given(("task", "vectors", "rewards", "scale", "depth"), "a file or a folder", "a store")
        rewards_of = of_store("rewards", brings="learning from a store is a part")
        known: KnownRewards = rewards_of(source, tenant=tenant, judge=judge, embed=embed, last=last)
    elif is_sharded(source):
        refuse_all_but_scale(source)
        known = KnownRewards(Rewards.from_parquet(source, scale=scale or Scale()), {})
    elif source.is_dir():
        refuse_given(("judge", "tenant", "last"), "a store", source)
        check_folder(source, embed)
        refuse_given(["task"], "a file or a log", source)
        known = _of_folder(source, vectors, rewards, scale or Scale(), depth)
    else:
        refuse_given(("judge", "tenant", "last"), "a store", source)
        refuse_of_folder([source], "vectors", "depth")
        voted = read_embedded(source, embed=embed, rewards=rewards, scale=scale, task=task)
        queries = dict(zip(voted.query_ids.tolist(), voted.query_texts.tolist(), strict=True))
        documents = dict(zip(voted.doc_ids.tolist(), voted.doc_texts.tolist(), strict=True))
        lengths = {name: len(text) for name, text in documents.items()}
        known = KnownRewards(voted, lengths, texts=lambda _: (queries, documents))
    warn_of_sources(known.rewards.sources, trusted=trusted)
    trusted = known.rewards.trusted if trusted is None else trusted
    tasks = known.rewards.tasks
    if language:
        tasks = np.array([language_of(text) or DEFAULT_TASK for text in known.rewards.query_texts], dtype=np.str_)
    return known._replace(rewards=replace(known.rewards, trusted=trusted, tasks=tasks))


def _of_folder(folder: Path, vectors: str, rewards: str | None, scale: Scale, depth: int) -> KnownRewards:
    from tttembed_rag.evaluate.collection import open_collection, pooled_rewards
    from tttembed_rag.evaluate.files import embedder_of

    if rewards is None:
        raise click.UsageError("--rewards: expected scores/NAME.tsv of the folder by its NAME, or qrels")
    collection = open_collection(folder, vectors=vectors, rewards=rewards, scale=scale, labels=False)
    pooled = pooled_rewards([collection], [collection.judged(depth)], depth)
    read = collection.dataset
    lengths = {name: len(text) for name, text in read.documents.items()}
    pooled = replace(pooled, embedder=embedder_of(folder, vectors))
    return KnownRewards(pooled, lengths, texts=lambda _: (read.queries, read.documents))
