"""Rewards of texts: rows of feedback, and the columns that rewards are built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import EmbedderError, InputError, RewardError
from tttembed_rag.vectors.asked import vectors_from

# Characters of a document's text that name it in messages.
_SHOWN = 80


def columns_of(
    feedback: Iterable[Sequence[Any]],
    default_task: str,
    embed_query: Callable[[str], ArrayLike],
    embed_documents: Callable[[list[str]], ArrayLike | Sequence[ArrayLike]],
) -> dict[str, Any]:
    """The arguments of `Rewards.from_indexed` for rows (query, document, reward[, task[, source]])."""
    judged = _by_query(feedback, default_task)
    texts = list(dict.fromkeys(text for documents in judged.values() for text in documents))
    rows = {text: row for row, text in enumerate(texts)}
    asked = dict.fromkeys(query for _, query, _ in judged)
    vectors = {query: vectors_from("embed_query", embed_query, query) for query in asked}
    if len(widths := sorted({len(vector) for vector in vectors.values()})) > 1:
        raise EmbedderError(f"embed_query: expected vectors of one width, got {', '.join(map(str, widths))}")
    return {
        "query_vectors": np.array([vectors[query] for _, query, _ in judged]),
        "doc_vectors": vectors_from("embed_documents", embed_documents, texts),
        "candidates": [[rows[text] for text in documents] for documents in judged.values()],
        "rewards": [[float(np.mean(given)) for given in documents.values()] for documents in judged.values()],
        "tasks": [task for task, _, _ in judged],
        "query_ids": [query for _, query, _ in judged],
        "sources": [source for _, _, source in judged],
        "doc_ids": [id_of_text(text) for text in texts],
        "query_texts": [query for _, query, _ in judged],
        "doc_texts": texts,
    }


def id_of_text(text: str) -> str:
    """The id of a document that is known by its text alone: how the text begins."""
    return text[:_SHOWN]


def _by_query(
    feedback: Iterable[Sequence[Any]], default_task: str
) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """The rewards of each document, by (task, query, source)."""
    judged: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    form = "(query, document, reward[, task[, source]])"
    for number, row in enumerate(feedback):
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
        judged.setdefault((task or default_task, query, source), {}).setdefault(document, []).append(value)
    if not judged:
        raise RewardError("feedback: expected at least one row, got none")
    return judged
