"""`tttembed audit`: pairs worth a person's minute, to a spreadsheet and back."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from tttembed_rag.cli.group import check_target, counted, main, say
from tttembed_rag.cli.labels import COLUMNS, as_cell, read_labels
from tttembed_rag.cli.learning import RewardSource, rewards_options
from tttembed_rag.cli.options import in_store, of_tenant, opened
from tttembed_rag.system.files import write_whole

if TYPE_CHECKING:
    from tttembed_rag.rewards import Rewards


@main.group(short_help="Draw pairs for a person to label, and read the labels.")
def audit() -> None:
    """A few pairs labelled by a person: whether what the judge claims is so."""


@audit.command()
@rewards_options
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The CSV to fill in.")
@counted("--count", 100, "Pairs to draw at most.", least=3)
def draw(out: Path, count: int, **options: object) -> None:
    """Draw judged pairs for a person to label: some documents of each of some queries, which a hash of their ids says.

    Fill in the column label (0 bad to 1 good) in a spreadsheet, and give the file to `tttembed fit --audit FILE`, or to
    `tttembed audit read` for a store: the labels then decide whether what the judge claims is so. A query counts where
    all of its rows are filled in.
    """
    from tttembed_rag.gate.audit import audit_sample

    check_target(out)
    source = RewardSource(out=out, **options)  # type: ignore[arg-type]
    pairs = audit_sample(_labelable(source), count)
    texts = _texts(source, pairs)
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow((*COLUMNS, *(["query", "document"] if texts else [])))
    for pair in pairs:
        query, document, *shown = map(as_cell, (*pair, *texts.get(pair, ())))
        rows.writerow((query, document, "", *shown))
    write_whole(out, text.getvalue().encode())
    click.echo(f"{out}: {len(pairs)} pairs to label")


@audit.command()
@click.argument("file", type=click.Path(path_type=Path))
@in_store
@of_tenant
def read(file: Path, url: str, tenant: str) -> None:
    """Write the labels of FILE, which `draw` wrote, into a store: the worker then serves only what they confirm.

    They are kept as rewards of the judge `audit`, and learned from by nobody.
    """
    from tttembed_rag.stores.records import AUDIT

    labels = read_labels(file)
    if not labels:
        raise click.UsageError(f"{file}: expected rows with a label, found none")
    with opened(url) as store:
        tasks = store.history.tasks(tenant)
        given: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
        for (query, document), label in labels.items():
            for task in tasks.get(query, ()):
                given[tenant, task, query][document] = label
        store.reward(AUDIT, given)
        kept = len(labels.keys() & store.history.verdicts(tenant, judge=AUDIT).keys())
    if not kept:
        raise click.UsageError(f"{file}: expected pairs of tenant {tenant!r} of the store, found none")
    say(f"{kept} of {len(labels)} labels are in the store")


def _labelable(source: RewardSource) -> Rewards:
    """The rewards that a person can label: of a store, those of the tenant's own queries, not of tenants that share."""
    rewards = source.read().rewards
    if not isinstance(source.source, str):
        return rewards
    with opened(source.source) as store:
        own = store.history.tasks(source.tenant)
    mine = np.array([query in own for query in rewards.query_ids.tolist()])
    if not mine.any():
        raise click.UsageError(f"--tenant: expected rewards of queries of {source.tenant!r}, got those of others alone")
    return rewards.take(np.flatnonzero(mine))


def _texts(source: RewardSource, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Of a store, the texts of query and document of each pair; elsewhere the ids say what they are."""
    if not isinstance(source.source, str):
        return {}
    with opened(source.source) as store:
        queries = store.history.texts(source.tenant)
        documents = store.history.document_texts(source.tenant, sorted({document for _, document in pairs}))
    return {pair: (queries.get(pair[0], ""), documents.get(pair[1], "")) for pair in pairs}
