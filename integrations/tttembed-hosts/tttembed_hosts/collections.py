"""Collections by name: the paper's 15 MTEB tasks, any other retrieval task of mteb, and SKILLRET."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tttembed_hosts.extras import require
from tttembed_rag.clients.local import first_line, why_unreachable, without_bars
from tttembed_rag.errors import DataError, InputError
from tttembed_rag.evaluate.datasets import Judgments
from tttembed_rag.evaluate.files import write_beir

EXTRA = "mteb"

# The paper's tasks by the names of its tables; mteb's own names are understood too.
PAPER_TASKS: Mapping[str, str] = {
    "ArguAna": "ArguAna",
    "CQADupstackGaming": "CQADupstackGamingRetrieval",
    "CQADupstackUnix": "CQADupstackUnixRetrieval",
    "ClimateFEVER-HN": "ClimateFEVERHardNegatives",
    "DBPedia-HN": "DBPediaHardNegatives",
    "FEVER-HN": "FEVERHardNegatives",
    "FiQA2018": "FiQA2018",
    "HotpotQA-HN": "HotpotQAHardNegatives",
    "MSMARCO-HN": "MSMARCOHardNegatives",
    "NQ-HN": "NQHardNegatives",
    "Quora-HN": "QuoraRetrievalHardNegatives",
    "SCIDOCS": "SCIDOCS",
    "TRECCOVID": "TRECCOVID",
    "TopiOCQA-HN": "TopiOCQAHardNegatives",
    "Touche2020.v3": "Touche2020Retrieval.v3",
}
SKILLRET = "SKILLRET"
# The hub id of its authors' data: tables skills, queries and qrels, each with a train and a test split.
SKILLRET_PATH = "ThakiCloud/SKILLRET"


@dataclass(frozen=True, slots=True)
class SourceCollection:
    """A retrieval collection as its publisher distributes it.

    Attributes:
        corpus: (id, title, text) of each document; read once.
        queries: Text by query id, as mteb hands it to a model.
        qrels: Grades by query id and document id, for queries that have a grade.
        origin: Its task, path, revision, split and subset.
    """

    corpus: Iterable[tuple[str, str, str]]
    queries: Mapping[str, str]
    qrels: Judgments
    origin: Mapping[str, str | bool | None] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it as a BEIR folder, with the grades of any split as qrels/test.tsv."""
        write_beir(folder, self.corpus, self.queries, self.qrels)


def load_collection(
    name: str,
    *,
    split: str | None = None,
    subset: str | None = None,
    path: str | None = None,
    revision: str | None = None,
) -> SourceCollection:
    """The collection called *name*, from the hub or its cache on this machine.

    Args:
        name: A task of the paper (``NQ-HN``), a retrieval task of mteb (``NFCorpus``), or ``SKILLRET``.
        split: Such as ``test`` or ``dev``; None is the split that its publisher evaluates on.
        subset: Of a task that has several, such as a language.
        path: Another hub id or a folder of SKILLRET.
        revision: Of SKILLRET; tasks of mteb pin theirs.

    Raises:
        InputError: There is no such task, split or subset.
        DataError: It cannot be read: the hub is not reachable, or has it in another form.
    """
    if name == SKILLRET:
        return load_skillret(path or SKILLRET_PATH, split=split or "test", revision=revision)
    if path or revision:
        raise InputError(f"path, revision: expected none for {name}, whose task pins both, got {path}, {revision}")
    mteb = require("mteb", EXTRA)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that have a successor: the paper's tasks are what is asked for
            task = mteb.get_task(PAPER_TASKS.get(name, name))
    except KeyError as exc:
        reason, names = str(exc.args[0]).removeprefix("KeyError: "), ", ".join((*PAPER_TASKS, SKILLRET))
        raise InputError(f"name: expected one of {names}, or a task of mteb; {reason}") from exc
    return from_task(task, split=split, subset=subset)


def from_task(task: Any, *, split: str | None = None, subset: str | None = None) -> SourceCollection:
    """The collection behind a retrieval task of mteb, loaded as mteb loads it.

    Args:
        task: An `AbsTaskRetrieval`; its data is loaded if it is not.
        split: None is its only evaluation split.
        subset: None is its only subset.

    Raises:
        InputError: It is another kind of task, or has several splits or subsets and none was chosen.
        DataError: Its data cannot be read.
    """
    retrieval = require("mteb.abstasks.retrieval", EXTRA).AbsTaskRetrieval
    if not isinstance(task, retrieval) or list(task.metadata.modalities) != ["text"]:
        raise InputError(f"task: expected a retrieval task on text, got {type(task).__name__}")
    name, place = task.metadata.name, task.metadata.dataset
    split = split or _only("split", name, task.eval_splits)
    if split not in task.eval_splits:
        task.filter_eval_splits([split])
    if not task.data_loaded:
        with _readable(name, place["path"]):
            task.load_data(num_proc=None)
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    subset = subset or _only("subset", name, list(task.dataset))
    data = task.dataset.get(subset, {}).get(split)
    if data is None:
        held = ", ".join(f"{one}/{other}" for one, splits in task.dataset.items() for other in splits)
        raise InputError(f"{name}: expected one of the subsets and splits {held}, got {subset}/{split}")
    if data.get("top_ranked"):
        raise InputError(f"{name}: expected a task that searches its corpus, got one that reranks given documents")
    qrels = {str(query): dict(grades) for query, grades in data["relevant_docs"].items() if grades}
    origin = {
        "task": name,
        "path": place["path"],
        "revision": place["revision"],
        "split": split,
        "subset": subset,
    }
    return SourceCollection(_documents(data["corpus"]), _queries(data["queries"], task, qrels), qrels, origin)


def load_skillret(path: str = SKILLRET_PATH, *, split: str = "test", revision: str | None = None) -> SourceCollection:
    """SKILLRET: requests to an agent, and the cards of the skills that serve them.

    A card is its name, description and instructions with bars between, as its authors embed it.

    Args:
        path: Hub id, or a folder in the same form.
        split: ``test`` or ``train``.
        revision: Commit, tag or branch; None is the newest, and the set has been cleaned since its paper
            (6,660 skills and 4,997 queries).

    Raises:
        DataError: It cannot be read.
    """
    datasets = require("datasets", EXTRA)
    with _readable(SKILLRET, path):
        skills, requests, grades = (
            datasets.load_dataset(path, table, split=split, revision=revision)
            for table in ("skills", "queries", "qrels")
        )
    qrels: dict[str, dict[str, float]] = {}
    for row in grades:
        qrels.setdefault(str(row["query_id"]), {})[str(row["skill_id"])] = float(row["relevance"])
    queries = {str(row["id"]): str(row["query"]) for row in requests}
    origin = {"task": SKILLRET, "path": path, "revision": revision, "split": split, "subset": "default"}
    graded = {query: text for query, text in queries.items() if query in qrels}
    return SourceCollection(((str(row["id"]), "", _card(row)) for row in skills), graded, qrels, origin)


def _card(skill: Mapping[str, Any]) -> str:
    name, description, instructions = ((skill.get(part) or "").strip() for part in ("name", "description", "skill_md"))
    return f"{name} | {description} | {instructions or description}"


def _documents(corpus: Any) -> Iterator[tuple[str, str, str]]:
    for row in corpus:
        yield str(row["id"]), row.get("title") or "", row.get("text") or ""


def _queries(queries: Any, task: Any, qrels: Judgments) -> dict[str, str]:
    """Text by id as a model reads it: instructions added, conversations joined, by mteb itself."""
    loader = require("mteb._create_dataloaders", EXTRA).create_dataloader(
        queries, task_metadata=task.metadata, prompt_type="query", batch_size=256
    )
    texts = (text for batch in loader for text in batch["text"])
    return {str(key): text for key, text in zip(queries["id"], texts, strict=True) if str(key) in qrels}


def _only(what: str, name: str, choices: Iterable[str]) -> str:
    """The only split or subset of a task, where the caller chose none."""
    listed = list(choices)
    if len(listed) != 1:
        raise InputError(f"{what}: expected one of {', '.join(listed)} for {name}, got none")
    return listed[0]


@contextmanager
def _readable(name: str, path: str) -> Iterator[None]:
    """A block that reads data of the hub: no progress bars in pipes, an error of one line where it fails."""
    if not Path(path).exists() and (reason := why_unreachable(extra=EXTRA)):
        raise DataError(f"{name}: expected its data at {path}; {reason}; HF_HUB_OFFLINE=1 reads what was downloaded")
    try:
        with nullcontext() if sys.stderr and sys.stderr.isatty() else without_bars("datasets", extra=EXTRA):
            yield
    except (OSError, ValueError, KeyError, RuntimeError) as exc:
        raise DataError(f"{name}: expected its data at {path} ({type(exc).__name__}: {first_line(exc)})") from exc
