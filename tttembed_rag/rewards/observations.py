"""A query that was served and its candidates: what every verb before the fit hands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from tttembed_rag.errors import DataError
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.rows import json_lines, read_text
from tttembed_rag.vectors.checks import FloatArray

__all__ = ["MAX_DEPTH", "MAX_SOURCES", "Candidate", "Observation", "Served", "read_log"]

# Candidates of a query that are kept, and learned from, at most: more teach little, and cost much.
MAX_DEPTH = 200
# Sources whose rewards of one pair of query and document are kept side by side at most, the last ones that spoke.
MAX_SOURCES = 32


@dataclass(frozen=True, slots=True)
class Observation:
    """A query that was served.

    Attributes:
        query_id: The same for the same query, in all tasks: scores are written by it.
        query: Its text.
        candidates: (id, text) of what the retriever returned, in base order.
        task: Its task key.
    """

    query_id: str
    query: str
    candidates: Sequence[tuple[str, str]]
    task: str = "default"


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A document that was shown for a query.

    Attributes:
        doc_id: Its id, the same wherever it is shown to the same tenant.
        vector: (d,) as it lies in the index; None while it is not known: it takes part in no fit until then.
        text: What a judge reads; None where that is not known or not to be kept.
        reward: In [0, 1]; None while it waits for a judge.
        silent: The reward is that of silence, such as a click that did not come: a word of the same source stays.
    """

    doc_id: str
    vector: FloatArray | None = field(default=None, repr=False)
    text: str | None = None
    reward: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A query that was served.

    Attributes:
        query_id: Its id, unique within its tenant and task.
        vector: (d,) its *base* vector, without any offset; None while it is not known.
        candidates: What was shown, in base order.
        query: Its text; None where that is not known or not to be kept.
        task: Its task key.
        tenant: Whose it is; "" is the shared tenant.
        at: When, in Unix seconds; None is now, and a time ahead of the database's clock is its present.
        embedder: Fingerprint of the model that the vectors come from.
        source: Who gave the rewards of its candidates, such as a user or an agent; empty for the declared judge.
    """

    query_id: str
    vector: FloatArray | None = field(repr=False)
    candidates: Sequence[Candidate] = field(repr=False)
    query: str | None = None
    task: str = DEFAULT_TASK
    tenant: str = ""
    at: float | None = None
    embedder: str = ""
    source: str = ""


def read_log(path: Path, *, task: str = DEFAULT_TASK) -> list[Observation]:
    """Served queries from a log of JSON lines.

    A line is ``{"query_id": ..., "query": ..., "task": ..., "candidates": [{"id": ..., "text": ...}, ...]}``,
    candidates in base order; *task* is the one of lines that name none.

    Raises:
        DataError: Not such a file; the message names the line.
    """
    observations = []
    with read_text(path, "a BEIR folder or a log of served queries, found none") as text:
        for number, line in json_lines(path, text.split("\n")):
            try:
                shown = [(candidate["id"], candidate["text"]) for candidate in line["candidates"]]
                one = Observation(line["query_id"], line["query"], shown, line.get("task", task))
            except (KeyError, TypeError) as exc:
                raise DataError(f"{path}:{number}: expected query_id, query and candidates with id and text") from exc
            if not all(isinstance(part, str) for part in (one.query_id, one.query, one.task, *chain(*shown))):
                raise DataError(f"{path}:{number}: expected texts, got another kind of value")
            observations.append(one)
    return observations
