"""`--embed SPEC`: vectors for texts that have none; and `tttembed store reembed`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tttembed_rag.cli.group import CommandT, operators, text
from tttembed_rag.cli.options import as_objects, in_store, opened
from tttembed_rag.cli.progress import stoppable, working

if TYPE_CHECKING:
    from tttembed_rag.embedders import Embedder
    from tttembed_rag.evaluate.datasets import Dataset
    from tttembed_rag.stores import Store
    from tttembed_rag.stores.log.vectors import Lacking

# Texts until the bar moves on: a request to each service, and some batches of a model here, sorted by length.
_AT_ONCE = 96
# Where a store's texts have no vectors, and what to do.
_HELP = "give --embed SPEC, the model that the index was built with (`tttembed data --help` lists them)"


def embedded_by(what: str) -> Callable[[CommandT], CommandT]:
    """The option that names an embedding model; *what* it embeds stands in the help."""
    return click.option("--embed", metavar="SPEC", help=f"Embeds {what}; SPEC as in `tttembed data`.")


@contextmanager
def cached_embedder(spec: str, cache: Path, length: int) -> Iterator[Embedder]:
    """The embedder that *spec* names, with a file of the vectors that it gave before and a bar of *length* texts."""
    from tttembed_rag.embedders import CachedEmbedder, VectorCache, open_embedder

    model = open_embedder(spec)
    cache.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    stopping = stoppable(lambda: f"the vectors of {bar.pos} texts are kept; run it again to go on")
    with closing(VectorCache.open(cache)) as known, stopping, working(length, "embed") as bar:

        def watch(texts: int) -> None:
            bar.update(texts, f"{(bar.pos + texts) / max(1e-9, time.monotonic() - began):.1f} texts/s")

        yield CachedEmbedder(model, known, at_once=_AT_ONCE, watch=watch)


def embed_folder(
    folder: Path, dataset: Dataset, spec: str, name: str | None = None, cache: Path | None = None
) -> tuple[Path, int, str]:
    """Write the vectors of a BEIR folder, each text embedded once; gives the file, their width and the model's name.

    They go to vectors/NAME.npz, by default a name made of *spec*; vectors that are known are in the file *cache*, by
    default one beside them.
    """
    from tttembed_rag.embedders import name_of
    from tttembed_rag.evaluate.files import write_vectors

    length = len(dataset.documents) + len(dataset.queries)
    with cached_embedder(spec, cache or folder / "vectors" / ".known.sqlite", length) as model:
        documents = model.embed_documents(list(dataset.documents.values()))
        queries = model.embed_queries(list(dataset.queries.values()))
    named = name or name_of(spec)
    written = write_vectors(folder, named, dataset, documents, queries, fingerprint=model.fingerprint)
    return written, documents.shape[1], model.fingerprint


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
    said = f"{before} of {named}" if dry_run else f"{before.texts - after.texts} texts embedded by {named}"
    left = f"; {after} (their texts are not kept)" if after.texts and not dry_run else ""
    click.echo(f"{said}{left}")
