"""A specialised encoder has lost general ability; offsets win it back without touching its weights.

Where no fine-tuned encoder's vectors are stored, a linear map of the query vectors stands in for one: learned
from the labels of half of one set's queries, it gains on the other half and loses elsewhere, as fine-tuning does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.paper.cells import Columns
from benchmarks.paper.design import ALL, INTERVALS, Design, Study, StudyOptions, by_set, dots, gains
from benchmarks.paper.estimates import Estimate, task_means
from benchmarks.paper.rivals import adapter
from benchmarks.paper.tables import StudyReport, Table
from benchmarks.paper.workload import Workload
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection, pooled_rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit

# Ridge and iterations of the map: so weak and so many that it overfits its one set, as fine-tuning does.
RIDGE = 1e-7
ITERATIONS = 300


def recovery_study(
    workload: Workload, options: StudyOptions, specialty: str, specialised: Workload | None = None
) -> Study:
    """The loss of an encoder that was specialised on *specialty*, and the share that full coverage wins back elsewhere.

    Args:
        workload: The sets as the base encoder sees them.
        options: How to run it.
        specialty: The set specialised on.
        specialised: The same sets as a truly fine-tuned encoder sees them; None learns a linear stand-in.
    """
    if specialty not in workload.names or len(workload.names) < 2:
        raise DataError(f"specialty: expected one of several sets {', '.join(workload.names)}, got {specialty!r}")
    standing_in = specialised is None
    home = workload.names.index(specialty)
    kept = np.arange(len(workload.collections[home].raw))
    if specialised is None:
        learned_from, kept = _halves(workload.collections[home])
        specialised = _mapped(workload, home, learned_from, options.depth)
    others = [name for name in workload.names if name != specialty]
    elsewhere, base = specialised.only(others), workload.only(others)
    everyone = elsewhere.per_task(len(elsewhere))
    design = Design.of(elsewhere, options)
    at_home = [100 * w.collections[home].raw[kept] for w in (workload, specialised)]

    def report(results: Sequence[Columns]) -> StudyReport:
        how = "a linear map of query vectors stands in for fine-tuning" if standing_in else "a fine-tuned encoder"
        away = [task_means(100 * part.raw[None, None], part.tasks)[0] for part in (base, elsewhere)]
        home_means = [task_means(raw[None, None], np.zeros(len(raw), dtype=np.intp))[0] for raw in at_home]
        trade = Table(
            f"(a) Specialisation on {specialty}: raw nDCG@10 x 100; {how}",
            ("encoder", specialty, "mean of the other sets"),
            (("base", home_means[0], away[0]), ("specialised", home_means[1], away[1])),
            (f"{specialty}: {len(kept)} queries whose labels the map did not learn from.",) if standing_in else (),
        )
        values = gains(elsewhere, results, ALL)
        total = task_means(values, elsewhere.tasks)
        lost = away[0].mean - away[1].mean
        rows = tuple(
            (name, Estimate(away[1].mean + gain.mean, np.nan, np.nan), gain, _share(gain.mean, lost))
            for name, gain in zip(ALL, total, strict=True)
        )
        won = Table(
            f"(b) Won back on the other sets, all queries rewarded at depth {options.depth}; {design.source}",
            ("state", "mean", "gain", "of the loss"),
            rows,
            (INTERVALS, f"Lost by specialising: {lost:.2f}."),
        )
        per_set = Table("Gain by set", ("set", *ALL), tuple(by_set(elsewhere, values)))
        return StudyReport((trade, won, per_set), dots(ALL, per_set.rows), "")

    return Study((design.point(queries=everyone, depth=options.depth, seed=0),), report)


def _share(gain: float, lost: float) -> str:
    return f"{gain / lost:.0%}" if lost > 0 else "nothing lost"


def _halves(collection: Collection) -> tuple[IntArray, IntArray]:
    """Query rows to learn from, and the others."""
    order = np.random.default_rng(0).permutation(len(collection.raw))
    return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])


def _mapped(workload: Workload, home: int, rows: IntArray, depth: int) -> Workload:
    """The workload under a map learned from labels of *rows* of the set at *home*."""
    c = workload.collections[home]
    labels = Collection.of(c.dataset, c.doc_vectors, c.query_vectors, embedder=c.embedder)
    matrix = adapter(pooled_rewards([labels], [rows], depth), ridge=RIDGE, iterations=ITERATIONS)

    def moved(queries: FloatArray) -> FloatArray:
        return (unit(queries) @ matrix.T).astype(queries.dtype)

    return workload.with_queries(moved, f"{c.embedder}, specialised on {c.dataset.name}")
