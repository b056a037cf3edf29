"""A log of served queries, and the scores that a judge gave, as text files."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

from tttembed_rag.errors import DataError
from tttembed_rag.judging.plan import Verdicts
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.rewards.observations import Observation
from tttembed_rag.system.files import write_whole


def read_log(path: Path, *, task: str = DEFAULT_TASK) -> list[Observation]:
    """Served queries from a log of JSON lines.

    A line is ``{"query_id": ..., "query": ..., "task": ..., "candidates": [{"id": ..., "text": ...}, ...]}``,
    candidates in base order; *task* is the one of lines that name none.

    Raises:
        DataError: Not such a file; the message names the line.
    """
    observations = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    observations.append(_observation(path, number, line, task))
    except FileNotFoundError as exc:
        raise DataError(f"{path}: expected a BEIR folder or a log of served queries, found none") from exc
    except UnicodeDecodeError as exc:
        raise DataError(f"{path}: expected UTF-8 text, got other bytes") from exc
    return observations


def _observation(path: Path, number: int, line: str, task: str) -> Observation:
    try:
        record = json.loads(line)
        candidates = [(candidate["id"], candidate["text"]) for candidate in record["candidates"]]
        observation = Observation(record["query_id"], record["query"], candidates, record.get("task", task))
    except (KeyError, TypeError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}:{number}: expected query_id, query and candidates with id and text") from exc
    texts = (observation.query_id, observation.query, observation.task, *chain.from_iterable(candidates))
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{path}:{number}: expected texts, got another kind of value")
    return observation


def write_scores(path: Path, verdicts: Verdicts) -> None:
    """Write rewards in [0, 1] to *path* as query-id, corpus-id, score with a header line, all or nothing."""
    lines = [
        f"{query}\t{document}\t{reward:.9g}\n"
        for query, rewards in verdicts.rewards.items()
        for document, reward in rewards.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(["query-id\tcorpus-id\tscore\n", *lines]).encode())
