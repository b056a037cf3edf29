"""A store, or a folder of Parquet files, where commands of tttembed-rag take one: `fit`, `show` and `audit draw`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tttembed_rag.cli.learning import KnownRewards
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_store.cli.embedding import fill
from tttembed_store.cli.group import opened, print_versions, served_now
from tttembed_store.shards import fit_sharded
from tttembed_store.shards.parquet import parts
from tttembed_store.sql.records import AUDIT

if TYPE_CHECKING:
    from tttembed_rag.judging.biases import Texts


def fit_folder(folder: Path, **options: Any) -> tuple[Offsets, int]:
    """What `fit_sharded` learns from a *folder* of Parquet files, and from how many rewarded queries."""
    return fit_sharded(folder, **options), sum(parts(folder).values())


def serving(url: str, tenant: str, *, as_json: bool) -> tuple[Offsets, str]:
    """The offsets that the store at *url* serves a *tenant*, and that in a line; versions are printed for people."""
    with opened(url) as store:
        if not as_json:
            print_versions(store, tenant, 10, as_json=False)
        live, now = store.serving(tenant=tenant).version, served_now(store, tenant)
        if live is None:
            return Offsets([], width=1), now
        return store.history.visible(live.offsets, owner=live.tenant, tenant=tenant), now


def rewards_of(url: str, *, tenant: str, judge: str | None, embed: str | None, last: int | None) -> KnownRewards:
    """The rewards of a *judge* in the store at *url*, and what is known of their texts; see `tttembed fit`."""

    def texts(rewards: Rewards) -> Texts:
        names = np.unique(rewards.doc_ids[rewards.candidates]).tolist()
        with opened(url) as store:
            return store.history.texts(tenant), store.history.document_texts(tenant, names)

    with opened(url) as store:
        judges = [name for name, _ in store.judges(tenant=tenant) if name != AUDIT]
        if judge is None and len(judges) > 1:
            raise click.UsageError(f"--judge: expected one of {', '.join(judges)}")
        judge = judge or (judges[0] if judges else "any")
        if embed is not None:
            embedder: str | None = fill(store, embed, "", only_without_any=False)[0]
        else:
            embedder = store.embedder(judge, tenant=tenant)
            if embedder is None and (lacking := store.vectors.lacking()).texts:
                raise click.UsageError(f"{lacking}: give --embed SPEC, the model that the index was built with")
        rewards = store.rewards(judge, tenant=tenant, embedder=embedder, last=last)
        names = rewards.doc_ids.tolist()
        lengths = store.history.document_lengths(tenant, names)
        return KnownRewards(rewards, lengths, store.history.document_arrivals(tenant, names), texts)
