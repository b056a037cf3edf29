"""`tttembed fit`: offsets from rewards, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

import click
import numpy as np

from tttembed_rag.cli.embedding import embedded_by, fill
from tttembed_rag.cli.group import check_target, counted, main
from tttembed_rag.cli.labels import read_labels
from tttembed_rag.cli.options import PathOrURL, opened, whether_trusted
from tttembed_rag.cli.rows import read_embedded, refuse_embed, refuse_given, refuse_of_folder
from tttembed_rag.cli.telling import tell, with_origin
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope
from tttembed_rag.rewards import DEFAULT_TASK, Rewards
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.rewards.texts import id_of_text

if TYPE_CHECKING:
    from tttembed_rag.judging.biases import Texts


# Where rewards are.
_REWARDS_OPTIONS = (
    click.argument("source", metavar="FILE|DIR|URL", type=PathOrURL()),
    embedded_by("the texts of FILE, or of a store"),
    click.option("--task", default=DEFAULT_TASK, show_default=True, help="Task of rows of FILE that name none."),
    click.option("--judge", help="Whose rewards of a store.  [default: the only judge]"),
    click.option(
        "--tenant", default="", metavar="NAME", help="Whose rewards of a store.  [default: the shared tenant]"
    ),
    click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last served N queries of a store."),
    click.option("--vectors", default="minilm", show_default=True, help="Stored vectors of DIR: vectors/NAME.npz."),
    click.option("--rewards", metavar="NAME", help="Rewards of DIR or a log: scores/NAME.tsv; or qrels (simulated)."),
    click.option("--scale", default="probability", show_default=True, help="probability, logit or rubric:LOW,HIGH."),
    counted("--depth", 10, "Rewarded candidates per query of DIR."),
    whether_trusted,
)
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def rewards_options(command: CommandT) -> CommandT:
    """The argument and the options that say where rewards are: what a `RewardSource` asks for."""
    for option in reversed(_REWARDS_OPTIONS):
        command = option(command)
    return command


@main.command("fit")
@rewards_options
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Where the offsets go.")
@click.option("--scope", type=click.Choice(get_args(AnyScope)), default="auto", show_default=True)
@click.option("--no-gate", is_flag=True, help="The plain rule: serve what was learned without asking for evidence.")
@click.option("--audit", metavar="FILE", type=click.Path(path_type=Path), help="Labels that `audit draw` asked for.")
@click.option(
    "--engine", metavar="NAME", help="Of a folder of Parquet: local, ray or ray://HOST:PORT.  [default: local]"
)
@click.option(
    "--scratch", is_flag=True, help="Of a folder of Parquet: query vectors in temporary files, not in memory."
)
@click.option("--all", "everything", is_flag=True, help="A line for every offset, private and local ones too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per offset.")
def learn(
    source: Path | str,
    out: Path,
    scope: Any,
    audit: Path | None,
    engine: str | None,
    *,
    scratch: bool,
    no_gate: bool,
    everything: bool,
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
    from tttembed_rag.gate.deciding import fit
    from tttembed_rag.judging.biases import warnings_of

    check_target(out)
    if scope == "auto" and no_gate:
        raise click.UsageError("--no-gate needs --scope global, task, local or query: auto is chosen by evidence")
    if audit is not None and no_gate:
        raise click.UsageError("--audit: expected the gate, which asks it, got --no-gate")
    labels = None if audit is None else read_labels(audit)
    if isinstance(source, Path) and is_sharded(source):
        from tttembed_rag.rewards.parquet import parts
        from tttembed_rag.scale import fit_sharded

        refuse_all_but_scale(source)
        held, scale = engine or "local", options["scale"]
        offsets = fit_sharded(
            source, engine=held, scope=scope, gate=not no_gate, scale=scale, scratch=scratch, audit=labels
        )
        learned, warning = sum(parts(source).values()), ""
    elif engine or scratch:
        option = "engine" if engine else "scratch"
        raise click.UsageError(f"--{option}: expected a folder of Parquet files, got {source}")
    else:
        found = RewardSource(source=source, out=out, **options).read()
        rewards = found.rewards
        known = rewards.query_ids.tolist()
        if labels and not {query for query, _ in labels} & set(known):
            got, _ = next(iter(labels))
            raise click.UsageError(f"{audit}: expected labels of queries of {source}, as {known[0]!r}, got {got!r}")
        offsets, learned = fit(rewards, scope=scope, gate=not no_gate, audit=labels), len(rewards)
        folder = isinstance(source, Path) and source.is_dir()
        doubt = Scale.parse(options["scale"]).doubt(rewards.values) if folder else ""
        warning = "\n".join(filter(None, [doubt, *warnings_of(*found)]))
    offsets = with_origin(offsets, warning=warning)
    offsets.save(out)
    tell(offsets, everything=everything, as_json=as_json)
    if not as_json:
        served = sum(offset.served for offset in offsets.values())
        queries = f"{learned} rewarded queries{_counted(offsets, learned)}"
        click.echo(f"{out}: {len(offsets)} offsets from {queries}, {served} served")


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
    """Refuse the options that say where rewards are, of which a *folder* of Parquet files says all but the scale.

    Raises:
        click.UsageError: One was given on the command line.
    """
    names = [field.name for field in fields(RewardSource) if field.name not in ("source", "out", "scale")]
    refuse_given(names, "a store, a file or a BEIR folder", f"{folder}, a folder of Parquet files")


class Found(NamedTuple):
    """The rewards of a source, by ids the lengths of documents and which were first served later, and the texts."""

    rewards: Rewards
    lengths: Mapping[str, int]
    arrivals: Mapping[str, int] = MappingProxyType({})
    texts: Callable[[Rewards], Texts] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSource:
    """What was asked for on the command line; see its options."""

    source: Path | str
    out: Path
    embed: str | None
    task: str
    judge: str | None
    tenant: str
    last: int | None
    vectors: str
    rewards: str | None
    scale: str
    depth: int
    trusted: bool | None

    def read(self) -> Found:
        """The rewards, and what is known of their texts.

        Raises:
            click.UsageError: An option was given that says nothing of this source.
        """
        found = self._read()
        trusted = found.rewards.trusted if self.trusted is None else self.trusted
        return found._replace(rewards=replace(found.rewards, trusted=trusted))

    def _read(self) -> Found:
        if isinstance(self.source, str):
            refuse_given(("task", "vectors", "rewards", "scale", "depth"), "a file or a folder", "a store")
            return self._of_store(self.source)
        if is_sharded(self.source):
            refuse_all_but_scale(self.source)
            return Found(Rewards.from_parquet(self.source, scale=self.scale), {})
        refuse_given(("judge", "tenant", "last"), "a store", self.source)
        return self._of_folder(self.source) if self.source.is_dir() else self._of_file(self.source)

    def _of_store(self, url: str) -> Found:
        from tttembed_rag.stores.records import AUDIT

        with opened(url) as store:
            judges = [name for name, _ in store.judges(tenant=self.tenant) if name != AUDIT]
            if self.judge is None and len(judges) > 1:
                raise click.UsageError(f"--judge: expected one of {', '.join(judges)}")
            judge = self.judge or (judges[0] if judges else "any")
            if self.embed is not None:
                embedder: str | None = fill(store, self.embed, "", only_without_any=False)[0]
            else:
                embedder = store.embedder(judge, tenant=self.tenant)
                if embedder is None and (lacking := store.vectors.lacking()).texts:
                    raise click.UsageError(f"{lacking}: give --embed SPEC, the model that the index was built with")
            rewards = store.rewards(judge, tenant=self.tenant, embedder=embedder, last=self.last)
            names = rewards.doc_ids.tolist()
            lengths = store.history.document_lengths(self.tenant, names)
            arrivals = store.history.document_arrivals(self.tenant, names)
            return Found(rewards, lengths, arrivals, partial(self._texts_in_store, url))

    def _texts_in_store(self, url: str, rewards: Rewards) -> Texts:
        names = np.unique(rewards.doc_ids[rewards.candidates]).tolist()
        with opened(url) as store:
            return store.history.texts(self.tenant), store.history.document_texts(self.tenant, names)

    def _of_folder(self, folder: Path) -> Found:
        from tttembed_rag.evaluate.collection import open_collection, pooled_rewards
        from tttembed_rag.evaluate.files import embedder_of, load_beir

        refuse_embed(folder, self.embed)
        refuse_given(["task"], "a file or a log", folder)
        if self.rewards is None:
            raise click.UsageError("--rewards: expected scores/NAME.tsv of the folder by its NAME, or qrels")
        scale = Scale.parse(self.scale)
        collection = open_collection(folder, vectors=self.vectors, rewards=self.rewards, scale=scale, labels=False)
        judged = [row for row in range(len(collection.query_ids)) if len(collection.candidates(row, self.depth)[0])]
        pooled = pooled_rewards([collection], [np.array(judged, dtype=np.intp)], self.depth)
        read = load_beir(folder, labels=False)
        lengths = {name: len(text) for name, text in read.documents.items()}
        pooled = replace(pooled, embedder=embedder_of(folder, self.vectors))
        return Found(pooled, lengths, texts=lambda _: (read.queries, read.documents))

    def _of_file(self, file: Path) -> Found:
        refuse_of_folder([file], "vectors", "depth")
        read = read_embedded(
            file, embed=self.embed, rewards=self.rewards, scale=self.scale, task=self.task, beside=self.out.parent
        )
        documents = {id_of_text(row.document): row.document for row in read.rows}
        lengths = {name: len(text) for name, text in documents.items()}
        asked = {row.query: row.query for row in read.rows}
        return Found(read.rewards(), lengths, texts=lambda _: (asked, documents))
