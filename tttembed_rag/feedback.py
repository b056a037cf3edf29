"""Rewards of texts: rows of feedback, and the columns that rewards are built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError, RewardError


def columns_of(
    feedback: Iterable[Sequence[Any]],
    default_task: str,
    embed_query: Callable[[str], ArrayLike],
    embed_documents: Callable[[list[str]], ArrayLike | Sequence[ArrayLike]],
) -> dict[str, Any]:
    """The arguments of `Rewards.from_indexed` for rows (query, document, reward[, task])."""
    judged = _by_query(feedback, default_task)
    texts = list(dict.fromkeys(text for documents in judged.values() for text in documents))
    rows = {text: row for row, text in enumerate(texts)}
    vectors = {query: embed_query(query) for query in dict.fromkeys(query for _, query in judged)}
    return {
        "query_vectors": np.array([vectors[query] for _, query in judged]),
        "doc_vectors": np.asarray(embed_documents(texts)),
        "candidates": [[rows[text] for text in documents] for documents in judged.values()],
        "rewards": [[float(np.mean(given)) for given in documents.values()] for documents in judged.values()],
        "tasks": [task for task, _ in judged],
        "query_ids": [query for _, query in judged],
    }


def _by_query(feedback: Iterable[Sequence[Any]], default_task: str) -> dict[tuple[str, str], dict[str, list[float]]]:
    """The rewards of each document, by (task, query)."""
    judged: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number, row in enumerate(feedback):
        if isinstance(row, str) or not hasattr(row, "__len__") or len(row) not in (3, 4):
            raise InputError(f"feedback: expected (query, document, reward[, task]), got {row!r:.80} at row {number}")
        query, document, reward, task = (*row, default_task)[:4]
        if not all(isinstance(text, str) and text.strip() for text in (query, document, task)):
            raise InputError(f"feedback: expected texts as query, document and task, got {row!r:.80} at row {number}")
        try:
            value = float(reward)
        except (TypeError, ValueError) as exc:
            raise InputError(f"feedback: expected a number as reward, got {reward!r:.80} at row {number}") from exc
        judged.setdefault((task, query), {}).setdefault(document, []).append(value)
    if not judged:
        raise RewardError("feedback: expected at least one row, got none")
    return judged
