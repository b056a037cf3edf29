"""`tttembed audit-sample`: pairs worth a person's minute, for a spreadsheet."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import click

from tttembed_rag.cli.group import check_target, counted, main
from tttembed_rag.cli.labels import COLUMNS
from tttembed_rag.cli.learning import RewardSource, rewards_options
from tttembed_rag.system.files import write_whole


@main.command("audit-sample")
@rewards_options
@click.option("--offsets", required=True, metavar="FILE", type=click.Path(path_type=Path), help="What was learned.")
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The CSV to fill in.")
@counted("--count", 100, "Pairs to draw.")
@click.option("--seed", default=0, show_default=True, help="Of the draw.")
def audit_sample(offsets: Path, out: Path, count: int, seed: int, **source: object) -> None:
    """Draw pairs of query and document whose place the offsets change, for a person to label.

    Fill in the column label (0 bad to 1 good) in a spreadsheet, and give the file to `tttembed fit --audit FILE`: the
    labels then decide whether what the judge claims is so. Rows left empty are not counted.
    """
    from tttembed_rag.gate.audit import audit_sample
    from tttembed_rag.offsets.lookup import Offsets

    check_target(out)
    rewards = RewardSource(out=out, **source).rewards_given()  # type: ignore[arg-type]
    pairs = audit_sample(rewards, Offsets.load(offsets), count, seed=seed)
    if not pairs:
        raise click.UsageError(f"--offsets: expected offsets that move what was judged, got none in {offsets}")
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(COLUMNS)
    rows.writerows((query, document, "") for query, document in pairs)
    write_whole(out, text.getvalue().encode())
    click.echo(f"{out}: {len(pairs)} pairs to label")
