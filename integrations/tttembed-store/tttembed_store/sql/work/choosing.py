"""Which of the queries that wait for a judge it is asked about first: see `tttembed_rag.judging.covering`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from tttembed_rag.judging.covering import MOST_COMPARED, covering
from tttembed_rag.vectors.checks import unit
from tttembed_store.sql import schema
from tttembed_store.sql.database import keyed_digest
from tttembed_store.sql.rows import in_parts


def most_telling(
    connection: Connection, salt: bytes, tenant: int | None, judge: int, rows: Sequence[Any], count: int
) -> Sequence[Any]:
    """The *count* of *rows* of queries of which verdicts say most, beside what *judge* said of the newest others.

    Queries without a vector of the embedding model that most of them have come last, as they stand.
    """
    if len(rows) <= count:
        return rows
    q, own, progress = schema.queries, schema.query_vectors, schema.progress
    model = Counter(row.embedder for row in rows).most_common(1)[0][0]
    stored = select(q.c.id, q.c.task, own.c.vector).join(own, (own.c.query == q.c.id) & (own.c.embedder == model))
    vectors = {
        row.id: row.vector
        for numbers in in_parts([row.id for row in rows])
        for row in connection.execute(stored.where(q.c.id.in_(numbers)))
    }
    known = [row for row in rows if row.id in vectors]
    if not known:
        return rows[:count]
    of_judge = (progress.c.tenant == tenant) & (progress.c.judge == judge) & (progress.c.rewards > 0)
    newest = stored.join(progress, progress.c.query == q.c.id).where(of_judge, q.c.id.not_in([row.id for row in known]))
    judged = connection.execute(
        newest.order_by(progress.c.at.desc(), progress.c.query.desc()).limit(MOST_COMPARED)
    ).all()
    blobs = [*(vectors[row.id] for row in known), *(row.vector for row in judged)]
    chosen = covering(
        unit(np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1)),
        [row.task for row in (*known, *judged)],
        [row.seen for row in known] + [1] * len(judged),
        [keyed_digest(salt, str(row.id).encode()) for row in known] + [b""] * len(judged),
        count,
        judged=np.arange(len(blobs)) >= len(known),
    )
    return [*(known[row] for row in chosen), *(row for row in rows if row.id not in vectors)][:count]
