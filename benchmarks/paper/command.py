"""`python -m benchmarks.paper`: the experiments of the paper, and every rival, on your data."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import click

from benchmarks.paper.allocation import breadth_depth_study
from benchmarks.paper.baselines import baselines_study
from benchmarks.paper.budget import budget_study
from benchmarks.paper.cells import CellStore, Columns, content_hash, finished, measured
from benchmarks.paper.design import Study, StudyOptions
from benchmarks.paper.dose import dose_study
from benchmarks.paper.judges import judges_study, open_on_same_pairs
from benchmarks.paper.objectives import objectives_study
from benchmarks.paper.plots import plotted
from benchmarks.paper.processes import side_by_side, worker_processes
from benchmarks.paper.recovery import recovery_study
from benchmarks.paper.repeats import repeats_study
from benchmarks.paper.transfer import transfer_study
from benchmarks.paper.unseen import unseen_study
from benchmarks.paper.workload import Workload
from tttembed_rag import __version__
from tttembed_rag.cli.group import Many, said_in_one_line
from tttembed_rag.embedders import open_embedder
from tttembed_rag.evaluate.collection import open_collection
from tttembed_rag.fitting.objectives import OBJECTIVES
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.files import write_whole
from tttembed_rag.system.progress import watched

NAMES = (
    "budget",
    "transfer",
    "recovery",
    "breadth-depth",
    "dose",
    "judges",
    "objectives",
    "baselines",
    "unseen",
    "repeats",
)


@click.command()
@click.argument("name", type=click.Choice(NAMES))
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors: vectors/NAME.npz.")
@click.option(
    "--rewards",
    multiple=True,
    default=("qrels",),
    show_default=True,
    help="scores/NAME.tsv, or qrels (simulated judge); judges takes several.",
)
@click.option(
    "--scale",
    "scales",
    multiple=True,
    default=("probability",),
    show_default=True,
    help="probability, logit, rubric:LOW,HIGH or unbounded: of all --rewards, or of each in turn.",
)
@click.option("--depth", default=10, show_default=True, help="Rewarded candidates per query.")
@click.option("--seeds", default="0,1,2", show_default=True, type=Many(int, "N,..."), help="Draws of rewarded queries.")
@click.option("--breadths", default="", type=Many(int, "N,..."), help="Rewarded queries, instead of the study's own.")
@click.option("--method", "methods", multiple=True, help="baselines, unseen: a rival, once for each.  [default: all]")
@click.option("--objective", type=click.Choice(list(OBJECTIVES)), default="kd", show_default=True)
@click.option("--solver", type=click.Choice(["exact", "adam"]), default="exact", show_default=True)
@click.option("--specialty", help="recovery: the set specialised on.  [default: the first DIR]")
@click.option("--specialised", help="recovery: vectors/NAME.npz of a fine-tuned encoder.  [default: a linear stand-in]")
@click.option(
    "--embed",
    default="minilm",
    show_default=True,
    metavar="SPEC",
    help="repeats: the model of --vectors, which embeds edited queries; SPEC as in `tttembed data`.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("build/paper"), show_default=True, help="Result folder."
)
@click.option("--fresh", is_flag=True, help="Measure again what is already there.")
@side_by_side("cells")
@said_in_one_line()
def main(
    name: str,
    folders: tuple[Path, ...],
    vectors: str,
    rewards: tuple[str, ...],
    scales: tuple[str, ...],
    specialty: str | None,
    specialised: str | None,
    embed: str,
    out: Path,
    workers: int,
    *,
    fresh: bool,
    **options: Any,
) -> None:
    """Reproduce experiment NAME of the paper on BEIR folders with stored vectors.

    Each DIR is a task, as for eval. Written to the result folder: NAME.txt, .csv, .tex, .json, .png and
    .manifest.json (data by content, query ids, seeds, settings). Finished cells stay in its cells.sqlite, so a
    run that was stopped goes on where it was, and experiments share what they have in common.
    """
    if len(rewards) > 1 and name != "judges":
        raise click.UsageError(f"--rewards: expected one for {name}, got {len(rewards)} (judges takes several)")
    if len(scales) not in (1, len(rewards)):
        raise click.UsageError(f"--scale: expected one, or one per --rewards ({len(rewards)}), got {len(scales)}")
    declared = [Scale.parse(scale) for scale in (scales if len(scales) > 1 else scales * len(rewards))]
    study_options = StudyOptions(**options)
    judges = tuple(zip(rewards, declared, strict=True))
    asked = (name, folders, vectors, judges, study_options, specialty, specialised, embed)
    study, workloads = _study(*asked)
    out.mkdir(parents=True, exist_ok=True)
    with closing(CellStore(out / "cells.sqlite")) as store:
        if workers != 1:
            with worker_processes(workers) as pool:
                done = finished(study.cells, store, pool, partial(_measure, asked), fresh=fresh)
                for _ in watched(done, len(study.cells), name):
                    pass
            fresh = False
        cells = watched(measured(study.cells, store, fresh=fresh), len(study.cells), name)
        report = study.report(list(cells))
    settings = {"name": name, "cells": [dict(cell.settings) for cell in study.cells], **asdict(study_options)}
    manifest = {
        "experiment": name,
        "version": __version__,
        "seeds": list(study_options.seeds),
        "options": asdict(study_options),
        "settings_sha256": content_hash(settings),
        "data": [part for workload in workloads for part in workload.manifest()],
    }
    files = {
        "txt": report.text(),
        "csv": "\n".join(table.csv() for table in report.tables),
        "tex": "\n".join(table.latex() for table in report.tables),
        "json": json.dumps({**report.as_dict(), "manifest": manifest}, indent=1) + "\n",
        "manifest.json": json.dumps(manifest, indent=1) + "\n",
    }
    for ending, text in files.items():
        write_whole(out / f"{name}.{ending}", text.encode())
    plotted(report, out / f"{name}.png")
    click.echo(report.text(), nl=False)


def _measure(asked: tuple[Any, ...], number: int) -> Columns:
    """One cell of the study that was *asked* for, opened once in each process."""
    return _opened(*asked)[0].cells[number].measure()


def _study(
    name: str,
    folders: tuple[Path, ...],
    vectors: str,
    judges: tuple[tuple[str, Scale], ...],
    options: StudyOptions,
    specialty: str | None,
    specialised: str | None,
    embed: str,
) -> tuple[Study, list[Workload]]:
    """The experiment called *name*, and the workloads it is on."""
    if name == "judges":
        workloads = open_on_same_pairs(folders, vectors, judges)
        return judges_study(workloads, options), workloads
    ((rewards, scale),) = judges

    def opened(vectors: str) -> Workload:
        return Workload.of(
            [open_collection(folder, vectors=vectors, rewards=rewards, scale=scale) for folder in folders]
        )

    workload = opened(vectors)
    if name == "recovery":
        tuned = opened(specialised) if specialised else None
        study = recovery_study(workload, options, specialty or workload.names[0], tuned)
        return study, [workload, *([tuned] if tuned else [])]
    if name == "repeats":
        return repeats_study(workload, options, open_embedder(embed)), [workload]
    simple = {
        "budget": budget_study,
        "transfer": transfer_study,
        "breadth-depth": breadth_depth_study,
        "dose": dose_study,
        "objectives": objectives_study,
        "baselines": baselines_study,
        "unseen": unseen_study,
    }
    return simple[name](workload, options), [workload]


# A worker measures many cells of one study.
_opened = lru_cache(maxsize=1)(_study)
