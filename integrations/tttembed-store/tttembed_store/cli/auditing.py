"""`tttembed audit` of a store: the pairs that a person labels, and their labels."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import click

from tttembed_rag.cli.group import say
from tttembed_rag.cli.labels import read_labels
from tttembed_rag.gate.audit import audit_sample
from tttembed_rag.rewards.rewards import Rewards
from tttembed_store.cli.group import in_store, of_tenant, opened
from tttembed_store.sql.records import AUDIT


def sample(url: str, rewards: Rewards, tenant: str, count: int) -> dict[tuple[str, str], tuple[str, str]]:
    """Up to *count* judged pairs of a *tenant*'s *rewards* in the store at *url*, each with its two texts."""
    with opened(url) as store:
        pairs = audit_sample(rewards, count)
        queries = store.history.texts(tenant)
        documents = store.history.document_texts(tenant, sorted({document for _, document in pairs}))
        return {pair: (queries.get(pair[0], ""), documents.get(pair[1], "")) for pair in pairs}


@click.command()
@click.argument("file", type=Path)
@in_store
@of_tenant
def read(file: Path, url: str, tenant: str) -> None:
    """Write the labels of FILE, which `draw` wrote, into a store: the worker then serves only what they confirm.

    They are kept as rewards of the judge `audit`, and learned from by nobody.
    """
    labels = read_labels(file)
    if not labels:
        raise click.UsageError(f"{file}: expected rows with a label, found none")
    with opened(url) as store:
        tasks = store.history.tasks(tenant)
        rewards: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
        for (query, document), label in labels.items():
            for task in tasks.get(query, ()):
                rewards[tenant, task, query][document] = label
        store.reward(AUDIT, rewards)
        kept = len(labels.keys() & store.history.verdicts(tenant, judge=AUDIT).keys())
    if not kept:
        raise click.UsageError(f"{file}: expected pairs of tenant {tenant!r} of the store, found none")
    say(f"{kept} of {len(labels)} labels are in the store")
