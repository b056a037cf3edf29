"""Near repeats: judged queries come back with typos, behind another prefix, or cut in half.

A private offset serves the very text that was judged; a local one also serves what lies near it. The rewards are those
of the original query, because an edit does not change what its user wants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.paper.cells import Columns
from benchmarks.paper.design import INTERVALS, LEAST, RERANK, Design, Study, StudyOptions, by_set, dots
from benchmarks.paper.estimates import Estimate, task_means, task_shares
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Judged, Workload
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit
from tttembed_rag.vectors.rows import Float64

# Rewarded queries per task.
BREADTHS = (64, 200)
# One letter in so many is mistyped.
_LETTERS_PER_TYPO = 12
_PREFIXES = ("Please help me with this: ", "Hi, I have a question. ", "I would like to know: ", "Quick question, ")
# Least mean cosine between stored and embedded queries: below it they are of different models.
_SAME_MODEL = 0.98
_COMPARED = 16

EXACT, RECOGNISED, LOCAL, SERVED = "private, exact text", "private, recognised", "local", "auto"
METHODS = (EXACT, RECOGNISED, LOCAL, SERVED, RERANK)
NOTES = (
    f"{EXACT}: a private offset serves its own text to the letter. {RECOGNISED}: as if edits of it were recognised.",
    f"{LOCAL}: ungated, by where the query lies alone. {SERVED}: what the gate publishes.",
    "Share: of the gain of direct rerank of the same queries, which asks the judge again. raw: nDCG@10 x 100.",
)


def typos(text: str) -> str:
    """The text with every twelfth letter or so, at least one, swapped with the next, dropped, or doubled."""
    draw = _draw("typos", text)
    inside = [i for i in range(len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
    count = min(len(inside), max(1, len(inside) // _LETTERS_PER_TYPO))
    for i in sorted(draw.choice(inside, count, replace=False).tolist(), reverse=True) if count else []:
        pair = (text[i + 1] + text[i], text[i], text[i] + text[i] + text[i + 1])[int(draw.integers(3))]
        text = text[:i] + pair + text[i + 2 :]
    return text


def prefixed(text: str) -> str:
    """The text behind some words of courtesy."""
    return _PREFIXES[int(_draw("prefix", text).integers(len(_PREFIXES)))] + text


def halved(text: str) -> str:
    """The first half of the words."""
    words = text.split()
    return " ".join(words[: (len(words) + 1) // 2])


EDITS: Mapping[str, Callable[[str], str]] = {
    "the same text": str,
    "typos": typos,
    "another prefix": prefixed,
    "half of the text": halved,
}


def repeats_study(workload: Workload, options: StudyOptions, embedder: Embedder) -> Study:
    """Judged queries of *workload* again, as they were and edited; *embedder* is the model of its vectors.

    Raises:
        DataError: It gives other vectors than those that are stored.
    """
    _check_same_model(workload, embedder)
    design = Design.of(workload, options)
    breadths = options.breadths or BREADTHS
    known: dict[str, FloatArray] = {}

    def measure(judged: Judged) -> Columns:
        rewards = workload.rewards(judged, options.depth)
        private, local, auto = (options.fit(rewards, scope) for scope in ("query", "local", "auto"))
        columns: dict[str, Float64] = {}
        for name, edit in EDITS.items():
            parts = []
            for collection, rows in workload.each(judged):
                texts, exact = _edited(collection, rows, edit)
                repeated = _repeated(collection, rows, _vectors(embedder, known, collection, rows, texts, exact))
                ids = collection.query_ids[rows].tolist()
                same = [one if unchanged else None for one, unchanged in zip(ids, exact, strict=True)]
                parts.append(
                    {
                        "raw": repeated.raw,
                        EXACT: _served(repeated, rows, private, same),
                        RECOGNISED: _served(repeated, rows, private, ids),
                        LOCAL: _served(repeated, rows, local, [None] * len(ids)),
                        SERVED: _served(repeated, rows, auto, same),
                        RERANK: repeated.measure_reranked(rows, options.depth),
                    }
                )
            judged_ones = workload.mask(judged)
            for method in ("raw", *METHODS):
                values = np.concatenate([part[method] for part in parts])
                columns[f"{name}: {method}"] = np.where(judged_ones, values, np.nan)
        return columns

    cells = [
        design.drawn("repeats", measure, queries=workload.per_task(n), seed=seed, embedder=embedder.fingerprint)
        for n in breadths
        for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> StudyReport:
        seeds = len(options.seeds)
        tables, last = [], {}
        for number, n in enumerate(breadths):
            of_breadth = results[number * seeds : (number + 1) * seeds]
            last = {name: _gains(of_breadth, name) for name in EDITS}
            rows = tuple((name, *_row(of_breadth, name, last[name], workload.tasks)) for name in EDITS)
            tables.append(
                Table(
                    f"Judged queries again, {n} per set, depth {options.depth}; {design.source}",
                    ("query", "raw", *METHODS, "local, share in %", "auto, share in %"),
                    rows,
                    (*NOTES, INTERVALS) if number == 0 else (),
                )
            )
        tables += [
            Table(f"By set: {name}", ("set", *METHODS), tuple(by_set(workload, gained)))
            for name, gained in last.items()
        ]
        means: list[tuple[Entry, ...]] = [(name, *task_means(gained, workload.tasks)) for name, gained in last.items()]
        return StudyReport(tuple(tables), dots(METHODS, means), "")

    return Study(tuple(cells), report)


def _gains(results: Sequence[Columns], edit: str) -> Float64:
    """Changes (methods, S, N) of nDCG@10 x 100 over the raw search with the edited text."""
    return np.array(
        [[100.0 * (one[f"{edit}: {method}"] - one[f"{edit}: raw"]) for one in results] for method in METHODS]
    )


def _row(results: Sequence[Columns], edit: str, gained: Float64, tasks: IntArray) -> list[Entry]:
    raw = np.array([[100.0 * one[f"{edit}: raw"] for one in results]])
    shares = task_shares(
        gained[[METHODS.index(LOCAL), METHODS.index(SERVED)]], gained[METHODS.index(RERANK)], tasks, least=LEAST
    )
    plain = [Estimate(one.mean, np.nan, np.nan) for one in task_means(raw, tasks)]
    return [*plain, *task_means(gained, tasks), *(share.times(100.0) for share in shares)]


def _edited(collection: Collection, rows: IntArray, edit: Callable[[str], str]) -> tuple[list[str], list[bool]]:
    """The edited texts of the queries *rows*, and whether each is what it was."""
    texts = list(collection.dataset.queries.values())
    edited = [edit(texts[row]) for row in rows.tolist()]
    return edited, [new == texts[row] for new, row in zip(edited, rows.tolist(), strict=True)]


def _vectors(
    embedder: Embedder,
    known: dict[str, FloatArray],
    collection: Collection,
    rows: IntArray,
    texts: Sequence[str],
    exact: Sequence[bool],
) -> FloatArray:
    """Vectors (m, d) of the *texts* of the queries *rows*: stored where the text is what it was, else embedded once."""
    vectors = collection.query_vectors[rows].copy()
    changed = [i for i, same in enumerate(exact) if not same]
    if new := list(dict.fromkeys(texts[i] for i in changed if texts[i] not in known)):
        known.update(zip(new, embedder.embed_queries(new), strict=True))
    for i in changed:
        vectors[i] = known[texts[i]]
    return vectors


def _repeated(collection: Collection, rows: IntArray, vectors: FloatArray) -> Collection:
    """The *collection* with other *vectors* (m, d) of the queries *rows*, and what was said of those queries."""
    queries, base, raw = collection.query_vectors.copy(), collection.base.copy(), collection.raw.copy()
    if rows.size:
        queries[rows] = vectors
        base[rows] = collection.index.search(queries[rows], base.shape[1])[1]
        raw[rows] = collection.graded(rows, base[rows])
    return replace(collection, query_vectors=queries, base=base, raw=raw)


def _served(collection: Collection, rows: IntArray, offsets: Offsets, ids: Sequence[str | None]) -> Float64:
    """nDCG@10 (M,) where the queries *rows* are served by *offsets*, which know them by *ids*."""
    moved = collection.query_vectors.copy()
    moved[rows] = offsets.apply(moved[rows], task=collection.dataset.name, query_id=ids)  # type: ignore[arg-type]
    return collection.measure(moved, rows)


def _check_same_model(workload: Workload, embedder: Embedder) -> None:
    """Refuse an embedder that gives the queries other vectors than those that are stored."""
    for collection in workload.collections:
        texts = list(collection.dataset.queries.values())[:_COMPARED]
        found, stored = embedder.embed_queries(texts), collection.query_vectors[: len(texts)]
        if found.shape != stored.shape:
            raise DataError(
                f"{collection.dataset.name}: expected an embedder of the width of the stored vectors, "
                f"{stored.shape[1]}, got {found.shape[1]} from {embedder.fingerprint}"
            )
        if (alike := float(np.vecdot(unit(found), unit(stored)).mean())) < _SAME_MODEL:
            raise DataError(
                f"{collection.dataset.name}: expected the embedder of the stored vectors, got one whose vectors of the "
                f"same queries have a mean cosine of {alike:.2f} with them, {embedder.fingerprint}"
            )


def _draw(kind: str, text: str) -> np.random.Generator:
    """Numbers that depend on the text alone."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{kind}\0{text}".encode()).digest()[:8]))
