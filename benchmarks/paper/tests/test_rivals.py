"""Every rival against its formula written out, and what all of them must leave alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.paper import documentrivals, rivals
from benchmarks.paper.baselines import _searched
from benchmarks.paper.dart import dart
from benchmarks.paper.rivals import RIVALS
from benchmarks.paper.semanticcache import semantic_cache
from tttembed_rag import Rewards, Scale
from tttembed_rag.adapting import in_reward_order
from tttembed_rag.evaluate.collection import Collection, pooled_rewards, reordered
from tttembed_rag.evaluate.datasets import Dataset

DOCUMENTS, QUERIES, WIDTH = 60, 12, 8
JUDGED = np.array([7, 2, 9, 4, 0])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def collection() -> Collection:
    """Random vectors of any norm; the judge scored the first 3 to 8 documents of each query."""
    rng = np.random.default_rng(3)
    docs = (3 * rng.standard_normal((DOCUMENTS, WIDTH))).astype(np.float32)
    queries = (2 * rng.standard_normal((QUERIES, WIDTH))).astype(np.float32)
    first = np.argsort(-unit(queries) @ unit(docs).T, axis=1)
    scores = {f"q{q}": {f"d{d}": float(rng.uniform()) for d in first[q, : 3 + q % 6].tolist()} for q in range(QUERIES)}
    qrels = {f"q{q}": {f"d{first[q, 4]}": 1.0} for q in range(QUERIES)}
    names = {f"d{d}": "" for d in range(DOCUMENTS)}
    dataset = Dataset("tiny", names, {f"q{q}": "" for q in range(QUERIES)}, qrels)
    return Collection.of(dataset, docs, queries, embedder="random", judge="dice", scores=scores, scale=Scale())


@pytest.fixture(scope="module")
def rewards(collection: Collection) -> Rewards:
    """The rewards of the judged queries, of different depths."""
    return pooled_rewards([collection], [JUDGED], 10)


def judged(collection: Collection, query: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (k, d) of a query's judged documents, and their scores."""
    rows, scores = collection.candidates(query, 10)
    return unit(collection.doc_vectors[rows].astype(float)), scores


@pytest.mark.parametrize("name", RIVALS)
def test_nothing_is_changed_in_place(collection: Collection, rewards: Rewards, name: str) -> None:
    """A rival returns new vectors; the collection's stay what they were."""
    before = collection.query_vectors.copy()

    moved = RIVALS[name].move(collection, JUDGED, rewards)

    assert np.array_equal(before, collection.query_vectors)
    assert moved.shape == before.shape
    assert np.isfinite(moved).all()


@pytest.mark.parametrize("name", [name for name, entrant in RIVALS.items() if not entrant.everyone])
def test_queries_without_rewards_keep_their_vector(collection: Collection, rewards: Rewards, name: str) -> None:
    """A rival that is private to judged queries moves those, all of them, and no other."""
    moved = RIVALS[name].move(collection, JUDGED, rewards)

    assert set(JUDGED.tolist()) >= set(np.flatnonzero((moved != collection.query_vectors).any(axis=1)).tolist())


def test_average_prf_by_hand(collection: Collection, rewards: Rewards) -> None:
    """A query and its first three documents weigh a quarter each."""
    first = unit(collection.doc_vectors)[collection.base[5, :3]]
    expected = (unit(collection.query_vectors[5]) + first.sum(axis=0)) / 4

    assert expected == pytest.approx(rivals.average_prf(collection, JUDGED, rewards)[5], abs=1e-6)


def test_rocchio_prf_by_hand(collection: Collection, rewards: Rewards) -> None:
    """The query weighs .4, its first five documents .6 together."""
    first = unit(collection.doc_vectors)[collection.base[5, :5]]
    expected = 0.4 * unit(collection.query_vectors[5]) + 0.6 * first.mean(axis=0)

    assert expected == pytest.approx(rivals.rocchio_prf(collection, JUDGED, rewards)[5], abs=1e-6)


@pytest.mark.parametrize("query", JUDGED.tolist())
def test_judged_rocchio_by_hand(collection: Collection, rewards: Rewards, query: int) -> None:
    """The documents are the judge's five best, or all where fewer were judged."""
    documents, scores = judged(collection, query)
    best = documents[np.argsort(-scores)[:5]]
    expected = 0.4 * unit(collection.query_vectors[query]) + 0.6 * best.mean(axis=0)

    assert expected == pytest.approx(rivals.judged_rocchio(collection, JUDGED, rewards)[query], abs=1e-6)


def test_folded_feedback_ranks_like_qdrants_formula(collection: Collection, rewards: Rewards) -> None:
    """One search with the folded query orders the collection as the formula over pairs of examples does."""
    power, weight = 2.0, 0.3
    everything = unit(collection.doc_vectors.astype(float))

    moved = rivals.feedback_query(collection, JUDGED, rewards, weights=(weight,), powers=(power,))

    for query in JUDGED.tolist():
        documents, scores = judged(collection, query)
        best = np.argsort(-scores)[:5]
        formula = everything @ unit(collection.query_vectors[query].astype(float))
        for p in best:
            for n in best:
                if scores[p] > scores[n]:
                    pair = everything @ documents[p] - everything @ documents[n]
                    formula += weight * (scores[p] - scores[n]) ** power * pair
        assert formula == pytest.approx(everything @ moved[query].astype(float), abs=1e-5)


def test_feedback_weights_include_none(collection: Collection, rewards: Rewards) -> None:
    """Where no weight helps the judged order, the raw search is kept: a constant judge moves nothing."""
    same = Rewards.from_indexed(
        rewards.query_vectors,
        rewards.doc_vectors,
        np.split(rewards.candidates, rewards.starts[1:-1]),
        [np.full(depth, 0.5) for depth in rewards.depths],
    )

    moved = rivals.feedback_query(collection, JUDGED, same)

    assert unit(collection.query_vectors[JUDGED]) == pytest.approx(moved[JUDGED], abs=1e-6)


@pytest.mark.parametrize(("name", "rate", "scaled"), [("refit", 0.005, True), ("refined", 1e-4, False)])
def test_private_recipes_follow_their_authors_steps(
    collection: Collection, rewards: Rewards, name: str, rate: float, scaled: bool
) -> None:
    """100 steps of autograd and PyTorch's Adam, a query at a time, end at the same vector."""
    torch = pytest.importorskip("torch")
    moved = getattr(rivals, name)(collection, JUDGED, rewards)

    for query in JUDGED.tolist():
        documents, scores = (torch.from_numpy(part) for part in judged(collection, query))
        vector = torch.from_numpy(unit(collection.query_vectors[query].astype(float))).requires_grad_()
        optimizer = torch.optim.Adam([vector], lr=rate)
        if scaled:
            scores = (scores - scores.min()) / (scores.max() - scores.min() + 1e-8) / 2.0
        teacher = scores.softmax(-1)
        for _ in range(100):
            similar = torch.nn.functional.cosine_similarity(documents, vector[None])
            if scaled:
                similar = (similar - similar.min()) / (similar.max() - similar.min() + 1e-8)
            loss = (teacher * (teacher.log() - similar.log_softmax(-1))).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert vector.detach().numpy() == pytest.approx(moved[query].astype(float), abs=1e-5)


def test_mean_difference_by_hand(collection: Collection, rewards: Rewards) -> None:
    """Every query gets the same vector: the mean over judged queries of better minus worse than their mean reward."""
    sides = []
    for query in JUDGED.tolist():
        documents, scores = judged(collection, query)
        sides.append(documents[scores > scores.mean()].mean(axis=0) - documents[scores <= scores.mean()].mean(axis=0))
    expected = unit(collection.query_vectors) + np.mean(sides, axis=0)

    assert expected == pytest.approx(rivals.mean_difference(collection, JUDGED, rewards), abs=1e-5)


def test_the_adapter_is_at_its_optimum(collection: Collection, rewards: Rewards) -> None:
    """The objective, written out, is flat around the adapter and lower than at the identity."""
    ridge = 0.05
    found = rivals.adapter(rewards, ridge=ridge, iterations=1000)

    def objective(matrix: np.ndarray) -> float:
        total = ridge * ((matrix - np.eye(WIDTH)) ** 2).sum()
        for query in JUDGED.tolist():
            documents, scores = judged(collection, query)
            teacher = np.exp(scores / 0.02 - (scores / 0.02).max())
            teacher /= teacher.sum()
            logits = documents @ unit(matrix @ unit(collection.query_vectors[query].astype(float))) / 0.05
            log_student = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            kept = teacher > 1e-300
            total += (teacher[kept] * (np.log(teacher[kept]) - log_student[kept])).sum() / len(JUDGED)
        return float(total)

    rng = np.random.default_rng(0)
    slopes = [
        (objective(found + 1e-5 * step) - objective(found - 1e-5 * step)) / 2e-5
        for step in rng.standard_normal((5, WIDTH, WIDTH))
    ]

    assert objective(found) < 0.8 * objective(np.eye(WIDTH))
    assert slopes == pytest.approx(np.zeros(5), abs=1e-3)


@pytest.mark.parametrize("query", JUDGED.tolist())
def test_the_least_change_puts_the_relevant_first(collection: Collection, query: int) -> None:
    """A target is the vector nearest to the query under the margins, as a general solver finds it."""
    optimize = pytest.importorskip("scipy.optimize")
    documents, scores = judged(collection, query)
    x = unit(collection.query_vectors[query].astype(float))
    relevant, irrelevant = documents[scores > scores.mean()], documents[scores <= scores.mean()]
    apart = (relevant[:, None] - 1.05 * irrelevant[None]).reshape(-1, WIDTH)
    margins = {"type": "ineq", "fun": lambda t: apart @ t, "jac": lambda _: apart}
    expected = optimize.minimize(
        lambda t: ((t - x) ** 2).sum(), x, jac=lambda t: 2 * (t - x), constraints=margins, options={"ftol": 1e-14}
    ).x

    target = rivals.least_change(x, relevant, irrelevant, 0.05)

    assert expected == pytest.approx(target, abs=1e-5)
    assert (apart @ target).min() > -1e-9


def test_the_least_change_adapter_is_a_rotation_toward_the_targets(collection: Collection, rewards: Rewards) -> None:
    """Angles between queries stay as they are, and judged queries come nearer to their targets on the mean."""
    x = unit(collection.query_vectors.astype(float))
    targets = []
    for query in JUDGED.tolist():
        documents, scores = judged(collection, query)
        better = scores > scores.mean()
        targets.append(unit(rivals.least_change(x[query], documents[better], documents[~better], 0.05)))

    moved = rivals.least_change_adapter(collection, JUDGED, rewards).astype(float)

    assert x @ x.T == pytest.approx(moved @ moved.T, abs=1e-5)
    assert np.vecdot(moved[JUDGED], targets).mean() > np.vecdot(x[JUDGED], targets).mean() + 0.01


def test_nothing_relevant_turns_nothing(collection: Collection, rewards: Rewards) -> None:
    """Queries whose candidates are all as good are left out; where none is left the queries stay."""
    same = replace(rewards, values=np.full(rewards.budget, 0.5))

    moved = rivals.least_change_adapter(collection, JUDGED, same)

    assert np.array_equal(moved, collection.query_vectors)


@pytest.mark.parametrize("method", ["NUDGEM", "NUDGEN"])
def test_nudge_moves_the_judges_best_documents(method: str) -> None:
    """Documents that the judge likes rise for queries like the judged ones; the collection stays as it was."""
    pytest.importorskip("nudge")
    rng = np.random.default_rng(2)
    docs = unit(rng.standard_normal((DOCUMENTS, WIDTH))).astype(np.float32)
    queries = (docs[0] + 0.9 * docs[1] + 0.01 * rng.standard_normal((QUERIES, WIDTH))).astype(np.float32)
    liked = {f"q{q}": {f"d{d}": float(d == 1) for d in range(DOCUMENTS)} for q in range(QUERIES)}
    qrels = {query: {"d1": 1.0} for query in liked}
    dataset = Dataset("alike", {f"d{d}": "" for d in range(DOCUMENTS)}, dict.fromkeys(liked, ""), qrels)
    alike = Collection.of(dataset, docs, queries, embedder="random", judge="likes", scores=liked, scale=Scale())
    before, rows = docs.copy(), np.arange(QUERIES - 2)

    rewards = pooled_rewards([alike], [rows], 10)
    found = _searched(partial(documentrivals.nudge, method=method), alike, rows, rewards)

    assert np.array_equal(before, alike.doc_vectors)
    assert found.mean() > alike.raw.mean() + 0.2


def test_best_documents_are_those_of_the_highest_reward(collection: Collection, rewards: Rewards) -> None:
    """The best candidate of each query; all of them where they tie, none where no reward is above zero."""
    scores = {q: dict(given) for q, given in collection.scores.items()}
    scores["q2"] = dict.fromkeys(scores["q2"], 0.0)
    scores["q9"] = dict.fromkeys(scores["q9"], 0.5)
    other = replace(collection, scores=scores)
    expected = [[int(max(scores[f"q{q}"], key=scores[f"q{q}"].get)[1:])] for q in JUDGED.tolist()]
    expected[1], expected[2] = [], sorted(int(d[1:]) for d in scores["q9"])

    found = documentrivals.best_documents(other, JUDGED, pooled_rewards([other], [JUDGED], 10))

    assert expected == [sorted(rows) for rows in found]


def test_oats_by_hand(collection: Collection) -> None:
    """Three times .7 document + .3 mean of what it served - .1 mean of where it came first and failed; others stay."""
    alpha, beta = 0.3, 0.1
    queries = unit(collection.query_vectors.astype(float))
    succeeded: dict[int, list[int]] = {}
    failed: dict[int, list[int]] = {}
    everyone = np.arange(QUERIES)
    for q in range(QUERIES):
        rows, scores = collection.candidates(q, 10)
        best, first = int(rows[np.argmax(scores)]), int(collection.base[q, 0])
        succeeded.setdefault(best, []).append(q)
        if first in rows and first != best:
            failed.setdefault(first, []).append(q)
    expected = unit(collection.doc_vectors.astype(float))
    for document, mine in succeeded.items():
        vector = expected[document]
        for _ in range(3):
            vector = (1 - alpha) * vector + alpha * queries[mine].mean(axis=0)
            vector = unit(vector - beta * (queries[failed[document]].mean(axis=0) if document in failed else 0))
        expected[document] = vector

    rewards = pooled_rewards([collection], [everyone], 10)
    found = documentrivals.oats(collection, everyone, rewards)
    waiting = documentrivals.oats(collection, everyone, rewards, least=QUERIES + 1)

    assert any(document in failed for document in succeeded)
    assert expected == pytest.approx(found, abs=1e-6)
    assert unit(collection.doc_vectors.astype(float)) == pytest.approx(waiting, abs=1e-6)


def test_moved_documents_are_searched_by_dot_product(collection: Collection, rewards: Rewards) -> None:
    """A document rival is measured on every query by what it would index, longer vectors and all."""
    longer = unit(collection.doc_vectors.astype(float))
    relevant = {int(next(iter(docs))[1:]) for docs in collection.dataset.qrels.values()}
    longer[sorted(relevant)] *= 100.0

    found = _searched(lambda *_: longer, collection, JUDGED, rewards)

    lists = np.argsort(-unit(collection.query_vectors.astype(float)) @ longer.T, axis=1)[:, :10]
    assert collection.graded(np.arange(QUERIES), lists) == pytest.approx(found)
    assert found.mean() > collection.raw.mean()


def test_dart_follows_the_gradient_of_its_loss(collection: Collection, rewards: Rewards) -> None:
    """The first query's vector is that of autograd on the margin loss over a bilinear matrix, from the identity."""
    torch = pytest.importorskip("torch")
    settings = {"labelled": 4, "temperature": 0.5, "margin": 1.8, "hardness": 0.2, "rate": 0.05, "ema": 0.3}
    x = torch.from_numpy(unit(collection.query_vectors[0].astype(float)))
    ranked = collection.base[0, :100]
    documents = torch.from_numpy(unit(collection.doc_vectors[ranked].astype(float)))
    positive, negative = documents[:4], documents[-4:]
    weights = torch.outer((positive @ x / 0.5).softmax(0), (-(negative @ x) / 0.5).softmax(0))
    wanted = 1.8 + 0.2 * (1 - documents[0] @ x)
    matrix = torch.eye(WIDTH, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([matrix], lr=0.05, momentum=0.9)
    for _ in range(5):
        gap = (positive @ (matrix.T @ x))[:, None] - (negative @ (matrix.T @ x))[None]
        loss = (weights * (wanted - gap).clamp(min=0)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    average = 0.3 * torch.eye(WIDTH, dtype=torch.float64) + 0.7 * matrix.detach()

    found = dart(collection, JUDGED, rewards, **settings)

    assert (average.T @ x).numpy() == pytest.approx(found[0], abs=1e-8)
    assert not np.allclose(found[0], unit(collection.query_vectors[0].astype(float)), atol=1e-3)


@pytest.mark.parametrize("carrying", [{"meta": 0.1, "ema": 0.0}, {"meta": 0.0, "ema": 0.5}], ids=["start", "average"])
def test_dart_carries_over_from_query_to_query(
    collection: Collection, rewards: Rewards, carrying: dict[str, float]
) -> None:
    """Later queries start from what earlier ones adapted; without that each would be moved as if it were the first."""
    wide = {"margin": 2.0, "temperature": 0.5, "rate": 0.05}
    carried, fresh = (
        dart(collection, JUDGED, rewards, **wide, **each) for each in (carrying, {"meta": 0.0, "ema": 0.0})
    )

    assert not np.allclose(carried[1:], fresh[1:], atol=1e-4)


def test_a_rival_that_reorders_keeps_to_the_first_hundred(collection: Collection, rewards: Rewards) -> None:
    """It is measured by the order of the listed documents alone: none enters from below."""
    few = replace(collection, base=collection.base[:, :3])

    found = RIVALS["DART"].measure(few, JUDGED, rewards)

    outside = [q for q in range(QUERIES) if int(next(iter(few.dataset.qrels[f"q{q}"]))[1:]) not in few.base[q]]
    assert outside
    assert set(found[outside].tolist()) == {0.0}


def test_a_near_query_is_answered_from_the_cache(collection: Collection, rewards: Rewards) -> None:
    """A judged query hits itself, a near one gets the nearest judged one's list, a far one its own."""
    near = unit(collection.query_vectors) @ unit(collection.query_vectors)[JUDGED].T
    least = float(np.sort(near.max(axis=1))[2])  # of the other queries some are far

    measured = semantic_cache(collection, JUDGED, rewards, reach=least)

    asked = collection.measure_reranked(JUDGED, 10)
    for query, row in enumerate(near):
        owner = JUDGED[row.argmax()]
        shown = reordered(collection.base[owner], *collection.candidates(owner, 10), in_reward_order)
        hit = collection.graded(np.array([query]), shown[None])[0]
        assert measured[query] == (hit if row.max() >= least else collection.raw[query])
    assert np.array_equal(measured[JUDGED], asked[JUDGED])
    assert np.flatnonzero(near.max(axis=1) < least).size == 2
