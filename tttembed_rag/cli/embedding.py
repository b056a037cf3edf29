"""`--embed SPEC`: vectors for texts that have none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tttembed_rag.cli.group import CommandT
from tttembed_rag.errors import DataError
from tttembed_rag.system.progress import stoppable, working

if TYPE_CHECKING:
    from tttembed_rag.embedders import Embedder
    from tttembed_rag.evaluate.datasets import Dataset

# Texts until the bar moves on, of an embedder that names no number: a request to each service.
_AT_ONCE = 96


def embedded_by(what: str) -> Callable[[CommandT], CommandT]:
    """The option that names an embedding model; *what* it embeds stands in the help."""
    return click.option("--embed", metavar="SPEC", help=f"Embeds {what}; SPEC as in `tttembed data`.")


@contextmanager
def cached_embedder(spec: str, cache: Path, length: int) -> Iterator[Embedder]:
    """The embedder that *spec* names, with a bar of *length* texts, and a file of the vectors that it gave before.

    Where the file cannot be written, they are kept in memory.
    """
    from tttembed_rag.embedders import open_embedder
    from tttembed_rag.embedders.cache import CachedEmbedder, VectorCache

    model = open_embedder(spec)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        known = VectorCache.open(cache)
    except (DataError, OSError) as exc:
        click.echo(f"warning: vectors are kept for this command alone: {exc}", err=True)
        known = VectorCache.open(None)
    began = time.monotonic()
    stopping = stoppable(lambda: f"the vectors of {bar.pos} texts are kept; run it again to go on")
    with closing(known), stopping, working(length, "embed") as bar:

        def watch(texts: int) -> None:
            bar.update(texts, f"{(bar.pos + texts) / max(1e-9, time.monotonic() - began):.1f} texts/s")

        yield CachedEmbedder(model, known, at_once=getattr(model, "texts_per_call", _AT_ONCE), watch=watch)


def embed_folder(folder: Path, dataset: Dataset, spec: str, name: str | None = None) -> tuple[Path, int, str]:
    """Write the vectors of a BEIR folder, each text embedded once; gives the file, their width and the model's name.

    They go to vectors/NAME.npz, by default a name made of *spec*; vectors that are known are in a file beside them.
    """
    from tttembed_rag.embedders.specs import name_of
    from tttembed_rag.evaluate.files import write_vectors

    length = len(dataset.documents) + len(dataset.queries)
    with cached_embedder(spec, folder / "vectors" / ".known.sqlite", length) as model:
        documents = model.embed_documents(list(dataset.documents.values()))
        queries = model.embed_queries(list(dataset.queries.values()))
    named = name or name_of(spec)
    written = write_vectors(folder, named, dataset, documents, queries, fingerprint=model.fingerprint)
    return written, documents.shape[1], model.fingerprint
