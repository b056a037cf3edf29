"""`tttembed audit`: pairs worth a person's minute, to a spreadsheet and back."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import click

from tttembed_rag.cli.group import counted, main, target
from tttembed_rag.cli.labels import COLUMNS, as_cell
from tttembed_rag.cli.learning import read_rewards, rewards_options
from tttembed_rag.system.extensions import of_store
from tttembed_rag.system.files import write_whole


@main.group(short_help="Draw pairs for a person to label, and read the labels.")
def audit() -> None:
    """A few pairs labelled by a person: whether what the judge claims is so."""


@audit.command()
@rewards_options
@click.option("--out", required=True, metavar="FILE", type=target, help="The CSV to fill in.")
@counted("--count", 100, "Pairs to draw at most.", least=3)
def draw(source: Path | str, out: Path, count: int, tenant: str, **options: Any) -> None:
    """Draw judged pairs for a person to label: some documents of each of some queries, which a hash of their ids says.

    Fill in the column label (0 bad to 1 good) in a spreadsheet, and give the file to `tttembed fit --audit FILE`, or to
    `tttembed audit read` for a store: the labels then decide whether what the judge claims is so. A query counts where
    all of its rows are filled in.
    """
    from tttembed_rag.gate.audit import audit_sample

    rewards = read_rewards(source, tenant=tenant, **options).rewards
    texts: dict[tuple[str, str], tuple[str, str]] = {}  # elsewhere than in a store the ids say what they are
    if isinstance(source, str):
        drawn = of_store("audit-sample", brings="drawing pairs of a store is a part")
        texts = drawn(source, rewards, tenant, count)
        pairs = list(texts)
    else:
        pairs = audit_sample(rewards, count)
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow((*COLUMNS, *(["query", "document"] if texts else [])))
    for pair in pairs:
        query, document, *shown = map(as_cell, (*pair, *texts.get(pair, ())))
        rows.writerow((query, document, "", *shown))
    write_whole(out, text.getvalue().encode("utf-8-sig"))
    click.echo(f"{out}: {len(pairs)} pairs to label")
