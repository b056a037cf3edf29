"""Vectors for the texts of a store that have none, and `tttembed store reembed`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tttembed_rag.cli.group import text
from tttembed_rag.system.progress import stoppable, working
from tttembed_store.cli.group import as_objects, in_store, opened, operators

if TYPE_CHECKING:
    from tttembed_store.sql import Store
    from tttembed_store.sql.log.vectors import Lacking

# Where a store's texts have no vectors, and what to do.
_HELP = "give --embed SPEC, the model that the index was built with (`tttembed data --help` lists them)"


def fill(store: Store, spec: str, name: str, *, only_without_any: bool) -> tuple[str, Lacking]:
    """Give texts of *store* vectors of the model that *spec* names; gives the model's name, and what lacks one still.

    They are stored under *name*, by default the model's fingerprint. With *only_without_any*, texts with vectors of
    another model are left out.
    """
    from tttembed_rag.embedders import open_embedder

    model = open_embedder(spec)
    named = name or model.fingerprint
    lacking = store.vectors.lacking(None if only_without_any else named)
    with working(lacking.texts, "embed") as bar:
        return named, store.vectors.fill(model, named, only_without_any=only_without_any, watch=bar.update)


def check_has_vectors(store: Store) -> None:
    """Refuse to pay a judge where nothing can be learned for want of vectors; say so where that is true of a part."""
    lacking = store.vectors.lacking()
    if not lacking.texts:
        return
    if lacking.queries == lacking.all_queries or lacking.documents == lacking.all_documents:
        raise click.UsageError(f"{lacking}, and nothing can be learned from them, so judging is not begun: {_HELP}")
    click.echo(f"{lacking}, and nothing is learned from those: {_HELP}", err=True)


@operators.command()
@in_store
@click.option("--embed", required=True, metavar="SPEC", help="The model, as in `tttembed data`.")
@text("--embedder", "NAME", "What vectors are stored under.  [default: by --embed]")
@click.option("--dry-run", is_flag=True, help="Count the texts and embed nothing.")
@as_objects
def reembed(url: str, embed: str, embedder: str, *, dry_run: bool, as_json: bool) -> None:
    """Give the queries and documents of a store vectors of another embedding model, beside those they have.

    What was judged for the old model teaches the new one then: `tttembed fit URL --embed SPEC`. Texts are
    embedded once, in parts that are kept as they come: run it again to continue.
    """
    from tttembed_rag.embedders import open_embedder

    with opened(url) as store:
        named = embedder or open_embedder(embed).fingerprint
        before = after = store.vectors.lacking(named)

        def kept() -> str:
            left = store.vectors.lacking(named).texts
            return f"{before.texts - left} texts embedded and kept; run it again to go on"

        if not dry_run:
            with stoppable(kept):
                _, after = fill(store, embed, named, only_without_any=False)
    if as_json:
        click.echo(json.dumps({"embedder": named, "embedded": before.texts - after.texts, "left": asdict(after)}))
        return
    if dry_run:
        click.echo(f"{before} of {named}")
        return
    left = f"; {after} (their texts are not kept)" if after.texts else ""
    click.echo(f"{before.texts - after.texts} texts embedded by {named}{left}")
