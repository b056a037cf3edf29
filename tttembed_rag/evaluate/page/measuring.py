"""The page of `tttembed eval`: what offsets do to searches that nobody judged, split by split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tttembed_rag.evaluate.collection import Collection, pooled_rewards
from tttembed_rag.evaluate.experiment import ExperimentPlan, drawn
from tttembed_rag.evaluate.measures import mean_interval
from tttembed_rag.evaluate.page import drawing
from tttembed_rag.evaluate.page.heldout import SHOWN, HeldOut, Lists, held_out_of, traffic_of
from tttembed_rag.evaluate.page.moving import lists_of
from tttembed_rag.evaluate.page.rendering import held_out_drawings, rendered
from tttembed_rag.evaluate.summary import Cells, mean_of
from tttembed_rag.gate.fit import fit
from tttembed_rag.offsets.evidence import without_alike
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit


def page_of_measured(workload: Sequence[Collection], plan: ExperimentPlan, cells: Cells, *, about: str) -> str:
    """The page: of each collection the held-out queries with most judged ones, and the course up to there.

    The plan has `auto` among what was measured. *about* says in words what the rewards and the labels are.
    """
    splits: list[list[tuple[Offsets, IntArray]]] = [[] for _ in workload]
    for seed in plan.seeds:
        judged, held = drawn(workload, plan, seed, max(plan.rewarded))
        rewards = pooled_rewards(workload, judged, plan.depth)
        offsets = fit(rewards, scope="auto", trusted=plan.trusted, recipe=plan.recipe)
        for of_collection, rows in zip(splits, held, strict=True):
            of_collection.append((offsets, rows))
    sections = []
    for collection, of_collection in sorted(zip(workload, splits, strict=True), key=lambda pair: pair[0].dataset.name):
        name, held_out = collection.dataset.name, _held_out(collection, of_collection, plan.depth)
        course = [mean_of(cell) for key, cell in cells.items() if (key[0], key[1], key[3]) == (name, "heldout", "auto")]
        marks = [(mean["delta"], mean["published"] > 0) for mean in course]
        ends = [f"{mean['rewarded_queries']:.0f} judged queries" for mean in (course[0], course[-1])]
        drawn_course = drawing.course("Change of nDCG@10 by judged queries", marks, *ends)
        facts = {"name": name, "held_out": held_out, "drawings": held_out_drawings(held_out)}
        sections.append(facts | {"course": course, "drawn": drawn_course})
    return rendered("tttembed_rag.evaluate.page/eval.html.jinja", sections=sections, about=about)


def _held_out(collection: Collection, splits: Sequence[tuple[Offsets, IntArray]], depth: int) -> HeldOut:
    """All splits together, a query once for each split that holds it out: the means are those of the table."""
    rows = np.concatenate([held for _, held in splits])
    before = collection.base[rows, :SHOWN]
    lists = []
    for offsets, held in splits:
        ids = collection.query_ids[held].tolist()
        moved = offsets.apply(collection.query_vectors[held], task=collection.dataset.name, query_id=ids)
        lists.append(collection.search(moved, held, SHOWN)[1])
    after = np.concatenate(lists)
    raw, served = collection.raw[rows], collection.graded(rows, after)
    ends = [mean_interval(part) for part in np.split(served - raw, np.cumsum([len(held) for _, held in splits])[:-1])]
    low, high = np.mean(ends, axis=0).tolist()
    places = [(offsets, row) for offsets, held in splits for row in held.tolist()]
    documents = unit(np.asarray(collection.doc_vectors, dtype=np.float64))
    alike = without_alike(int((~collection.measured).sum()))

    def shown(some: Sequence[int]) -> tuple[Lists, ...]:
        first = {places[place][1]: place for place in reversed(some)}  # a query once, as it lost or gained most
        return tuple(
            _lists(collection, documents, *places[place], before=float(raw[place]), after=float(served[place]))
            for place in some
            if first[places[place][1]] == place
        )

    return held_out_of(
        raw,
        served,
        collection.measure_reranked(np.unique(rows), depth)[rows],
        shown,
        measure="by the labels",
        method=f"{len(splits)} splits: what the gate publishes from the queries that are judged in a split serves "
        f"those that it holds out. A query counts once in each split that holds it out.{alike}",
        traffic=traffic_of(before, after, len(collection.doc_ids)),
        interval=(low, high),
    )


def _lists(
    collection: Collection, documents: FloatArray, offsets: Offsets, row: int, *, before: float, after: float
) -> Lists:
    dataset, query_id = collection.dataset, str(collection.query_ids[row])
    served = Served(query_id, collection.query_vectors[row], [], dataset.queries[query_id], dataset.name)
    query, offset = unit(np.asarray(served.vector, dtype=np.float64)), offsets.find(dataset.name, query_id)
    if (own := collection.own[row]) >= 0:
        documents = documents.copy()
        documents[own] = -query  # the last of all
    dosed, key = (np.zeros_like(query), "") if offset is None else (offset.dosed(query), offset.key)

    def candidate(place: int) -> Candidate:
        name = str(collection.doc_ids[place])
        return Candidate(name, None, dataset.documents[name], collection.rewards_of(query_id, [name]).get(name))

    grades = {name: grade for name, grade in dataset.qrels.get(query_id, {}).items() if grade > 0}
    return lists_of(
        served, dosed, key, vectors=documents, candidate=candidate, before=before, after=after, grades=grades
    )
