"""Rewards: the columns, the scale contract, and one clear error for each kind of bad input."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from tttembed_rag import InputError, Rewards, Scale, fit
from tttembed_rag.errors import RewardError, VectorError

N, K, U, D = 3, 4, 7, 5


def columns(**changes):
    """Good arguments of `from_arrays`, some of them changed."""
    rng = np.random.default_rng(0)
    good = {
        "query_vectors": rng.normal(size=(N, D)),
        "candidate_vectors": rng.normal(size=(N, K, D)),
        "rewards": rng.uniform(size=(N, K)),
    }
    return {**good, **changes}


def indexed(**changes):
    """Good arguments of `from_indexed`, some of them changed."""
    rng = np.random.default_rng(0)
    good = {
        "query_vectors": rng.normal(size=(N, D)),
        "doc_vectors": rng.normal(size=(U, D)),
        "candidates": [[0, 1, 2], [2, 3], [6]],
        "rewards": [[0.1, 0.2, 0.3], [0.4, 0.5], [0.6]],
    }
    return {**good, **changes}


def spoiled(array, value):
    array = np.array(array)
    array[1] = value
    return array


class TestBuilding:
    """What the two builders keep."""

    @pytest.mark.parametrize(
        ("form", "depths"),
        [(np.asarray, [K] * N), (np.ndarray.tolist, [K] * N), (list, [K] * N), (list, [2, K, 1])],
    )
    def test_from_arrays_keeps_every_candidate_in_order(self, form, depths):
        """Query q owns the k candidates and rewards of row q, of arrays, lists and lists of arrays of any depth."""
        arrays = columns()
        if depths != [K] * N:
            for name in ("candidate_vectors", "rewards"):
                arrays[name] = [row[:k] for row, k in zip(arrays[name], depths, strict=True)]
        rewards = Rewards.from_arrays(**{name: form(value) for name, value in arrays.items()})

        assert_array_equal(rewards.values, np.concatenate(arrays["rewards"]))
        assert_array_equal(rewards.doc_vectors[rewards.candidates], np.concatenate(arrays["candidate_vectors"]))
        assert_array_equal(rewards.depths, depths)

    def test_from_indexed_keeps_documents_once(self):
        """Without names the declared judge gave the rewards, queries share a task, and all are numbered."""
        index = indexed()
        rewards = Rewards.from_indexed(**index)

        assert (len(rewards), rewards.width, rewards.budget) == (N, D, 6)
        assert (rewards.candidates.tolist(), rewards.depths.tolist()) == ([0, 1, 2, 2, 3, 6], [3, 2, 1])
        assert rewards.doc_vectors is index["doc_vectors"]
        assert (rewards.tasks.tolist(), rewards.sources.tolist()) == (["default"] * N, [""] * N)
        assert rewards.query_ids.tolist() == ["0", "1", "2"]
        assert rewards.doc_ids[rewards.candidates].tolist() == ["0", "1", "2", "2", "3", "6"]

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_memory_map_is_not_copied(self, tmp_path, dtype):
        on_disk = np.memmap(tmp_path / "docs", dtype, "w+", shape=(U, D))
        on_disk[:] = indexed()["doc_vectors"]
        rewards = Rewards.from_indexed(**indexed(doc_vectors=on_disk))

        assert np.shares_memory(on_disk, rewards.doc_vectors)

    def test_take_keeps_the_queries_taken_and_their_documents(self):
        names = {"tasks": ["a", "b", "c"], "query_ids": ["x", "y", "z"], "sources": ["ann", "", "bob"]}
        rewards = Rewards.from_indexed(**indexed(), **names, doc_ids=[*"tuvwxyz"], judge=["rerank-1"] * N)
        part = rewards.take(np.array([2, 0]))

        assert (part.query_ids.tolist(), part.tasks.tolist(), part.judge) == (["z", "x"], ["c", "a"], "rerank-1")
        assert (part.sources.tolist(), part.doc_ids[part.candidates].tolist()) == (["bob", "ann"], ["z", "t", "u", "v"])
        assert (part.depths.tolist(), part.values.tolist()) == ([1, 3], [0.6, 0.1, 0.2, 0.3])
        assert_array_equal(part.doc_vectors[part.candidates], rewards.doc_vectors[[6, 0, 1, 2]])
        assert_array_equal(part.doc_norms, np.linalg.norm(rewards.doc_vectors[[0, 1, 2, 6]], axis=1))


class TestScale:
    """What a judge's numbers mean."""

    @pytest.mark.parametrize(
        ("text", "scores", "expected"),
        [
            ("probability", [0.0, 0.25, 1.0], [0.0, 0.25, 1.0]),
            ("logit", [0.0, np.log(3.0), -np.log(3.0)], [0.5, 0.75, 0.25]),
            ("rubric:0,5", [0.0, 2.0, 5.0], [0.0, 0.4, 1.0]),
            ("rubric:1,5", [1.0, 2.0, 5.0], [0.0, 0.25, 1.0]),
            ("rubric:-1,1", [-1.0, 0.0, 1.0], [0.0, 0.5, 1.0]),
            ("rubric:-1.5,2.5", [-1.5, 0.5, 2.5], [0.0, 0.5, 1.0]),
            ("rubric(0, 2.5)", [0.0, 1.0, 2.5], [0.0, 0.4, 1.0]),
            # A float32 probability a hair above one is one.
            ("probability", [1.0 + 5e-7, -5e-7], [1.0, 0.0]),
        ],
    )
    def test_maps_scores_to_rewards(self, text, scores, expected):
        """And is written as it is parsed."""
        scale = Scale.parse(text)

        assert_allclose(scale.to_unit(np.array(scores)), expected, atol=1e-12)
        assert Scale.parse(str(scale)) == scale

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(logits=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6))
    def test_a_logit_of_any_size_has_a_reward(self, logits):
        rewards = Scale("logit").to_unit(np.sort(logits))

        assert ((rewards >= 0) & (rewards <= 1)).all()
        assert (np.diff(rewards) >= 0).all()

    def test_reaches_the_rewards(self):
        """Both builders map scores by the declared scale, given as text or as a `Scale`."""
        grades = np.array([[0, 1, 4, 5]] * N)
        as_text = Rewards.from_arrays(**columns(rewards=grades), scale="rubric:0,5")
        as_object = Rewards.from_indexed(
            **indexed(candidates=[[0, 1, 2, 3]] * N, rewards=grades), scale=Scale("rubric", 0, 5)
        )
        expected = [0.0, 0.2, 0.8, 1.0] * N

        assert_allclose(as_text.values, expected)
        assert_allclose(as_object.values, expected)

    @pytest.mark.parametrize(
        ("scale", "scores", "doubted"),
        [
            ("rubric:0,3", [0, 1, 1, 0], False),
            ("rubric:-1,6", [-1, 0, 1], False),
            ("rubric:0,3", [0, 0, 0], False),
            ("rubric:0,3", [0, 0.5, 1.5], False),
            ("rubric:0,3", [0, 0.5, 1], True),
            ("rubric:0,3", [0.2, 0.9], True),
            ("probability", [0.2, 0.9], False),
        ],
    )
    def test_is_doubted_where_scores_look_like_probabilities(self, scale, scores, doubted):
        """None lies above 1 and one lies between 0 and 1: low grades alone are no reason."""
        declared = Scale.parse(scale)

        assert bool(declared.doubt(declared.to_unit(np.array(scores, dtype=np.float64)))) == doubted


class TestBadVectors:
    """Vectors nothing can be learned from."""

    def test_are_nobodys_business_where_nobody_judged(self):
        """A bad document that no query has among its candidates is not looked at."""
        documents = np.ones((3, 2), np.float32)
        documents[1] = np.nan

        assert Rewards.from_indexed(np.ones((1, 2)), documents, [[0, 2]], [[0.5, 0.1]]).budget == 2

    def test_do_not_make_every_fit_read_the_whole_index(self):
        """Of an index that is mostly unjudged only the judged documents are kept."""
        documents = np.arange(1.0, 21.0).reshape(10, 2)
        rewards = Rewards.from_indexed(np.ones((2, 2)), documents, [[7, 2], [7]], [[0.5, 0.1], [0.9]])

        assert documents[[2, 7]].tolist() == rewards.doc_vectors.tolist()
        assert rewards.candidates.tolist() == [1, 0, 1]


# What is refused, by its error: how the line begins or, with a $, reads, and the call.

INF, NAN = float("inf"), float("nan")
LARGE = np.ones((70_000, 2), np.float32)
LARGE[69_000] = NAN
WIDER = np.ones((N, D + 1))
BLOCKS = [np.ones((2, D)), np.empty((0, D)), np.ones((2, D))]
SCALES = "probability, logit, unbounded or rubric"
NOTHING = np.empty((0, D)), np.empty((0, K, D)), np.empty((0, K))
NONE_JUDGED = "rewards: expected at least one judged candidate per query, got none for query 1$"


def arrays(**changes):
    return partial(Rewards.from_arrays, **columns(**changes))


def index(**changes):
    return partial(Rewards.from_indexed, **indexed(**changes))


def reward(value, scale="probability"):
    """A call with that reward among others."""
    rewards = columns()["rewards"].tolist()
    rewards[1][2] = value
    return arrays(rewards=rewards, scale=scale)


REFUSED = {
    VectorError: [
        ("doc_vectors: expected .* got NaN in row 1$", index(doc_vectors=spoiled(indexed()["doc_vectors"], NAN))),
        # Counted over the whole matrix, wherever checking was split into blocks.
        ("doc_vectors: .* NaN in row 69000$", partial(Rewards.from_indexed, [[1, 1]], LARGE, [[69_000]], [[0.5]])),
        ("candidate_vectors: expected width 6 like query_vectors, got 5$", arrays(query_vectors=WIDER)),
        ("doc_vectors: expected width 6 like query_vectors, got 5$", index(query_vectors=WIDER)),
        (
            r"candidate_vectors: expected vectors of one width, got widths \[4, 5\]$",
            arrays(candidate_vectors=[np.ones((K, D)), np.ones((K, D - 1)), np.ones((K, D))]),
        ),
        *(
            (rf"{name}: expected a matrix \(rows, d\), got shape \(5,\)$", index(**{name: np.ones(D)}))
            for name in ("query_vectors", "doc_vectors")
        ),
        *(
            (f"{name}: expected finite, .* got {got} in row ", arrays(**{name: spoiled(columns()[name], value)}))
            for name in ("query_vectors", "candidate_vectors")
            for value, got in ((NAN, "NaN"), (INF, "infinity"), (0.0, "a zero vector"))
        ),
    ],
    RewardError: [
        ("rewards: expected at least one rewarded query, got none$", partial(Rewards.from_arrays, *NOTHING)),
        (NONE_JUDGED, arrays(candidate_vectors=BLOCKS, rewards=[[0.1, 0.2], [], [0.3, 0.4]])),
        # An empty array holds nothing of a wrong type.
        *(
            (NONE_JUDGED, index(candidates=[[0, 1], empty, [6]], rewards=[[0.1, 0.2], [], [0.6]]))
            for empty in ([], np.array([], int))
        ),
        # A missing reward is never imputed.
        (r"rewards: expected finite numbers, got NaN \(leave unjudged candidates out", reward(None)),
        ("rewards: expected finite numbers, got NaN", reward(NAN)),
        ("rewards: expected finite numbers, got infinity", reward(INF, "logit")),
        (r"rewards: expected scale probability in \[0, 1\], got values from .* to 1\.5 ", reward(1.5)),
        (r"rewards: expected scale probability in \[0, 1\], got values from -0\.1 to ", reward(-0.1)),
        (r"rewards: expected scale rubric:0,5 in \[0, 5\], got values from .* to 7 ", reward(7.0, "rubric:0,5")),
        ("rewards: .*calibrate them first", reward(3.0, "unbounded")),
        # Judges are not comparable; a list of them covers all queries.
        (r"judge: expected one judge for all 3 queries .*got \['a', 'b'\]$", arrays(judge=["a", "b", "a"])),
        (r"judge: expected one judge for all 3 queries .*got \['a'\]$", arrays(judge=["a"])),
    ],
    InputError: [
        *(
            (rf"candidate_vectors: expected shape \({k}, d\) for query 0, one vector per reward, got \({got}\)$", call)
            for k, got, call in (
                (4, "5,", arrays(candidate_vectors=np.ones((N, D)))),
                (3, "4, 5", arrays(rewards=np.full((N, K - 1), 0.5))),
            )
        ),
        (
            "candidate_vectors: expected one block per query, 3 in rewards, got 2$",
            arrays(candidate_vectors=np.ones((2, K, D))),
        ),
        ("rewards: expected one row of numbers per query, got float64 ", arrays(rewards=np.full(N, 0.5))),
        ("rewards: expected one row .*per query, got .*could not convert", arrays(rewards=[["a", "b"]] * N)),
        ("rewards: expected one row .*per query, got .*float", arrays(rewards=0.5)),
        ("rewards: expected one row .*per query, got .*str", arrays(rewards="0.5")),
        ("rewards: expected one row per query, 4 in query_vectors, got 3$", arrays(query_vectors=np.ones((4, D)))),
        *(
            (f"rewards: expected one reward per candidate, got {got}$", index(rewards=[[0.1, 0.2, 0.3], *rows]))
            for rows, got in (
                ([[0.4], [0.6]], "1 rewards for 2 candidates in query 1"),
                ([[0.4, 0.5]], "2 rows for 3 queries"),
            )
        ),
        # Negative rows do not count from the end.
        *(
            (f"candidates: expected {line}$", index(candidates=rows))
            for rows, line in (
                ([[0, 1, U], [2, 3], [6]], "rows 0 to 6 of doc_vectors, got 0 to 7"),
                ([[0, 1, -1], [2, 3], [6]], "rows 0 to 6 of doc_vectors, got -1 to 6"),
                ([[0, 1, 2], [3, 3], [6]], "each document once per query, got document 3 twice in query 1"),
            )
        ),
        *(
            (
                "candidates: expected integer rows of doc_vectors, got dtype ",
                index(candidates=[np.array(rows)] * N, rewards=[[0.1, 0.2, 0.3]] * N),
            )
            for rows in ([0.0, 1.0, 2.0], ["0", "1", "2"], [True, False, True])
        ),
        *(
            (f"{name}: expected non-empty strings, got {value!r} at row 1$", arrays(**{name: ["a", value, "c"]}))
            for name in ("tasks", "query_ids")
            for value in (5, None, "", b"b")
        ),
        *(
            (f"{name}: expected one per query, 3 in query_vectors, got {got}$", arrays(**{name: value}))
            for name in ("tasks", "query_ids", "sources")
            for value, got in ((["a", "b"], "2"), ("abc", "the string 'abc'"))
        ),
        (
            "query_ids: expected ids unique within a task, got 'x' twice in task 'a'$",
            arrays(tasks=["b", "a", "a"], query_ids=["x"] * 3),
        ),
        ("sources: expected strings, got None at row 1$", index(sources=["ann", None, "bob"])),
        ("doc_ids: expected one per document, 7 in doc_vectors, got 1$", index(doc_ids=["a"])),
        ("doc_ids: expected non-empty strings, got '' at row 0$", index(doc_ids=[""] * U)),
        *(
            (f"scale: expected {SCALES}:LOW,HIGH, got '{text}'$", arrays(scale=text))
            for text in ("stars", "rubric", "rubric:0", "rubric:a,b", "Probability", "")
        ),
        (f"scale: expected {SCALES}, got 'stars'$", partial(Scale, "stars")),
        # The best grade lies above the worst, and not without an end: all grades would be the same reward.
        *(
            (f"scale: expected low < high, got {low:g} and {high:g}$", partial(Scale, "rubric", low, high))
            for low, high in ((5, 0), (1, 1), (NAN, 1))
        ),
        *(
            (rf"scale: expected a finite range, got {got}", partial(Scale, "rubric", low, high))
            for low, high, got in ((0, INF, "0 and"), (-INF, 0, "-inf and"), (-1e308, 1e308, r"-1e\+308 and 1e\+308"))
        ),
    ],
}


@pytest.mark.parametrize(
    ("error", "line", "call"),
    [(error, *case) for error, cases in REFUSED.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_one_line(error, line, call):
    with pytest.raises(error, match=f"^{line}"):
        call()


def test_several_sources_may_reward_one_query():
    ids = ["q", "q", "r"]

    assert len(Rewards.from_indexed(**indexed(query_ids=ids, sources=["ann", "bob", "ann"]))) == 3
    with pytest.raises(InputError, match=r"got 'q' twice in task 'default' from source 'ann'$"):
        Rewards.from_indexed(**indexed(query_ids=ids, sources=["ann", "ann", "bob"]))


class TestBounded:
    """At most so many candidates of each query."""

    def test_keeps_the_best_and_the_nearest(self):
        """Half of them have the largest rewards, the others the largest similarity; shorter lists stay whole."""
        rng = np.random.default_rng(0)
        queries, documents, scores = rng.normal(size=(2, D)), rng.normal(size=(40, D)), rng.uniform(size=40)
        whole = Rewards.from_indexed(queries, documents, [np.arange(40), [3, 4]], [scores, [0.1, 0.9]])
        kept = whole.bounded(10)
        first = kept.candidates[:10]
        near = documents @ queries[0] / np.linalg.norm(documents, axis=1)
        best = np.argsort(-scores)[:5]
        rest = [row for row in np.argsort(-near).tolist() if row not in best][:5]

        assert sorted(first.tolist()) == sorted([*best.tolist(), *rest])
        assert kept.depths.tolist() == [10, 2]
        assert whole.bounded(40) is whole

    def test_a_deep_query_is_bounded_in_a_fit(self):
        rng = np.random.default_rng(0)
        queries, documents = rng.normal(size=(12, D)), rng.normal(size=(1000, D))
        rows = [np.arange(1000), *(rng.permutation(1000)[:8] for _ in range(11))]
        rewards = Rewards.from_indexed(queries, documents, rows, [rng.uniform(size=len(row)) for row in rows])
        deep, bounded = (fit(part, scope="global", gate=False)["global"] for part in (rewards, rewards.bounded(200)))

        assert_array_equal(deep.vector, bounded.vector)
