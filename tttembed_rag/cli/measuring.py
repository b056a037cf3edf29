"""`tttembed eval` and `tttembed demo`: what offsets do, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from tttembed_rag.cli.embedding import embedded_by
from tttembed_rag.cli.group import Many, check_target, main, write_json
from tttembed_rag.cli.options import PathAlone
from tttembed_rag.cli.processes import side_by_side, worker_processes
from tttembed_rag.cli.progress import watched
from tttembed_rag.cli.rows import is_file_of_rows, read_embedded, refuse_embed, refuse_of_folder
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.scales import Scale

if TYPE_CHECKING:
    from tttembed_rag.evaluate.collection import Collection
    from tttembed_rag.evaluate.experiment import ExperimentPlan, Row


@main.command("eval")
@click.argument("folders", nargs=-1, required=True, metavar="DIR|FILE...", type=PathAlone())
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors of DIR: vectors/NAME.npz.")
@embedded_by("the texts of FILE")
@click.option("--task", help="Task of rows of FILE that name none.  [default: default; of several FILEs each its name]")
@click.option("--rewards", default="qrels", show_default=True, help="scores/NAME.tsv, or qrels (simulated judge).")
@click.option("--scale", default="probability", show_default=True, help="probability, logit or rubric:LOW,HIGH.")
@click.option("--depth", default=10, show_default=True, help="Rewarded candidates per query.")
@click.option("--rewarded", default="16,64,200", show_default=True, type=Many(int, "N,..."), help="Queries per task.")
@click.option("--seeds", default="0,1,2", show_default=True, type=Many(int, "N,..."), help="Splits.")
@click.option("--holdout", default=0.3, show_default=True, help="Share of queries never rewarded.")
@click.option("--scopes", default="global,task,local,query,auto", show_default=True, type=Many(str, "NAME,..."))
@click.option("--baselines", default="raw,rerank", show_default=True, type=Many(str, "NAME,..."))
@click.option("--gate", type=click.Choice(["both", "on", "off"]), default="both", show_default=True)
@click.option("--objective", type=click.Choice(["kd", "reverse_kl", "softmax_grpo"]), default="kd", show_default=True)
@click.option("--solver", type=click.Choice(["exact", "adam"]), default="exact", show_default=True)
@click.option("--index", type=click.Choice(["flat", "hnsw"]), default="flat", show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows there; - is stdout.")
@side_by_side("splits")
def evaluate(
    folders: tuple[Path, ...],
    vectors: str,
    embed: str | None,
    task: str | None,
    rewards: str,
    scale: str,
    gate: str,
    index: Any,
    json_path: Path | None,
    workers: int | str,
    **plan: Any,
) -> None:
    """Fit on some queries, measure nDCG@10 on the others.

    Each DIR is a BEIR folder with vectors/NAME.npz and, unless the labels act as a simulated judge,
    scores/NAME.tsv. Several folders are several tasks of one workload.

    FILE is your own feedback, or a judged log, as `tttembed fit` takes it. Its documents are what is searched, and its
    rewards are the labels too: a document is relevant to a query where its reward lies above one half.
    """
    from tttembed_rag.evaluate.experiment import ExperimentPlan, run

    refuse_of_folder(folders, "vectors")
    check_target(json_path)
    settings = ExperimentPlan(gates={"both": (True, False), "on": (True,), "off": (False,)}[gate], **plan)
    Scale.parse(scale)
    asked = (folders, vectors, rewards, scale, index, embed, task)
    opened = None if workers != 1 and not any(map(is_file_of_rows, folders)) else _collections(*asked)
    outcomes = len(settings.contestants) + len(settings.baselines)
    total = len(settings.seeds) * len(settings.rewarded) * len(opened or folders) * outcomes * 3
    with worker_processes(workers) if workers != 1 else nullcontext() as pool:
        every = product(settings.seeds, settings.rewarded)
        splits = [replace(settings, seeds=(seed,), rewarded=(count,)) for seed, count in every]
        found = run(opened or [], settings) if pool is None else _side_by_side(pool, asked, splits)
        measured = [row.as_dict() for row in watched(found, total, "eval")]
    if json_path is not None:
        write_json(json_path, measured)
    if json_path is None or str(json_path) != "-":
        files = ", ".join(str(path) for path in folders if is_file_of_rows(path))
        click.echo("\n".join([_summary(measured), *([_OF_FILES.format(files=files)] if files else [])]))


def _side_by_side(pool: Executor, asked: tuple[Any, ...], plans: Sequence[ExperimentPlan]) -> Iterator[Row]:
    """The rows of *plans*, in their order; each process opens the folders for itself, once."""
    return chain.from_iterable(pool.map(partial(_listed, asked), plans))


def _listed(asked: tuple[Any, ...], plan: ExperimentPlan) -> list[Row]:
    from tttembed_rag.evaluate.experiment import run

    return list(run(_kept(*asked), plan))


def _collections(
    paths: tuple[Path, ...],
    vectors: str,
    rewards: str,
    scale: str,
    index: Literal["flat", "hnsw"],
    embed: str | None,
    task: str | None,
) -> list[Collection]:
    from tttembed_rag.evaluate.collection import open_collection
    from tttembed_rag.evaluate.datasets import QRELS

    found = []
    several = sum(map(is_file_of_rows, paths)) > 1
    for path in paths:
        if is_file_of_rows(path):
            named, unnamed = None if rewards == QRELS else rewards, path.stem if several else DEFAULT_TASK
            read = read_embedded(
                path, embed=embed, rewards=named, scale=scale, task=task or unnamed, beside=path.parent
            )
            found += read.collections(index)
            continue
        refuse_embed(path, embed)
        found.append(open_collection(path, vectors=vectors, rewards=rewards, scale=Scale.parse(scale), index=index))
        scores = [score for of in found[-1].scores.values() for score in of.values()]
        real = not found[-1].simulated
        if real and (doubt := found[-1].scale.doubt(found[-1].scale.to_unit(np.array(scores)))):
            click.echo(f"warning: {path}: {doubt}", err=True)
    return found


# A worker measures many splits of one workload.
_kept = lru_cache(maxsize=1)(_collections)


@main.command()
@click.option("--seeds", default="0,1,2,3,4,5", show_default=True, type=Many(int, "N,..."), help="Splits.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("tttembed-demo"), show_default=True, help="Report folder."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows there; - is stdout.")
def demo(seeds: tuple[int, ...], out: Path, json_path: Path | None) -> None:
    """Watch an agent's search for tools get better from rewards alone.

    The tools are the callables of Python's standard library, the requests are how-to questions in a person's words.
    """
    from tttembed_rag.demo.tools import run_tool_demo

    check_target(json_path)
    quiet = json_path is not None and str(json_path) == "-"
    say: Callable[[str], None] = (lambda _: None) if quiet else click.echo
    began = time.monotonic()
    rows = run_tool_demo(seeds, out, say)
    say(f"It took {time.monotonic() - began:.0f} s.")
    if json_path is not None:
        write_json(json_path, rows)


def _summary(rows: Iterable[dict[str, Any]]) -> str:
    """Means over seeds on held-out and on rewarded queries, one line per cell."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["population"] != "all":
            label = f"{row['scope']}{'' if row['scope'] in ('raw', 'rerank', 'auto') or row['gated'] else ' ungated'}"
            cells.setdefault((row["dataset"], row["population"], row["rewarded"], label), []).append(row)
    judge = next(iter(cells.values()))[0]
    lines = [
        f"nDCG@10, mean of seeds; rewards: {judge['rewards']}{' (simulated judge)' if judge['simulated'] else ''}",
        (
            f"{'data set':<24}{'queries':<10}{'rewarded':>8}  {'scope':<15}{'raw':>7}{'nDCG':>7}{'delta':>8}"
            f"{'worst':>8}{'share':>7}{'harmed':>8}{'published':>11}"
        ),
    ]
    means = {key: _mean_row(cell) for key, cell in cells.items()}
    lines += [_line(key, mean) for key, mean in sorted(means.items(), key=lambda item: item[0])]
    if len({dataset for dataset, *_ in cells}) > 1:
        sets: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for (_, *rest), mean in means.items():
            sets.setdefault(("mean of the sets", *rest), []).append(mean)
        lines += [_line(key, _mean_row(of_sets)) for key, of_sets in sorted(sets.items(), key=lambda item: item[0])]
    return "\n".join([*lines, "", *_LEGEND, *_conclusions(cells)])


def _mean_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of rows that weigh the same, with the worst change and how many are published."""
    mean: dict[str, Any] = {key: sum(row[key] for row in rows) / len(rows) for key in _AVERAGED}
    mean["worst"] = min(row.get("worst", row["delta"]) for row in rows)
    return mean | {key: sum(row.get(key, one) for row in rows) for key, one in (("published", 0), ("splits", 1))}


def _line(cell: tuple[Any, ...], mean: dict[str, Any]) -> str:
    dataset, population, _, label = cell
    rewarded = mean["rewarded_queries"]
    published = f"{mean['published']}/{mean['splits']}"
    return (
        f"{dataset:<24.24}{population:<10}{rewarded:>8.0f}  {label:<15}{mean['raw_ndcg10']:>7.3f}{mean['ndcg10']:>7.3f}"
        f"{mean['delta']:>+8.3f}{mean['worst']:>+8.3f}{_share(mean):>7}{mean['harmed_fraction']:>8.1%}{published:>11}"
    )


def _share(mean: dict[str, Any]) -> str:
    """The mean change over what direct rerank would change on the mean, in words; a dash where that is too little."""
    from tttembed_rag.evaluate.experiment import LEAST_GAIN

    whole = mean["rerank_delta"]
    return f"{mean['delta'] / whole:.0%}" if whole >= LEAST_GAIN else "-"


# What is averaged over splits, and over data sets.
_AVERAGED = ("raw_ndcg10", "ndcg10", "delta", "rerank_delta", "harmed_fraction", "rewarded_queries")
# What the columns of the summary mean.
_LEGEND = (
    "raw: nDCG@10 without offsets; nDCG: with them; delta: the difference, worst: of the worst split. share: of the",
    "gain that direct rerank would have if each of these queries were judged. harmed: queries with a lower nDCG@10",
    "than before. published: splits on which something was served. heldout: queries that were not judged; rewarded:",
    "those that were, and how many. rerank: the judge orders the candidates of each query.",
)

# The labels of a file of the user's own.
_OF_FILES = (
    "Labels of {files}: a document is relevant to a query where its reward lies above one half; what has no reward\n"
    "counts as not relevant."
)


def _conclusions(cells: dict[tuple[Any, ...], list[dict[str, Any]]]) -> list[str]:
    """A sentence for each data set: what `auto` did to queries that nobody judged, with most judged queries."""
    most: dict[str, tuple[int, list[dict[str, Any]]]] = {}
    for (dataset, population, rewarded, label), cell in cells.items():
        if (population, label) == ("heldout", "auto") and rewarded >= most.get(dataset, (0, []))[0]:
            most[dataset] = rewarded, cell
    said = []
    for dataset, (_, cell) in sorted(most.items()):
        mean = _mean_row(cell)
        low, delta, high = (sum(row[key] for row in cell) / len(cell) for key in ("ci_low", "delta", "ci_high"))
        of = f"{dataset}: with {mean['rewarded_queries']:.0f} judged queries, auto"
        if not any(row["published"] for row in cell):
            said.append(f"{of} serves nothing: the evidence is too weak, and nothing changes.")
            continue
        verdict = "helps" if low > 0 else "harms" if high < 0 else "changes little for"
        change = f"{delta:+.3f} nDCG@10 [{low:+.3f}, {high:+.3f}]"
        share = _share(mean)
        kept = "" if share == "-" else f", {share} of what direct rerank of these queries would gain"
        said.append(f"{of} {verdict} queries that nobody judged: {change}{kept}.")
    return said
