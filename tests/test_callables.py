"""The callables of the standard library, and the requests for them, which benchmarks search."""

from __future__ import annotations

import builtins
import csv
import inspect
import os
import pydoc
import re
import subprocess
import sys
import warnings
from collections import Counter
from http.server import HTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import pytest

from benchmarks import callables
from benchmarks.callables import CARD_LIMIT, Callables, collect_callables, standard_library

REQUESTS = Path(callables.__file__).with_suffix(".tsv")


@pytest.fixture(scope="module")
def corpus() -> Callables:
    """The documents of this Python, collected once."""
    return collect_callables()


@pytest.fixture(scope="module")
def requests() -> list[tuple[str, list[str]]]:
    with REQUESTS.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["request"], row["answers"].split(",")) for row in rows]


def function_behind(name: str) -> Any:
    """The object called `name`, without the instance or class that it is bound to."""
    first, *rest = name.split(".")
    found = sys.modules[first] if first in sys.stdlib_module_names else getattr(builtins, first)
    for attribute in rest:
        found = getattr(found, attribute)
    return found if inspect.isclass(found) else getattr(found, "__func__", found)


def test_the_corpus_is_large(corpus: Callables) -> None:
    """The standard library yields thousands of documents."""
    assert len(corpus.texts) > 4000


def test_one_document_per_object(corpus: Callables) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objects = {name: function_behind(name) for name in corpus.texts}
    counts = Counter(map(id, objects.values()))
    assert [name for name, value in objects.items() if counts[id(value)] > 1] == []


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("asyncio.runners.run", "asyncio.run"),
        ("json.encoder.JSONEncoder", "json.JSONEncoder"),
        ("IOError", "OSError"),
        ("io.open", "open"),
        ("random.Random.choice", "random.choice"),
        ("datetime.datetime.today", "datetime.date.today"),
        ("threading.Timer.start", "threading.Thread.start"),
        ("tarfile.TarFile.open", "tarfile.open"),
        ("mailbox.Message.add_header", "email.message.Message.add_header"),
    ],
)
def test_aliases_share_a_document(corpus: Callables, alias: str, name: str) -> None:
    """Every alias leads to the document under the name that a person would write."""
    assert corpus.canonical[alias] == name
    assert name in corpus.texts


def test_the_platform_module_behind_os_path_is_an_alias(corpus: Callables) -> None:
    """`posixpath.join` (or `ntpath.join` on Windows) is `os.path.join`."""
    assert corpus.canonical[f"{os.path.__name__}.join"] == "os.path.join"


def test_canonical_names_are_the_documents(corpus: Callables) -> None:
    """Every alias resolves to a document and every document to itself."""
    assert set(corpus.canonical.values()) == set(corpus.texts)
    assert all(corpus.canonical[name] == name for name in corpus.texts)


def test_a_card_starts_with_its_name(corpus: Callables) -> None:
    """A card opens with the canonical name and stays within the limit."""
    assert all(text.startswith(name) and len(text) <= CARD_LIMIT for name, text in corpus.texts.items())


def test_a_card_is_name_and_docstring(corpus: Callables) -> None:
    """A card reads as name, blank line, docstring; no signature crowds the words out."""
    expected = "random.choice\n\nChoose a random element from a non-empty sequence."

    assert expected == corpus.texts["random.choice"]


def test_inherited_docstrings_do_not_count(corpus: Callables) -> None:
    """A class without a docstring of its own is no document, though its base class has one."""
    assert inspect.getdoc(HTTPServer) == inspect.getdoc(TCPServer)
    assert "http.server.HTTPServer" not in corpus.canonical


def test_collecting_is_deterministic(corpus: Callables) -> None:
    """Two calls give the same documents in the same order."""
    again = collect_callables()
    assert again == corpus
    assert list(again.texts.items()) == list(corpus.texts.items())


@pytest.mark.slow
def test_collecting_is_silent() -> None:
    """A fresh interpreter that shows every warning collects without a word."""
    code = "from benchmarks.callables import collect_callables; collect_callables()"
    command = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_there_are_enough_requests(requests: list[tuple[str, list[str]]]) -> None:
    """There are a few hundred requests to ask."""
    assert len(requests) >= 160


def test_requests_are_unique(requests: list[tuple[str, list[str]]]) -> None:
    """No request is asked twice."""
    counts = Counter(request.casefold() for request, _ in requests)
    assert [request for request, count in counts.items() if count > 1] == []


def test_every_answer_is_a_document(corpus: Callables, requests: list[tuple[str, list[str]]]) -> None:
    """Every answer resolves to a document of the standard library, but for what an early 3.11 does not document."""
    answers = {answer for _, answers in requests for answer in answers}
    lacking = sorted(answers - corpus.canonical.keys())
    assert lacking in ([], ["asyncio.taskgroups.TaskGroup", "asyncio.taskgroups.TaskGroup.create_task"])
    assert all(pydoc.locate(answer).__doc__ is None for answer in lacking)


def test_answers_are_different_documents(corpus: Callables, requests: list[tuple[str, list[str]]]) -> None:
    resolved = {request: [corpus.canonical.get(answer, answer) for answer in answers] for request, answers in requests}
    assert [request for request, names in resolved.items() if len(set(names)) < len(names)] == []


def test_requests_do_not_name_their_answers(requests: list[tuple[str, list[str]]]) -> None:
    pairs = [(request, answer) for request, answers in requests for answer in answers]
    assert [pair for pair in pairs if re.search(rf"\b{re.escape(pair[1])}\b", pair[0])] == []


@pytest.mark.slow
def test_the_built_in_requests_have_answers() -> None:
    dataset = standard_library()

    assert len(dataset.queries) > 160
    assert [query for query, answers in dataset.qrels.items() if not answers.keys() <= dataset.documents.keys()] == []
