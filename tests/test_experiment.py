"""What `tttembed eval` measures, on a collection whose queries all lean the same wrong way.

Each query is the vector of its one relevant document, plus noise, plus one direction that all
queries share. Documents differ along that direction, so the base order is good but improvable, and
one offset against it repairs every query at once.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tttembed_rag import Scale, TTTEmbedError, fit
from tttembed_rag.adapting import in_reward_order
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection, open_collection, pooled_rewards, reordered, split
from tttembed_rag.evaluate.experiment import ExperimentPlan, Row, run
from tttembed_rag.evaluate.files import load_beir, load_scores, write_beir, write_scores, write_vectors
from tttembed_rag.judging.plan import water_fill
from tttembed_rag.offsets.orders import in_fused_order

DOCUMENTS, QUERIES, WIDTH, SCORED = 240, 120, 24, 60


def write_planted(folder: Path, *, seed: int = 0, lean: float = 1.0, width: int = WIDTH) -> Path:
    """A BEIR folder with vectors `tiny` and two judges: `oracle` knows the answers, `noise` nothing.

    Both scored two of three of each query's first 60 documents, and its relevant one.
    """
    rng = np.random.default_rng(seed)
    docs = rng.standard_normal((DOCUMENTS, width)) * np.r_[1.5, np.ones(width - 1)]
    docs /= np.linalg.norm(docs, axis=1, keepdims=True)
    relevant = rng.permutation(DOCUMENTS)[:QUERIES]
    noise = rng.standard_normal((QUERIES, width))
    queries = docs[relevant] + 0.5 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    queries[:, 0] += lean

    first = np.argsort(-queries @ docs.T, axis=1)[:, :SCORED]
    scores: dict[str, dict[str, dict[str, float]]] = {"oracle": {}, "noise": {}}
    for q in range(QUERIES):
        for d in sorted({*first[q][rng.random(SCORED) < 2 / 3].tolist(), int(relevant[q])}):
            knows = 0.9 + 0.1 * rng.random() if d == relevant[q] else 0.2 * rng.random()
            scores["oracle"].setdefault(f"q{q}", {})[f"d{d}"] = round(knows, 4)
            scores["noise"].setdefault(f"q{q}", {})[f"d{d}"] = round(rng.random(), 4)
    corpus = [(f"d{d}", f"Document {d}", "") for d in range(DOCUMENTS)]
    qrels = {f"q{q}": {f"d{d}": 1.0} for q, d in enumerate(relevant)}
    write_beir(folder, corpus, {f"q{q}": f"Query {q}" for q in range(QUERIES)}, qrels)
    for judge, of_judge in scores.items():
        write_scores(folder / "scores" / f"{judge}.tsv", of_judge)
    write_vectors(folder, "tiny", load_beir(folder), docs, queries, fingerprint="tiny")
    return folder


def opened(folder: Path, rewards: str = "oracle", scale: Scale | None = None) -> Collection:
    """The collection in a planted folder under one of its judges."""
    return open_collection(folder, vectors="tiny", rewards=rewards, scale=scale or Scale())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_planted(tmp_path_factory.mktemp("beir") / "planted")


@pytest.fixture(scope="module")
def collection(folder: Path) -> Collection:
    """The planted collection under the judge that knows the answers."""
    return opened(folder)


PLAN = ExperimentPlan(rewarded=(20, 50), depth=10, seeds=(0, 1), holdout=0.3)


@pytest.fixture(scope="module")
def rows(collection: Collection) -> list[Row]:
    return list(run([collection], PLAN))


def some(rows: list[Row], **wanted: object) -> list[Row]:
    """The rows with these values, at least one."""
    matching = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    assert matching, f"no row with {wanted}"
    return matching


def timeless(rows: list[Row]) -> list[Row]:
    """The rows without what differs between two runs."""
    return [row | {"seconds": 0.0} for row in rows]


def by_hand(collection: Collection, query_vectors: np.ndarray) -> np.ndarray:
    """nDCG@10 (M,) of a brute-force search, one relevant document per query."""
    scores = query_vectors @ collection.doc_vectors.T / np.linalg.norm(collection.doc_vectors, axis=1)
    measured = []
    for row, grades in zip(scores, collection.dataset.qrels.values(), strict=True):
        best = collection.doc_ids[np.argsort(-row)[:10]].tolist()
        (relevant,) = grades
        measured.append(1 / np.log2(best.index(relevant) + 2) if relevant in best else 0.0)
    return np.array(measured)


# Rows


def test_rows_are_json(rows: list[Row]) -> None:
    """A row says why its offset is served, or why not."""
    assert rows == json.loads(json.dumps(rows, allow_nan=False))
    assert all(row["reason"] for row in rows)


def test_there_is_one_row_per_cell(rows: list[Row]) -> None:
    """Each seed, budget, outcome and population is measured once; auto always has its gate."""
    outcomes = {("raw", False), ("rerank", False), ("auto", True)}
    outcomes |= {(scope, gated) for scope in ("global", "task", "local", "query") for gated in (True, False)}
    expected = sorted(
        (seed, rewarded, *outcome, population)
        for seed in (0, 1)
        for rewarded in (20, 50)
        for outcome in outcomes
        for population in ("heldout", "rewarded", "all")
    )

    assert expected == sorted((r["seed"], r["rewarded"], r["scope"], r["gated"], r["population"]) for r in rows)


def test_rows_say_what_was_measured(rows: list[Row]) -> None:
    """A row names its data set, vectors, judge, depth and how the offset was learned: raw and rerank by nothing."""
    row, baselines = some(rows, scope="task")[0], some(rows, scope="raw") + some(rows, scope="rerank")
    learned = {(r["objective"], r["solver"], r["gated"], r["published"]) for r in baselines}

    assert (row["dataset"], row["embedder"], row["rewards"], row["depth"]) == ("planted", "tiny", "oracle", 10)
    assert (row["objective"], row["solver"]) == ("kd", "exact")
    assert learned == {(None, None, False, False)}


def test_counts_of_queries(rows: list[Row]) -> None:
    """Held-out rows cover 0.3 of the queries, rewarded rows the asked number to full depth, all rows everything."""
    expected = {("heldout", 20, 36), ("heldout", 50, 36), ("rewarded", 20, 20), ("rewarded", 50, 50)}
    expected |= {("all", 20, QUERIES), ("all", 50, QUERIES)}

    assert expected == {(row["population"], row["rewarded"], row["queries"]) for row in rows}
    assert {(row["rewarded"], row["budget"]) for row in rows} == {(20, 200), (50, 500)}


def test_same_seed_same_rows(folder: Path, rows: list[Row]) -> None:
    """A second run from the files gives the same rows, apart from the seconds."""
    again = list(run([opened(folder)], replace(PLAN, seeds=(1,), rewarded=(20,))))

    assert timeless(some(rows, seed=1, rewarded=20)) == timeless(again)


def test_another_seed_is_another_split(collection: Collection) -> None:
    """Seeds hold out different queries."""
    first, second = split(collection, 0, 0.3)[1], split(collection, 1, 0.3)[1]

    assert set(first.tolist()) != set(second.tolist())


def test_an_interval_holds_its_mean(rows: list[Row]) -> None:
    """Every change lies in its interval, and some intervals have a width."""
    assert all(row["ci_low"] <= row["delta"] <= row["ci_high"] for row in rows)
    assert any(row["ci_low"] < row["ci_high"] for row in rows)


def test_published_is_the_verdict(rows: list[Row]) -> None:
    """A gated shared offset counts as published exactly if its evidence says so."""
    gated = some(rows, scope="task", gated=True)

    assert [row["reason"].startswith("task published") for row in gated] == [row["published"] for row in gated]


# Populations


def test_pool_and_held_out_queries_are_disjoint(collection: Collection) -> None:
    """A split shares every query out, each to one side."""
    pool, held = split(collection, 0, 0.3)

    assert sorted([*pool.tolist(), *held.tolist()]) == list(range(QUERIES))


def test_rewarded_queries_are_drawn_from_the_pool(collection: Collection, rows: list[Row]) -> None:
    """The rewarded population is what water-filling draws from the pool of that seed."""
    pool, held = split(collection, 1, 0.3)
    drawn = pool[water_fill([len(pool)], 20)[0]]
    expected = collection.raw[drawn].mean()

    row = some(rows, seed=1, rewarded=20, population="rewarded")[0]

    assert expected == row["raw_ndcg10"]
    assert not set(drawn.tolist()) & set(held.tolist())


def test_scores_of_held_out_queries_change_nothing(collection: Collection) -> None:
    """Held-out queries are never rewarded: other scores for them give the same rows."""
    _, held = split(collection, 0, 0.3)
    secret = set(collection.query_ids[held].tolist())
    scores = {q: dict.fromkeys(docs, 0.5) if q in secret else docs for q, docs in collection.scores.items()}
    other = replace(collection, scores=scores)
    plan = ExperimentPlan(rewarded=(50,), seeds=(0,), scopes=("global", "auto"), baselines=("raw",))

    before, after = (
        [row | {"rerank_delta": 0.0, "share": None} for row in timeless(list(run([each], plan)))]
        for each in (collection, other)
    )

    assert before == after


# Measures


def test_raw_is_a_brute_force_search(collection: Collection, rows: list[Row]) -> None:
    """Raw nDCG@10 of all queries is that of ranking every document by cosine similarity."""
    expected = by_hand(collection, collection.query_vectors).mean()

    assert expected == pytest.approx(some(rows, scope="raw", population="all")[0]["ndcg10"], abs=1e-6)


def test_raw_rows_change_nothing(rows: list[Row]) -> None:
    """Without an offset the change is exactly 0, its interval too, and nobody is harmed."""
    raw = some(rows, scope="raw")

    assert {(r["delta"], r["ci_low"], r["ci_high"], r["harmed_fraction"]) for r in raw} == {(0.0, 0.0, 0.0, 0.0)}


def test_a_shared_offset_is_measured_by_a_new_search(collection: Collection, rows: list[Row]) -> None:
    """The rows of an offset are nDCG@10, change and harm of a brute-force search with the shifted queries."""
    pool, held = split(collection, 0, 0.3)
    drawn = pool[water_fill([len(pool)], 50)[0]]
    offsets = fit(pooled_rewards([collection], [drawn], 10), scope="task", gate=False)
    after = by_hand(collection, offsets.apply(collection.query_vectors, task="planted"))[held]
    before = by_hand(collection, collection.query_vectors)[held]

    (row,) = some(rows, seed=0, rewarded=50, scope="task", gated=False, population="heldout")

    assert after.mean() == pytest.approx(row["ndcg10"], abs=1e-6)
    assert (after - before).mean() == pytest.approx(row["delta"], abs=1e-6)
    assert (after < before).mean() == row["harmed_fraction"]


def test_the_share_is_of_what_reranking_those_queries_would_gain(collection: Collection, rows: list[Row]) -> None:
    """A share of a population is its change over that of direct rerank, as if each of its queries were judged."""
    _, held = split(collection, 0, 0.3)
    reranked = (collection.measure_reranked(held, 10) - collection.raw)[held].mean()

    for row in some(rows, seed=0, population="heldout"):
        assert reranked == pytest.approx(row["rerank_delta"])
        assert row["delta"] / reranked == pytest.approx(row["share"])
    for row in some(rows, scope="rerank"):  # it is what all others are shares of, for held-out queries too
        assert row["delta"] == pytest.approx(row["rerank_delta"])
        assert row["share"] == pytest.approx(1.0)


def test_there_is_no_share_of_next_to_nothing(collection: Collection) -> None:
    """Where direct rerank gains nothing, or less than what counts, a share of it would be a ratio of noise."""
    plan = ExperimentPlan(rewarded=(20,), seeds=(0,), scopes=("task",), baselines=(), gates=(False,))
    constant = {q: dict.fromkeys(docs, 0.5) for q, docs in collection.scores.items()}
    # The judge knows the answer of one held-out query alone: direct rerank gains a little.
    held = split(collection, 0, plan.holdout)[1]
    known = str(collection.query_ids[next(q for q in held if 0 < collection.raw[q] < 0.9)])
    for scores in (constant, {**constant, known: collection.scores[known]}):
        rows = list(run([replace(collection, scores=scores)], plan))
        (whole,) = {row["rerank_delta"] for row in rows if row["population"] == "all"}

        assert (whole > 0) == (scores is not constant)
        assert whole < 0.005
        assert {row["share"] for row in rows if row["population"] == "all"} == {None}


def test_private_offsets_change_rewarded_queries_alone(rows: list[Row]) -> None:
    """Query scope lifts rewarded queries and leaves held-out ones exactly as they were."""
    for row in some(rows, scope="query", gated=False, population="rewarded"):
        same = {"scope": "query", "gated": False, "seed": row["seed"], "rewarded": row["rewarded"]}
        (held,) = some(rows, population="heldout", **same)
        (everyone,) = some(rows, population="all", **same)

        assert held["delta"] == 0.0
        assert row["delta"] > 0.0
        assert everyone["delta"] * QUERIES == pytest.approx(row["delta"] * row["queries"])


def test_planted_gain_is_found(rows: list[Row]) -> None:
    """With 50 rewarded queries the gate publishes, and queries nobody judged gain surely."""
    heldout = some(rows, scope="task", gated=True, rewarded=50, population="heldout")
    heldout += some(rows, scope="auto", rewarded=50, population="heldout")

    assert all(row["published"] and row["ci_low"] > 0.0 for row in heldout)


def test_abstaining_changes_nothing(folder: Path) -> None:
    """Where a judge knows nothing the gate abstains, on all of 12 splits but one at most; then everybody keeps raw."""
    plan = ExperimentPlan(rewarded=(50,), seeds=tuple(range(12)), gates=(True,), baselines=())

    rows = list(run([opened(folder, "noise")], plan))

    assert len({row["seed"] for row in rows if row["published"]}) <= 1
    assert {(row["delta"], row["harmed_fraction"]) for row in rows if not row["published"]} == {(0.0, 0.0)}


# Candidates


@pytest.mark.parametrize("depths", [(1, 30), (10, 1)], ids=["deeper", "less deep"])
def test_unscored_candidates_are_skipped(collection: Collection, depths: tuple[int, int]) -> None:
    """Candidates are the first scored documents in base order, after another depth too; scores are the file's."""
    fresh = replace(collection)
    for (q, (query, scores)), depth in product(enumerate(collection.scores.items()), depths):
        ranked = np.argsort(-collection.query_vectors[q] @ collection.doc_vectors.T)
        expected = [row for row in ranked.tolist() if f"d{row}" in scores][:depth]

        rows, values = fresh.candidates(q, depth)

        assert query == collection.query_ids[q]
        assert expected == rows.tolist()
        assert [scores[f"d{row}"] for row in expected] == values.tolist()


def test_scored_documents_are_found_however_deep(collection: Collection) -> None:
    """A query whose scored documents are the last ones of the corpus is rewarded on those."""
    ranked = np.argsort(-collection.query_vectors[0] @ collection.doc_vectors.T)
    expected = ranked[-3:].tolist()
    scores = {"q0": {f"d{row}": 0.5 for row in expected}}
    deep = replace(collection, scores=scores)

    assert expected == deep.candidates(0, 10)[0].tolist()


def test_queries_without_a_scored_document_are_never_rewarded(collection: Collection) -> None:
    """The pool has no query that could not be rewarded; held-out queries stay the same."""
    scores = {q: docs if int(q[1:]) % 2 else {} for q, docs in collection.scores.items()}
    sparse = replace(collection, scores=scores)

    pool, held = split(sparse, 0, 0.3)

    assert {int(q) % 2 for q in pool} == {1}
    assert held.tolist() == split(collection, 0, 0.3)[1].tolist()


def test_queries_that_cannot_be_measured_are_left_out(collection: Collection) -> None:
    """Their lists are neither better nor worse, whatever moves: no mean holds them, and a row counts them."""
    alike = {name for name in collection.dataset.qrels if int(name[1:]) % 3 == 0}
    blank = replace(collection.graded, ideal=np.where([name in alike for name in collection.query_ids.tolist()], 0, 1))
    some = replace(collection, graded=blank)
    members = {int(row) for row in split(some, 0, 0.3)[1]}

    row = next(iter(run([some], ExperimentPlan(rewarded=(8,), seeds=(0,), scopes=(), baselines=("rerank",)))))

    assert members == {int(row) for row in split(collection, 0, 0.3)[1]} - {int(name[1:]) for name in alike}
    assert (row["population"], row["queries"], row["left_out"]) == ("heldout", len(members), len(alike))


def test_most_queries_must_be_measured(collection: Collection) -> None:
    """What a few queries say would look like an answer: one line says how many they are."""
    few = np.arange(len(collection.raw)) < 3
    blank = replace(collection, graded=replace(collection.graded, ideal=few.astype(float)))

    with pytest.raises(DataError, match=r"^planted: expected rewards that differ in at least half .* got 3 of \d+; no"):
        next(iter(run([blank], ExperimentPlan())))


def test_nothing_to_reward_is_an_error(collection: Collection) -> None:
    """A judge that scored no document of the corpus is an error that names the data set."""
    scores = {q: {"elsewhere": 0.5} for q in collection.scores}
    blind = replace(collection, scores=scores)

    with pytest.raises(DataError, match=r"^planted: expected judged queries outside the held-out ones, got none$"):
        split(blind, 0, 0.3)


def test_the_budget_counts_pairs(collection: Collection) -> None:
    """A row's budget is the number of scored pairs, fewer than queries times depth where scores run out."""
    scores = {q: dict(list(docs.items())[: 1 + int(q[1:]) % 4]) for q, docs in collection.scores.items()}
    sparse = replace(collection, scores=scores)
    pool, _ = split(sparse, 0, 0.3)
    drawn = pool[water_fill([len(pool)], 20)[0]].tolist()
    expected = sum(min(3, 1 + q % 4) for q in drawn)

    budgets = {row["budget"] for row in run([sparse], ExperimentPlan(rewarded=(20,), depth=3, seeds=(0,), scopes=()))}

    assert {expected} == budgets
    assert expected < 60


# Judges and scales


def test_unlabelled_pairs_score_zero_in_a_simulation(folder: Path) -> None:
    """The simulated judge rewards the first documents in base order, 1 for the relevant and 0 for others."""
    simulated = opened(folder, "qrels")

    rows, values = simulated.candidates(0, 10)

    relevant = next(iter(simulated.dataset.qrels["q0"]))
    assert simulated.base[0, :10].tolist() == rows.tolist()
    assert [float(f"d{row}" == relevant) for row in rows] == values.tolist()


def test_graded_labels_fill_the_scale(folder: Path) -> None:
    """A simulated judge's scale reaches from 0 to the highest grade."""
    dataset = load_beir(folder)
    graded = replace(dataset, qrels={**dataset.qrels, "q0": {"d1": 4.0}})
    vectors = np.random.default_rng(0).standard_normal((DOCUMENTS, 4))

    simulated = Collection.of(graded, vectors, vectors[:QUERIES], embedder="random")

    assert Scale("rubric", 0.0, 4.0) == simulated.scale


def test_a_rubric_is_a_probability_stretched(folder: Path, collection: Collection) -> None:
    """Scores times ten on the scale rubric:0,10 give the rows of the scores themselves."""
    scores = {q: {d: 10 * s for d, s in docs.items()} for q, docs in load_scores(folder, "oracle").items()}
    graded = replace(collection, scores=scores, scale=Scale("rubric", 0, 10))
    plan = ExperimentPlan(rewarded=(20,), seeds=(0,), scopes=("task",))
    expected = [(row["population"], row["gated"], round(row["delta"], 9)) for row in run([collection], plan)]

    assert expected == [(row["population"], row["gated"], round(row["delta"], 9)) for row in run([graded], plan)]


# Several folders


@pytest.fixture(scope="module")
def workload(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> list[Collection]:
    """Two collections whose queries lean in opposite directions."""
    return [collection, opened(write_planted(tmp_path_factory.mktemp("beir") / "mirrored", seed=1, lean=-1.0))]


def test_folders_are_tasks_of_one_pool(workload: list[Collection]) -> None:
    """The rewards of several folders are pooled, each under its name as task."""
    rewards = pooled_rewards(workload, [np.array([4, 2]), np.array([7])], 5)

    assert rewards.tasks.tolist() == ["planted", "planted", "mirrored"]
    assert rewards.query_ids.tolist() == ["q4", "q2", "q7"]
    assert rewards.depths.tolist() == [5, 5, 5]


def test_pooled_candidates_keep_their_vectors_and_scores(workload: list[Collection]) -> None:
    judged = [np.array([4, 2]), np.array([7])]
    rewards = pooled_rewards(workload, judged, 5)

    flat = [(each, q) for each, mine in zip(workload, judged, strict=True) for q in mine.tolist()]
    for i, (each, q) in enumerate(flat):
        documents, scores = each.candidates(q, 5)
        mine = slice(rewards.starts[i], rewards.starts[i + 1])
        np.testing.assert_array_equal(each.query_vectors[q], rewards.query_vectors[i])
        np.testing.assert_array_equal(each.doc_vectors[documents], rewards.doc_vectors[rewards.candidates[mine]])
        np.testing.assert_allclose(scores, rewards.values[mine])


def test_the_global_offset_is_pooled(workload: list[Collection]) -> None:
    """Of two opposite tasks a global offset helps less than each task's own."""
    plan = ExperimentPlan(rewarded=(50,), seeds=(0,), scopes=("global", "task"), gates=(False,), baselines=())

    rows = some(list(run(workload, plan)), population="heldout")

    gains = {(row["dataset"], row["scope"]): row["delta"] for row in rows}
    assert set(gains) == {(name, scope) for name in ("planted", "mirrored") for scope in ("global", "task")}
    assert all(gains[name, "global"] < gains[name, "task"] for name in ("planted", "mirrored"))


def test_budgets_are_per_task(workload: list[Collection]) -> None:
    """Every folder gets the asked number of rewarded queries."""
    plan = ExperimentPlan(rewarded=(20,), seeds=(0,), scopes=(), baselines=("raw",))

    counts = {(row["dataset"], row["rewarded_queries"]) for row in run(workload, plan)}

    assert counts == {("planted", 20), ("mirrored", 20)}


def test_folders_of_different_widths_are_refused(collection: Collection, tmp_path: Path) -> None:
    """Vectors of two embedding models cannot share an offset, so they are an error of ours."""
    wide = opened(write_planted(tmp_path / "wide", width=WIDTH + 1))

    with pytest.raises(TTTEmbedError, match="24"):
        list(run([collection, wide], PLAN))


# Direct rerank


def test_rerank_sorts_rewarded_documents_within_their_slots() -> None:
    ranked = np.array([10, 11, 12, 13, 14])

    reranked = reordered(ranked, np.array([10, 12, 14]), np.array([0.1, 0.5, 0.9]), in_reward_order)

    assert reranked.tolist() == [14, 11, 12, 13, 10]


def test_only_rewarded_documents_of_the_list_take_part() -> None:
    """One that is not in the list enters nowhere, and a rank in fusing is one among those that are."""
    beyond = np.array([3, 9, 2, 8]), np.array([0.5, 0.9, 0.1, 0.8])

    assert reordered(np.array([4, 5]), np.array([5, 9]), np.array([0.2, 1.0]), in_reward_order).tolist() == [4, 5]
    assert reordered(np.array([1, 2, 3]), *beyond, in_fused_order).tolist() == [1, 2, 3]


# Fusing


def test_fused_rows_change_rewarded_queries_alone(collection: Collection) -> None:
    """Rewarded queries that an offset moves get its search fused with their rewards; the others keep raw."""
    plan = replace(PLAN, rewarded=(50,), seeds=(0,), scopes=(), baselines=("fused",))
    pool, _ = split(collection, 0, plan.holdout)
    mine = pool[water_fill([len(pool)], 50)[0]]
    ids = collection.query_ids[mine].tolist()
    moved = fit(pooled_rewards([collection], [mine], 10)).apply(
        collection.query_vectors[mine], task="planted", query_id=ids
    )
    gained = []
    for q, vector in zip(mine.tolist(), moved, strict=True):
        ranked = collection.index.search(vector[None], 100)[1][0]
        best = collection.doc_ids[reordered(ranked, *collection.candidates(q, 10), in_fused_order)][:10].tolist()
        (relevant,) = collection.dataset.qrels[collection.query_ids[q]]
        gained.append(1 / np.log2(best.index(relevant) + 2) if relevant in best else 0.0)

    rows = list(run([collection], plan))

    (rewarded,), (held,) = some(rows, population="rewarded"), some(rows, population="heldout")
    assert (rewarded["scope"], rewarded["gated"], rewarded["published"]) == ("fused", True, True)
    assert np.mean(gained) == pytest.approx(rewarded["ndcg10"])
    assert (held["delta"], rewarded["delta"] > 0) == (0.0, True)


def test_fused_rows_leave_a_worthless_judge_alone(folder: Path) -> None:
    """Where no private offset is served, rewards reorder nothing."""
    plan = replace(PLAN, rewarded=(50,), seeds=(0,), scopes=(), baselines=("fused",))
    rows = list(run([opened(folder, "noise")], plan))

    assert {(0.0, False)} == {(row["delta"], row["published"]) for row in rows}
