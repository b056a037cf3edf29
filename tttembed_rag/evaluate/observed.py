"""Served queries to judge: from a BEIR folder with stored vectors, or from a log."""

from __future__ import annotations

from pathlib import Path

from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.evaluate.index import FaissIndex
from tttembed_rag.rewards.observations import Observation, read_log


def observe(source: Path, *, vectors: str, depth: int) -> list[Observation]:
    """The queries of *source* with their first *depth* candidates in base order.

    It is a BEIR folder with stored *vectors*, its name being the task, or a log of JSON lines.
    """
    if not source.is_dir():
        return read_log(source)
    dataset = load_beir(source, labels=False)
    docs, queries = load_vectors(source, vectors, dataset)
    base = FaissIndex.from_vectors(docs).search(queries, depth)[1]
    documents = list(dataset.documents.items())
    return [
        Observation(query, text, [documents[row] for row in rows], dataset.name)
        for (query, text), rows in zip(dataset.queries.items(), base.tolist(), strict=True)
    ]
