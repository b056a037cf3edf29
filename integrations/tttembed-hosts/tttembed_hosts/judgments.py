"""Judgments for search teams: rewards as TREC qrels, as ratings of Quepid, and for OpenSearch's Search Relevance.

Each is read again by ``feedback:FILE?scale=rubric:0,3``. Qrels name a query by its id; Quepid and OpenSearch by its
text, where that is known.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from tttembed_rag.errors import InputError, check_count
from tttembed_rag.system.files import write_whole

__all__ = ["write_judgments"]


def write_judgments(
    path: Path,
    rewards: Mapping[tuple[str, str], float],
    *,
    texts: Mapping[str, str] | None = None,
    grades: int = 3,
    name: str = "tttembed",
) -> None:
    """Write *rewards* to *path*, whole or not at all: OpenSearch for ``.json``, Quepid for ``.csv``, else TREC qrels.

    Args:
        path: The file.
        rewards: In [0, 1], by (query id, document id).
        texts: Text of a query by its id.
        grades: The highest grade; a reward of 1. Grades are whole numbers in Quepid and qrels, and not rounded for
            OpenSearch.
        name: What the list is called in OpenSearch.

    Raises:
        InputError: *grades* is below 1, or an id has white space, which qrels cannot hold.
    """
    check_count("grades", grades)
    graded = {pair: reward * grades for pair, reward in rewards.items()}
    if (suffix := path.suffix.lower()) not in (".json", ".csv"):
        write_whole(path, _qrels(graded).encode())
        return
    known = texts or {}
    by_text = {(known.get(query, query), document): grade for (query, document), grade in graded.items()}
    write_whole(path, (_quepid(by_text) if suffix == ".csv" else _opensearch(by_text, name)).encode())


def _qrels(graded: Mapping[tuple[str, str], float]) -> str:
    for pair in graded:
        for key in pair:
            if not key or key.split() != [key]:
                raise InputError(f"qrels: expected ids without white space, got {key!r}; write .csv or .json")
    return "".join(f"{query} 0 {document} {round(grade)}\n" for (query, document), grade in graded.items())


def _quepid(graded: Mapping[tuple[str, str], float]) -> str:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["query", "docid", "rating"])
    rows.writerows([query, document, round(grade)] for (query, document), grade in graded.items())
    return out.getvalue()


def _opensearch(graded: Mapping[tuple[str, str], float], name: str) -> str:
    by_query: dict[str, list[dict[str, str]]] = {}
    for (query, document), grade in graded.items():
        by_query.setdefault(query, []).append({"docId": document, "rating": f"{grade:.3f}"})
    lists = [{"query": query, "ratings": rows} for query, rows in by_query.items()]
    return json.dumps({"name": name, "type": "IMPORT_JUDGMENT", "judgmentRatings": lists}, indent=1) + "\n"
