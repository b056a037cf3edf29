"""`tttembed audit`: pairs worth a person's minute, to a spreadsheet and back."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from tttembed_rag.cli.group import counted, main, say, target
from tttembed_rag.cli.labels import COLUMNS, as_cell, read_labels
from tttembed_rag.cli.learning import read_rewards, rewards_options
from tttembed_rag.cli.options import in_store, of_tenant, opened
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

    rewards = read_rewards(source, out, tenant=tenant, **options).rewards
    texts: dict[tuple[str, str], tuple[str, str]] = {}  # elsewhere than in a store the ids say what they are
    if isinstance(source, str):
        with opened(source) as store:
            own = store.history.tasks(tenant)
            # A person labels the tenant's own queries, not those of tenants that share.
            mine = np.flatnonzero([query in own for query in rewards.query_ids.tolist()])
            if not mine.size:
                raise click.UsageError(
                    f"--tenant: expected rewards of queries of {tenant!r}, got those of others alone"
                )
            pairs = audit_sample(rewards.take(mine), count)
            queries = store.history.texts(tenant)
            documents = store.history.document_texts(tenant, sorted({document for _, document in pairs}))
            texts = {pair: (queries.get(pair[0], ""), documents.get(pair[1], "")) for pair in pairs}
    else:
        pairs = audit_sample(rewards, count)
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow((*COLUMNS, *(["query", "document"] if texts else [])))
    for pair in pairs:
        query, document, *shown = map(as_cell, (*pair, *texts.get(pair, ())))
        rows.writerow((query, document, "", *shown))
    write_whole(out, text.getvalue().encode())
    click.echo(f"{out}: {len(pairs)} pairs to label")


@audit.command()
@click.argument("file", type=Path)
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
