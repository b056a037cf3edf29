"""A log of served queries, feedback on them, and the scores that a judge gave, as text files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from tttembed_rag.errors import DataError
from tttembed_rag.judging.plan import Plan, Progress, Verdicts
from tttembed_rag.models.options import Options
from tttembed_rag.rewards import DEFAULT_TASK, Feedback
from tttembed_rag.rewards.observations import Observation
from tttembed_rag.rewards.rows import read_events
from tttembed_rag.rewards.scales import Scale
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


def read_feedback(spec: str, plan: Plan, *, queries: Mapping[str, str], documents: Mapping[str, str]) -> Verdicts:
    """The scores that a file of feedback holds for the pairs of *plan*; *queries* and *documents* are texts by id.

    *spec* is ``feedback:FILE``; options follow as in an address: ``feedback:FILE?scale=rubric:0,3&half_life_days=30``.

    Raises:
        DataError: Not such a file, or one about other queries and documents.
    """
    path, _, query = spec.removeprefix("feedback:").partition("?")
    options = Options("judge", spec, query)
    scale = options.take("scale", "")
    days, attention = options.number("half_life_days", math.inf), options.number("attention", 1.0)
    options.check_all_used()
    events = list(read_events(Path(path)))
    scale_of = Scale.parse(scale) if scale else None
    feedback = Feedback.of(events, scale=scale_of, half_life_days=days, attention=attention)
    scores = feedback.by_text(queries, documents)
    rewards: dict[str, dict[str, float]] = {}
    asked = [(one, name, text) for one, stage in plan.visits() for name, text in stage]
    for one, name, text in asked:
        if (score := scores.get((one.query, text))) is not None:
            rewards.setdefault(one.query_id, {})[name] = float(feedback.scale.to_unit(np.array([score]))[0])
    return Verdicts(rewards, len(asked) - sum(map(len, rewards.values())), Progress(len(asked)))


def write_scores(path: Path, verdicts: Verdicts) -> None:
    """Write rewards in [0, 1] to *path* as query-id, corpus-id, score with a header line, all or nothing."""
    lines = [
        f"{query}\t{document}\t{reward:.9g}\n"
        for query, rewards in verdicts.rewards.items()
        for document, reward in rewards.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(["query-id\tcorpus-id\tscore\n", *lines]).encode())
