"""A file of the user's own, feedback or a judged log, read and embedded: for `tttembed fit`, `eval` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click
import numpy as np
from click.core import ParameterSource

from tttembed_rag.cli.embedding import cached_embedder
from tttembed_rag.errors import DataError
from tttembed_rag.fitting.measures import gains_of
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.rewards.rows import read_log, read_votes
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.jsontext import parsed_json

if TYPE_CHECKING:
    from tttembed_rag.evaluate.collection import Collection
    from tttembed_rag.evaluate.datasets import Dataset
    from tttembed_rag.vectors.checks import FloatArray

# Scores by query and document, or by source and document.
Scores: TypeAlias = dict[str, dict[str, float]]
# Vectors of texts that were embedded before, beside their file.
CACHE = ".known-vectors.sqlite"


def tasks_of(rewards: Rewards) -> list[tuple[Dataset, Scores, dict[str, Scores]]]:
    """Each task of the *rewards* of texts: its texts, which are their own ids, and its scores.

    The documents are those of all tasks. The scores by query and document are the means of all sources, beside the
    scores by query, source and document. Labels are gains: how far a score lies above the least of its query.
    """
    from tttembed_rag.evaluate.datasets import Dataset

    by_task: dict[str, dict[str, Scores]] = {}
    rows = zip(rewards.tasks.tolist(), rewards.query_texts.tolist(), rewards.sources.tolist(), strict=True)
    for row, (task, query, source) in enumerate(rows):
        pairs = slice(*rewards.starts[row : row + 2])
        texts, values = rewards.doc_texts[rewards.candidates[pairs]].tolist(), rewards.values[pairs].tolist()
        by_task.setdefault(task, {}).setdefault(query, {})[source] = dict(zip(texts, values, strict=True))
    documents = {text: text for text in rewards.doc_texts.tolist()}
    tasks = []
    for task, sources in by_task.items():
        scores = {query: _means(of_sources.values()) for query, of_sources in sources.items()}
        qrels = {
            query: dict(zip(of_query, gains_of(np.array(list(of_query.values()))).tolist(), strict=True))
            for query, of_query in scores.items()
        }
        tasks.append((Dataset(task, documents, {query: query for query in scores}, qrels), scores, sources))
    return tasks


def vectors_of(rewards: Rewards, dataset: Dataset) -> tuple[FloatArray, FloatArray]:
    """The vectors of the documents and of the queries of a task of *rewards*, in order."""
    row_of = {text: row for row, text in enumerate(rewards.query_texts.tolist())}
    return rewards.doc_vectors, rewards.query_vectors[[row_of[text] for text in dataset.queries]]


def collections_of(rewards: Rewards) -> list[Collection]:
    """A collection for each task of *rewards*, to measure on."""
    from tttembed_rag.evaluate.collection import Collection

    collections = []
    for dataset, scores, sources in tasks_of(rewards):
        by, judge, vectors = rewards.embedder, rewards.judge, vectors_of(rewards, dataset)
        collections.append(Collection.of(dataset, *vectors, embedder=by, judge=judge, scores=scores, sources=sources))
    return collections


def _means(of_sources: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of the scores that sources gave to each document."""
    scores: dict[str, list[float]] = {}
    for of_source in of_sources:
        for document, score in of_source.items():
            scores.setdefault(document, []).append(score)
    return {document: float(np.mean(of_document)) for document, of_document in scores.items()}


def read_rewarded(file: Path, scale: Scale | None, task: str, *, rewards: str | None = None) -> list[Served]:
    """The queries of a *file* of votes as `read_votes` takes it, or of a log of served queries, with their rewards.

    Of a log, *rewards* is the name of its scores. Rows that name no task are of *task*. What is odd is printed: rewards
    that are too low for their *scale*, two columns exchanged, ids in the place of texts.
    """
    log, declared = is_log(file), scale or Scale()
    served = _judged_log(file, rewards, declared, task) if log else read_votes(file, scale=scale, task=task)
    values = [candidate.reward for query in served for candidate in query.candidates]
    queries, documents = _texts_of(served)
    of_queries, of_documents = (int(np.median([len(text) for text in texts])) for texts in (queries, documents))
    odd = {
        declared.doubt(np.array(values, dtype=np.float64)),
        f"{file}: queries have {of_queries} characters, documents {of_documents}: are the two columns exchanged?"
        if of_queries > 2 * of_documents
        else "",
        f"{file}: documents are single words, such as {documents[0]!r:.40}: expected their texts, not their ids"
        if all(text.isascii() and len(text.split()) == 1 for text in documents)
        else "",
    }
    for line in sorted(odd - {""}):
        click.echo(f"warning: {line}", err=True)
    return served


def read_embedded(file: Path, *, embed: str | None, rewards: str | None, scale: Scale | None, task: str) -> Rewards:
    """The rewards of *file*, whose queries are those of `read_rewarded`, each text embedded once.

    Vectors are kept beside the file for the next command.
    """
    served = read_rewarded(file, scale, task, rewards=rewards)
    if embed is None:
        raise click.UsageError(
            f"--embed: expected the embedding model that your index was built with, for the texts of {file} "
            "(`tttembed data --help` lists them; minilm is one to try it with)"
        )
    queries, documents = _texts_of(served)
    with cached_embedder(embed, file.absolute().parent / CACHE, len(queries) + len(documents)) as model:
        of_queries = dict(zip(queries, model.embed_queries(queries), strict=True))
        of_documents = dict(zip(documents, model.embed_documents(documents), strict=True))
        return Rewards.from_texts(
            served,
            embed_query=lambda text: of_queries[text] if text in of_queries else model.embed_queries([text])[0],
            embed_documents=lambda texts: [of_documents[text] for text in texts],
            judge=rewards if rewards and is_log(file) else file.name,
            embedder=model.fingerprint,
        )


def _texts_of(served: Sequence[Served]) -> tuple[list[str], list[str]]:
    """The different texts of the queries and of their documents, in order."""
    documents = (candidate.text for query in served for candidate in query.candidates)
    return list(dict.fromkeys(query.query for query in served)), list(dict.fromkeys(documents))


def is_file_of_rows(path: Path) -> bool:
    """Whether *path* is a file, or is named like one that is not there."""
    return path.is_file() or path.suffix.lower() in (".csv", ".tsv", ".jsonl")


def refuse_given(names: Iterable[str], expected: str, got: object) -> None:
    """Refuse the options called *names* where they stand on the command line: they mean nothing for what was *got*."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name}: expected {expected}, got {got}")


def refuse_of_folder(paths: Sequence[Path], *names: str) -> None:
    """Refuse the options called *names*, which are about a BEIR folder, where all *paths* are files.

    --rewards is refused too, unless one of the files is a log.
    """
    if all(path.is_file() for path in paths):
        got = ", ".join(map(str, paths))
        refuse_given(names, "a BEIR folder", got)
        if not any(map(is_log, paths)):
            refuse_given(["rewards"], "a BEIR folder or a judged log", got)


def check_folder(folder: Path, embed: str | None) -> None:
    """Refuse what is no BEIR *folder*, and a model for the texts of one, which has stored vectors."""
    if not (folder / "corpus.jsonl").is_file():
        place = "a folder without corpus.jsonl" if folder.is_dir() else "no such file or folder"
        raise DataError(f"{folder}: expected a file of rows or a BEIR folder, found {place}")
    if embed is not None:
        raise click.UsageError(f"--embed: {folder} gets vectors by: tttembed data {folder} --embed {embed}")


def is_log(file: Path) -> bool:
    """Whether the first line of *file* is that of a log of served queries."""
    if not file.is_file():
        return False
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        return "candidates" in parsed_json(first)
    except (TypeError, ValueError):
        return False


def _judged_log(file: Path, rewards: str | None, scale: Scale, task: str) -> list[Served]:
    """The queries of a log with the candidates that were judged."""
    from tttembed_rag.evaluate.files import load_scores

    if rewards is None:
        raise click.UsageError(
            f"--rewards: expected scores/NAME.tsv beside {file} by its NAME (`tttembed judge {file} ...` writes it)"
        )
    scores, judged, blank = load_scores(file.parent, rewards), list[Served](), 0
    for served in read_log(file, task=task):
        of_query = scores.get(served.query_id, {})
        candidates = [
            replace(candidate, reward=float(scale.to_unit(np.array([of_query[candidate.doc_id]]))[0]))
            for candidate in served.candidates
            if candidate.doc_id in of_query
        ]
        with_texts = [candidate for candidate in candidates if served.query.strip() and candidate.text.strip()]
        blank += len(candidates) - len(with_texts)
        if with_texts:
            judged.append(replace(served, candidates=with_texts))
    if blank:
        click.echo(f"warning: {file}: {blank} judged pairs without a text are left out", err=True)
    if not judged:
        raise DataError(f"{file}: expected pairs with a score of scores/{rewards}.tsv, found none")
    return judged
