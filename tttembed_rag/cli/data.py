"""`tttembed data`: collections and their vectors as BEIR folders, which every other subcommand reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tttembed_rag.cli.embedding import embed_folder
from tttembed_rag.cli.group import main
from tttembed_rag.system.files import PUBLIC, write_whole

# The file that names the source of a folder's collection; written before the texts.
_NOTE = "source.json"


@main.command()
@click.argument("name", metavar="NAME|DIR")
@click.option("--out", type=Path, help="The folder to write.  [default: NAME, or DIR itself]")
@click.option("--embed", "spec", metavar="SPEC", help="Whose vectors; without one, texts alone are written.")
@click.option("--vectors", metavar="NAME", help="They go to vectors/NAME.npz.  [default: by SPEC]")
@click.option("--split", help="Such as test or dev; written as qrels/test.tsv.  [default: the one evaluated on]")
@click.option("--subset", help="Of a task that has several, such as a language.")
@click.option("--path", metavar="HUB_ID|DIR", help="Another place to read SKILLRET from.")
@click.option("--revision", help="Of SKILLRET; other tasks pin theirs.")
@click.option("--json", "as_json", is_flag=True, help="What was written as one JSON object.")
def data(
    name: str,
    out: Path | None,
    spec: str | None,
    vectors: str | None,
    *,
    as_json: bool,
    **choices: str | None,
) -> None:
    """Write a collection, and its vectors, as a BEIR folder.

    NAME is a task of the paper (ArguAna, NQ-HN ...), any retrieval task of mteb, or SKILLRET; DIR is a BEIR
    folder, which gets vectors. SPEC is sentence-transformers:MODEL, qwen3:MODEL,
    model2vec:MODEL, openai:MODEL (any service that speaks its embeddings, by ?url=), cohere:MODEL, voyage:MODEL,
    gemini:MODEL, python:MODULE:NAME or minilm; options follow as ?name=value&... (dimensions=256 keeps the first 256).

    Run it again to continue: texts that are there are not loaded twice, and none is embedded twice.
    """
    from tttembed_rag.evaluate.files import load_beir

    if Path(name).is_file():
        raise click.UsageError(f"NAME: expected the name of a collection or a BEIR folder, got the file {name}")
    there, folder = Path(name), out or Path(name)
    if (there / "corpus.jsonl").is_file():
        if folder.resolve() != there.resolve():
            raise click.UsageError(f"--out: expected none beside the folder {there}, which gets vectors itself")
        made = _choices_of(there) or {}
        if other := next((key for key, value in choices.items() if value not in (None, made.get(key))), None):
            raise click.UsageError(
                f"--{other}: expected {made.get(other)} for the folder {there}, got {choices[other]}"
            )
    else:
        _fetch(name, folder, choices)
    dataset = load_beir(folder, labels=False)
    record: dict[str, str | int] = {
        "folder": str(folder),
        "documents": len(dataset.documents),
        "queries": len(dataset.queries),
    }
    if spec is not None:
        written, width, fingerprint = embed_folder(folder, dataset, spec, vectors)
        record |= {"vectors": str(written), "dimensions": width, "embedder": fingerprint}
    if as_json:
        click.echo(json.dumps(record))
        return
    labelled = " with labels" if dataset.qrels else ""
    click.echo(f"{folder}: {record['documents']} documents, {record['queries']} queries{labelled}")
    if spec is not None:
        click.echo(f"{record['vectors']}: {record['dimensions']} dimensions of {record['embedder']}")


def _fetch(name: str, folder: Path, choices: Mapping[str, str | None]) -> None:
    """Write the collection called *name* to *folder*, unless a run with the same choices has."""
    from tttembed_rag.system.extensions import extension

    wanted, made = {"name": name, **choices}, _choices_of(folder)
    if made is None and folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder}: expected an empty folder, a BEIR folder, or none")
    if made not in (None, wanted):
        raise click.UsageError(f"{folder}: expected a folder made for {wanted}, got one for {made}")
    if made == wanted and (folder / "corpus.jsonl").is_file():
        return
    load: Any = extension("tttembed.collections", "mteb", brings="collections by name are a part")
    collection = load(name, **choices)
    folder.mkdir(parents=True, exist_ok=True)
    origin = {**collection.origin, "asked": wanted}
    write_whole(folder / _NOTE, json.dumps(origin, indent=1).encode() + b"\n", mode=PUBLIC)
    collection.write(folder)


def _choices_of(folder: Path) -> dict[str, str | None] | None:
    """The name and choices that a folder was made for; None where this command did not make it."""
    note = folder / _NOTE
    if not note.is_file():
        return None
    try:
        choices = json.loads(note.read_text(encoding="utf-8"))["asked"]
    except (ValueError, KeyError, TypeError):
        return None
    return choices if isinstance(choices, dict) else None
