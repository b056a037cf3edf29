"""Rewards of texts: rows of feedback, and the columns that rewards are built from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import EmbedderError, InputError, RewardError
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.names import numbered
from tttembed_rag.rewards.observations import Served
from tttembed_rag.vectors.functions import vectors_from

_log = logging.getLogger(__name__)
# Characters of a document's text that are its id; only a beginning of this length can be that of several texts, so
# that none is another one with a number.
_SHOWN = 80


def columns_of(
    feedback: Iterable[Sequence[Any] | Served],
    embed_query: Callable[[str], ArrayLike],
    embed_documents: Callable[[list[str]], ArrayLike | Sequence[ArrayLike]],
) -> dict[str, Any]:
    """The arguments of `Rewards.from_indexed` for what `Rewards.from_texts` takes."""
    judged: dict[tuple[str, str, str], dict[str, list[float]]] = {}  # rewards by document, by (task, query, source)
    form = "(query, document, reward[, task[, source]])"
    for number, row in enumerate(_rows(feedback)):
        if isinstance(row, str | Mapping) or not hasattr(row, "__len__") or not 3 <= len(row) <= 5:
            raise InputError(f"feedback: expected {form}, got {row!r:.80} at row {number}")
        query, document, reward, task, source = (*row, "", "")[:5]
        texts = all(isinstance(text, str) for text in (query, document, task, source))
        if not (texts and query.strip() and document.strip()):
            raise InputError(f"feedback: expected texts in {form}, got {row!r:.80} at row {number}")
        try:
            value = float(reward)
        except (TypeError, ValueError) as exc:
            raise InputError(f"feedback: expected a number as reward, got {reward!r:.80} at row {number}") from exc
        judged.setdefault((task or DEFAULT_TASK, query, source), {}).setdefault(document, []).append(value)
    if not judged:
        raise RewardError("feedback: expected at least one row, got none")
    tasks, queries, sources = zip(*judged, strict=True)
    documents = list(dict.fromkeys(text for of_query in judged.values() for text in of_query))
    if all(len(of_query) == 1 for of_query in judged.values()) and len(documents) < len(set(queries)):
        got = f"each of {len(set(queries))} queries has one document, of {len(documents)} in all"
        _log.warning("feedback: %s: are queries and documents swapped?", got)
    rows = {text: row for row, text in enumerate(documents)}
    vectors = {query: vectors_from("embed_query", embed_query, query) for query in dict.fromkeys(queries)}
    if len(widths := sorted({len(vector) for vector in vectors.values()})) > 1:
        raise EmbedderError(f"embed_query: expected vectors of one width, got {', '.join(map(str, widths))}")
    return {
        "query_vectors": np.array([vectors[query] for query in queries]),
        "doc_vectors": vectors_from("embed_documents", embed_documents, documents),
        "candidates": [[rows[text] for text in of_query] for of_query in judged.values()],
        "rewards": [[float(np.mean(rewards)) for rewards in of_query.values()] for of_query in judged.values()],
        "tasks": tasks,
        "query_ids": queries,
        "sources": sources,
        "doc_ids": numbered([text[:_SHOWN] for text in documents]),
        "query_texts": queries,
        "doc_texts": documents,
    }


def _rows(feedback: Iterable[Sequence[Any] | Served]) -> Iterator[Sequence[Any]]:
    """*feedback* as rows (query, document, reward[, task[, source]])."""
    for row in feedback:
        if isinstance(row, Served):
            rewarded = (candidate for candidate in row.candidates if candidate.reward is not None)
            yield from ((row.query, shown.text, shown.reward, row.task, row.source) for shown in rewarded)
        else:
            yield row
