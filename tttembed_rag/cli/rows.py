"""A file of the user's own, feedback or a judged log, read and embedded: for `tttembed fit`, `eval` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import numpy as np
from click.core import ParameterSource
from numpy.typing import NDArray

from tttembed_rag.cli.embedding import cached_embedder
from tttembed_rag.errors import DataError
from tttembed_rag.rewards import Rewards
from tttembed_rag.rewards.rows import TextReward, read_rows
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.jsontext import parsed_json

if TYPE_CHECKING:
    from tttembed_rag.evaluate.collection import Collection
    from tttembed_rag.evaluate.datasets import Dataset

# Vectors of texts that were embedded before, beside what is written or read.
_CACHE = ".known-vectors.sqlite"
# A document is relevant to a query where its reward lies above this: more often liked than not. A vote that was taken
# back is a reward of exactly this.
RELEVANT = 0.5


class TaskOfRows(NamedTuple):
    """The rows of one task: its texts, which are their own ids, labels, and scores by query and document.

    They are means of what sources said, which stands in *sources* by query, source and document.
    """

    dataset: Dataset
    scores: dict[str, dict[str, float]]
    sources: dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRows:
    """The rows of a file, the vectors of queries and documents by text, who gave the rewards, and the model."""

    rows: Sequence[TextReward]
    queries: Mapping[str, NDArray[np.floating[Any]]]
    documents: Mapping[str, NDArray[np.floating[Any]]]
    judge: str
    embedder: str

    def rewards(self) -> Rewards:
        """The rewards to learn from."""
        return Rewards.from_texts(
            self.rows,
            embed_query=self.queries.__getitem__,
            embed_documents=lambda texts: [self.documents[text] for text in texts],
            judge=self.judge,
            embedder=self.embedder,
        )

    def vectors(self, dataset: Dataset) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating]]:
        """The vectors of the documents and of the queries of a task, in order."""
        documents = np.stack([self.documents[text] for text in dataset.documents])
        return documents, np.stack([self.queries[text] for text in dataset.queries])

    def collections(self, index: Literal["flat", "hnsw"]) -> list[Collection]:
        """A collection for each task, to measure on, with an index of that kind."""
        from tttembed_rag.evaluate.collection import Collection

        found = []
        for dataset, scores, sources in tasks_of(self.rows):
            if not any(grade for grades in dataset.qrels.values() for grade in grades.values()):
                expected = f"expected a reward above {RELEVANT:g} in task {dataset.name!r}"
                raise DataError(f"{self.judge}: {expected}, found none")
            of = partial(Collection.of, embedder=self.embedder, judge=self.judge, scores=scores, index=index)
            found.append(replace(of(dataset, *self.vectors(dataset)), sources=sources))
        return found


def tasks_of(rows: Sequence[TextReward]) -> list[TaskOfRows]:
    """Each task of *rows*, whose documents are all rows' documents.

    Queries without a relevant document have labels too: nothing can be gained there.
    """
    from tttembed_rag.evaluate.datasets import Dataset

    given: dict[str, dict[str, dict[str, list[tuple[str, float]]]]] = {}
    for row in rows:
        sources = given.setdefault(row.task, {}).setdefault(row.query, {})
        sources.setdefault(row.source, []).append((row.document, row.reward))
    documents = {row.document: row.document for row in rows}
    found = []
    for task, queries in given.items():
        by_source = {query: {source: _means(said) for source, said in of.items()} for query, of in queries.items()}
        scores = {query: _means(pair for one in of.values() for pair in one.items()) for query, of in by_source.items()}
        qrels = {query: {name: float(score > RELEVANT) for name, score in of.items()} for query, of in scores.items()}
        found.append(TaskOfRows(Dataset(task, documents, {query: query for query in scores}, qrels), scores, by_source))
    return found


def _means(said: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The mean of each document's scores."""
    scores: dict[str, list[float]] = {}
    for document, score in said:
        scores.setdefault(document, []).append(score)
    return {document: float(np.mean(given)) for document, given in scores.items()}


def read_rewarded(file: Path, scale: str, task: str, *, rewards: str | None = None) -> list[TextReward]:
    """The rows of a *file* of votes as `read_rows` takes it, or of a log of served queries.

    Of a log, *rewards* is the name of its scores. Rows that name no task are of *task*. What is odd is printed: rewards
    that are too low for their *scale*, or two columns exchanged.
    """
    on = Scale.parse(scale)
    rows = _judged_log(file, rewards, on, task) if is_log(file) else read_rows(file, scale=on, task=task)
    if doubt := on.doubt(np.array([row.reward for row in rows])):
        click.echo(f"warning: {doubt}", err=True)
    asked, shown = (int(np.median([len(text) for text in texts])) for texts in _texts_of(rows))
    if asked > 2 * shown:
        exchanged = f"queries have {asked} characters, documents {shown}: are the two columns exchanged?"
        click.echo(f"warning: {file}: {exchanged}", err=True)
    return rows


def read_embedded(
    file: Path, *, embed: str | None, rewards: str | None, scale: str, task: str, beside: Path
) -> EmbeddedRows:
    """The rows of *file* as `read_rewarded` gives them, each text embedded once.

    Vectors are kept in the folder *beside* for the next command.
    """
    rows = read_rewarded(file, scale, task, rewards=rewards)
    if embed is None:
        raise click.UsageError(
            f"--embed: expected the embedding model that your index was built with, for the texts of {file} "
            "(`tttembed data --help` lists them; minilm is one to try it with)"
        )
    queries, documents = _texts_of(rows)
    with cached_embedder(embed, beside.absolute() / _CACHE, len(queries) + len(documents)) as model:
        return EmbeddedRows(
            rows=rows,
            queries=dict(zip(queries, model.embed_queries(queries), strict=True)),
            documents=dict(zip(documents, model.embed_documents(documents), strict=True)),
            judge=rewards if rewards and is_log(file) else file.name,
            embedder=model.fingerprint,
        )


def _texts_of(rows: Sequence[TextReward]) -> tuple[list[str], list[str]]:
    """The different queries and documents of *rows*, in order."""
    return list(dict.fromkeys(row.query for row in rows)), list(dict.fromkeys(row.document for row in rows))


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


def refuse_embed(folder: Path, embed: str | None) -> None:
    """Refuse a model for the texts of a BEIR *folder*, which has stored vectors."""
    if embed is not None:
        if not folder.exists():
            raise DataError(f"{folder}: expected a file of rows or a BEIR folder, found no such file or folder")
        raise click.UsageError(f"--embed: {folder} gets vectors by: tttembed data {folder} --embed {embed}")


def is_log(file: Path) -> bool:
    """Whether the first line of *file* is that of a log of served queries."""
    if file.suffix.lower() in (".csv", ".tsv") or not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        return "candidates" in parsed_json(first)
    except (TypeError, ValueError):
        return False


def _judged_log(file: Path, rewards: str | None, scale: Scale, task: str) -> list[TextReward]:
    """The judged pairs of a log."""
    from tttembed_rag.evaluate.files import load_scores
    from tttembed_rag.rewards.observations import read_log

    if rewards is None:
        raise click.UsageError(
            f"--rewards: expected scores/NAME.tsv beside {file} by its NAME (`tttembed judge {file} ...` writes it)"
        )
    scores = load_scores(file.parent, rewards)
    rows = [
        TextReward(one.query, text, float(scale.to_unit(np.array([scores[one.query_id][name]]))[0]), one.task)
        for one in read_log(file, task=task)
        for name, text in one.candidates
        if name in scores.get(one.query_id, {})
    ]
    if not rows:
        raise DataError(f"{file}: expected pairs with a score of scores/{rewards}.tsv, found none")
    return rows
