"""`tttembed eval`: what offsets do, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import numpy as np

from tttembed_rag.cli.embedding import embedded_by
from tttembed_rag.cli.group import Many, main, target, write_json
from tttembed_rag.cli.options import on_scale, path_alone, rows_written, warn_of_sources, whether_trusted
from tttembed_rag.cli.rows import check_folder, collections_of, is_file_of_rows, read_embedded, refuse_of_folder
from tttembed_rag.fitting.objectives import OBJECTIVES
from tttembed_rag.fitting.recipe import Recipe, Solver
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.files import write_whole
from tttembed_rag.system.progress import watched

if TYPE_CHECKING:
    from tttembed_rag.evaluate.collection import Collection

# The labels of a file of the user's own.
_OF_FILES = (
    "Labels of {files}: a document is worth as much as its reward lies above the least one of the query; what has\n"
    "no reward is worth nothing."
)


@main.command("eval")
@click.argument("folders", nargs=-1, required=True, metavar="DIR|FILE...", type=path_alone)
@click.option("--vectors", default="minilm", help="Stored vectors of DIR: vectors/NAME.npz.")
@embedded_by("the texts of FILE")
@click.option("--task", help="Task of rows of FILE that name none.  [default: default; of several FILEs each its name]")
@click.option("--rewards", default="qrels", help="scores/NAME.tsv, or qrels (simulated judge).")
@on_scale
@click.option("--depth", default=10, help="Rewarded candidates per query.")
@click.option("--rewarded", default="16,64,200", type=Many(int, "N,..."), help="Queries per task.")
@click.option("--seeds", default="0,1,2", type=Many(int, "N,..."), help="Splits.")
@click.option("--holdout", default=0.3, help="Share of queries never rewarded.")
@click.option("--scopes", default="auto", type=Many(str, "NAME,..."))
@click.option("--baselines", default="rerank", type=Many(str, "NAME,..."))
@click.option("--gate", type=click.Choice(["both", "on", "off"]), default="both")
@click.option("--objective", type=click.Choice(list(OBJECTIVES)), default="kd")
@click.option("--solver", type=click.Choice(get_args(Solver)), default="exact")
@whether_trusted
@rows_written
@click.option("--html", "page", metavar="PAGE", type=target, help="A page of queries one by one.")
def evaluate(
    folders: tuple[Path, ...],
    vectors: str,
    embed: str | None,
    task: str | None,
    rewards: str,
    scale: Scale | None,
    gate: str,
    objective: str,
    solver: Solver,
    json_path: Path | None,
    page: Path | None,
    **plan: Any,
) -> None:
    """Fit on some queries, measure nDCG@10 on the others.

    Of --scopes, `words` is `auto` with what it finds sorted by words too. Of --baselines, `hybrid` is reciprocal rank
    fusion with BM25.

    Each DIR is a BEIR folder with vectors/NAME.npz and, unless the labels act as a simulated judge,
    scores/NAME.tsv. Several folders are several tasks of one workload.

    FILE is your own feedback, or a judged log, as `tttembed fit` takes it. Its documents are what is searched, and its
    rewards are the labels too: a document is worth as much as its reward lies above the least one of the query.
    Queries whose rewards do not differ are left out; where most of them are, nothing is measured.

    The page of --html shows what `auto` does with most judged queries: which queries gain and which lose, with their
    lists before and after. It is one file that loads nothing from elsewhere.
    """
    from tttembed_rag.evaluate.experiment import ExperimentPlan, run
    from tttembed_rag.evaluate.summary import cells_of, conclusions, table

    refuse_of_folder(folders, "vectors")
    if page is not None and "auto" not in plan["scopes"]:
        raise click.UsageError(f"--html: expected auto among --scopes, got {', '.join(plan['scopes'])}")
    gates = {"both": (True, False), "on": (True,), "off": (False,)}[gate]
    settings = ExperimentPlan(gates=gates, recipe=Recipe(objective=OBJECTIVES[objective], solver=solver), **plan)
    opened = _collections(folders, vectors, rewards, scale, embed, task)
    sources = [name for collection in opened for of_query in collection.sources.values() for name in of_query]
    warn_of_sources(sources, trusted=settings.trusted)
    outcomes = len(settings.contestants) + len(settings.baselines)
    total = len(settings.seeds) * len(settings.rewarded) * len(opened) * outcomes * 3
    measured = list(watched(run(opened, settings), total, "eval"))
    files = ", ".join(str(path) for path in folders if is_file_of_rows(path))
    cells = cells_of(measured)
    if page is not None:
        from tttembed_rag.evaluate.page.measuring import page_of_measured

        about = _OF_FILES.format(files=files) if files else f"Rewards: {measured[0]['rewards']}."
        html = page_of_measured(opened, settings, cells, about=about)
        write_whole(page, html.encode())
    if json_path is not None:
        write_json(json_path, measured)
    if json_path is None or str(json_path) != "-":
        labels = [_OF_FILES.format(files=files)] if files else []
        lines = [table(cells), *conclusions(cells), *labels, *([f"Report: {page}"] if page else [])]
        click.echo("\n".join(lines))


def _collections(
    paths: tuple[Path, ...], vectors: str, rewards: str, scale: Scale | None, embed: str | None, task: str | None
) -> list[Collection]:
    from tttembed_rag.evaluate.collection import open_collection
    from tttembed_rag.evaluate.datasets import QRELS

    collections = []
    several = sum(map(is_file_of_rows, paths)) > 1
    for path in paths:
        if is_file_of_rows(path):
            named, unnamed = None if rewards == QRELS else rewards, path.stem if several else DEFAULT_TASK
            read = read_embedded(path, embed=embed, rewards=named, scale=scale, task=task or unnamed)
            collections += collections_of(read)
            continue
        check_folder(path, embed)
        collections.append(open_collection(path, vectors=vectors, rewards=rewards, scale=scale or Scale()))
        scores = [score for of in collections[-1].scores.values() for score in of.values()]
        real = not collections[-1].simulated
        if real and (doubt := collections[-1].scale.doubt(collections[-1].scale.to_unit(np.array(scores)))):
            click.echo(f"warning: {path}: {doubt}", err=True)
    return collections
