"""The callables of the standard library, and the requests for them, which benchmarks search."""

from __future__ import annotations

import builtins
import csv
import inspect
import os
import pydoc
import re
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import callables
from benchmarks.callables import CARD_LIMIT, collect_callables


@pytest.fixture(scope="module")
def corpus():
    """The documents of this Python, collected once."""
    return collect_callables()


@pytest.fixture(scope="module")
def answers():
    """The names that answer each request."""
    with Path(callables.__file__).with_suffix(".tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len({row["request"].casefold() for row in rows}) == len(rows) >= 160
    return {row["request"]: row["answers"].split(",") for row in rows}


def function_behind(name):
    """The object called `name`, without the instance or class that it is bound to."""
    first, *rest = name.split(".")
    value = sys.modules[first] if first in sys.stdlib_module_names else getattr(builtins, first)
    for attribute in rest:
        value = getattr(value, attribute)
    return value if inspect.isclass(value) else getattr(value, "__func__", value)


def test_there_is_one_document_for_each_of_thousands_of_objects(corpus):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objects = {name: function_behind(name) for name in corpus.texts}
    counts = Counter(map(id, objects.values()))

    assert len(objects) > 4000
    assert [name for name, value in objects.items() if counts[id(value)] > 1] == []


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("asyncio.runners.run", "asyncio.run"),
        ("json.encoder.JSONEncoder", "json.JSONEncoder"),
        ("IOError", "OSError"),
        ("random.Random.choice", "random.choice"),
        ("datetime.datetime.today", "datetime.date.today"),
        ("threading.Timer.start", "threading.Thread.start"),
        ("mailbox.Message.add_header", "email.message.Message.add_header"),
        (f"{os.path.__name__}.join", "os.path.join"),
    ],
)
def test_aliases_share_a_document(corpus, alias, name):
    """Every alias leads to the document under the name that a person would write."""
    assert corpus.canonical[alias] == name
    assert name in corpus.texts


def test_a_card_is_name_and_docstring(corpus):
    """A name, a blank line and the docstring, within the limit; no signature crowds the words out."""
    assert corpus.texts["random.choice"] == "random.choice\n\nChoose a random element from a non-empty sequence."
    assert all(text.startswith(name) and len(text) <= CARD_LIMIT for name, text in corpus.texts.items())


def test_every_answer_is_a_document(corpus, answers):
    """Every answer resolves to a document of the standard library, but for what an early 3.11 does not document."""
    lacking = sorted({name for names in answers.values() for name in names} - corpus.canonical.keys())

    assert lacking in ([], ["asyncio.taskgroups.TaskGroup", "asyncio.taskgroups.TaskGroup.create_task"])
    assert all(pydoc.locate(answer).__doc__ is None for answer in lacking)


def test_answers_are_different_documents_that_no_request_names(corpus, answers):
    for request, names in answers.items():
        assert len({corpus.canonical.get(name, name) for name in names}) == len(names), request
        assert [name for name in names if re.search(rf"\b{re.escape(name)}\b", request)] == []
