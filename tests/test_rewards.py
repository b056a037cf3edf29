"""Rewards: the columns, the scale contract, and one clear error for each kind of bad input."""

import re

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
    """The array with *value* in its second row."""
    array = np.array(array)
    array[1] = value
    return array


class TestBuilding:
    """What the two builders keep."""

    def test_from_arrays_keeps_every_candidate_in_order(self):
        """Query q owns the k candidates and rewards of row q."""
        given_columns = columns()
        rewards = Rewards.from_arrays(**given_columns)

        assert_array_equal(rewards.values, given_columns["rewards"].ravel())
        assert_array_equal(rewards.doc_vectors[rewards.candidates], given_columns["candidate_vectors"].reshape(-1, D))
        assert_array_equal(rewards.starts, [0, 4, 8, 12])

    def test_depths_may_differ(self):
        """Lists of blocks give each query its own depth."""
        rng = np.random.default_rng(0)
        depths = [2, 5, 1]
        rewards = Rewards.from_arrays(
            rng.normal(size=(N, D)), [rng.normal(size=(k, D)) for k in depths], [rng.uniform(size=k) for k in depths]
        )

        assert depths == rewards.depths.tolist()

    def test_lists_are_as_good_as_arrays(self):
        """Nested lists build what arrays build."""
        arrays = columns()
        lists = {name: value.tolist() for name, value in arrays.items()}
        expected, rewards = Rewards.from_arrays(**arrays), Rewards.from_arrays(**lists)

        assert_array_equal(rewards.values, expected.values)
        assert_array_equal(rewards.doc_vectors, expected.doc_vectors)

    def test_from_indexed_keeps_documents_once(self):
        """Documents stay one matrix; candidates are its rows."""
        given_columns = indexed()
        rewards = Rewards.from_indexed(**given_columns)
        expected = (N, D, 6, [0, 1, 2, 2, 3, 6], [3, 2, 1])
        got = (len(rewards), rewards.width, rewards.budget, rewards.candidates.tolist(), rewards.depths.tolist())

        assert expected == got
        assert rewards.doc_vectors is given_columns["doc_vectors"]

    def test_a_memory_map_is_not_copied(self, tmp_path):
        """Document vectors that lie on disk stay there."""
        on_disk = np.memmap(tmp_path / "docs", np.float32, "w+", shape=(U, D))
        on_disk[:] = indexed()["doc_vectors"]
        rewards = Rewards.from_indexed(**indexed(doc_vectors=on_disk))

        assert np.shares_memory(on_disk, rewards.doc_vectors)

    def test_names_are_kept(self):
        """Tasks, ids and the judge's fingerprint are kept; an id may return in another task."""
        rewards = Rewards.from_arrays(
            **columns(), tasks=["a", "a", "b"], query_ids=["1", "2", "1"], judge=["rerank-1"] * N
        )
        expected = ["a", "a", "b"], ["1", "2", "1"], "rerank-1"

        assert expected == (rewards.tasks.tolist(), rewards.query_ids.tolist(), rewards.judge)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_keeps_the_dtype_of_vectors(self, dtype):
        """Vectors are kept as they came."""
        rewards = Rewards.from_arrays(**{name: value.astype(dtype) for name, value in columns().items()})

        assert [np.dtype(dtype)] * 2 == [rewards.query_vectors.dtype, rewards.doc_vectors.dtype]

    def test_take_keeps_the_queries_taken_and_their_documents(self):
        """A part of the rewards holds those queries, in that order, and no other document."""
        rewards = Rewards.from_indexed(**indexed(), tasks=["a", "b", "c"], query_ids=["x", "y", "z"])
        part = rewards.take(np.array([2, 0]))
        expected = ["z", "x"], ["c", "a"], [1, 3], [0.6, 0.1, 0.2, 0.3]

        assert expected == (
            part.query_ids.tolist(),
            part.tasks.tolist(),
            part.depths.tolist(),
            part.values.tolist(),
        )
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
            ("rubric(0, 2.5)", [0.0, 1.0, 2.5], [0.0, 0.4, 1.0]),
        ],
    )
    def test_maps_scores_to_rewards(self, text, scores, expected):
        """Scores become rewards in [0, 1] by the declared scale."""
        assert_allclose(Scale.parse(text).to_unit(np.array(scores)), expected, atol=1e-12)

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(logits=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6))
    def test_a_logit_of_any_size_has_a_reward(self, logits):
        """The logistic function neither overflows nor leaves [0, 1], and keeps the order."""
        rewards = Scale("logit").to_unit(np.sort(logits))

        assert ((rewards >= 0) & (rewards <= 1)).all()
        assert (np.diff(rewards) >= 0).all()

    @pytest.mark.parametrize("text", ["probability", "logit", "rubric:0,5", "rubric:-1.5,2"])
    def test_text_round_trips(self, text):
        """A scale is written as it is parsed."""
        assert text == str(Scale.parse(text))

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

    def test_forgives_rounding_at_the_bounds(self):
        """A float32 probability a hair above one is one."""
        rewards = Scale().to_unit(np.array([1.0 + 5e-7, -5e-7]))

        assert rewards.tolist() == [1.0, 0.0]

    @pytest.mark.parametrize("text", ["stars", "rubric", "rubric:0", "rubric:a,b", "Probability", ""])
    def test_of_another_name_is_an_error(self, text):
        """Unknown scale text is an error that lists what is known and shows what came."""
        with pytest.raises(
            InputError, match=rf"^scale: expected probability, logit, unbounded or rubric:LOW,HIGH, got '{text}'$"
        ):
            Rewards.from_arrays(**columns(), scale=text)

    def test_without_a_meaning_is_refused(self):
        """Unbounded scores reach no fit."""
        with pytest.raises(RewardError, match="calibrate them first"):
            Rewards.from_arrays(np.ones((1, 2)), np.ones((1, 2, 2)), [[3.0, 9.0]], scale="unbounded")

    def test_of_another_kind_is_an_error(self):
        """A kind nobody knows is an error."""
        with pytest.raises(InputError, match=r"^scale: expected probability, logit, unbounded or rubric, got 'stars'$"):
            Scale("stars")

    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [
            (5, 0, "low < high"),
            (1, 1, "low < high"),
            (float("nan"), 1, "low < high"),
            (0, float("inf"), "a finite range"),
            (float("-inf"), 0, "a finite range"),
            (-1e308, 1e308, "a finite range"),
        ],
    )
    def test_without_a_range_is_an_error(self, low, high, expected):
        """The best grade must lie above the worst, and not without an end: all grades would be the same reward."""
        message = re.escape(f"scale: expected {expected}, got {low:g} and {high:g}")
        with pytest.raises(InputError, match=f"^{message}$"):
            Scale("rubric", low, high)

    @pytest.mark.parametrize(
        ("scale", "value", "message"),
        [
            ("probability", 1.5, r"scale probability in \[0, 1\], got values from .* to 1\.5 "),
            ("probability", -0.1, r"scale probability in \[0, 1\], got values from -0\.1 to "),
            ("rubric:0,5", 7.0, r"scale rubric:0,5 in \[0, 5\], got values from .* to 7 "),
            ("probability", np.nan, "finite numbers, got NaN"),
            ("logit", np.inf, "finite numbers, got infinity"),
        ],
    )
    def test_outside_is_an_error(self, scale, value, message):
        """Rewards outside the declared scale are an error that shows their range and is not guessed away."""
        rewards = columns()["rewards"]
        rewards[1, 2] = value

        with pytest.raises(RewardError, match=f"^rewards: expected {message}"):
            Rewards.from_arrays(**columns(rewards=rewards), scale=scale)


class TestBadVectors:
    """Vectors nothing can be learned from."""

    @pytest.mark.parametrize("name", ["query_vectors", "candidate_vectors"])
    @pytest.mark.parametrize(("value", "got"), [(np.nan, "NaN"), (np.inf, "infinity"), (0.0, "a zero vector")])
    def test_are_errors(self, name, value, got):
        """A NaN, infinite or zero vector is an error that names the argument."""
        bad = columns(**{name: spoiled(columns()[name], value)})

        with pytest.raises(VectorError, match=f"^{name}: expected finite, non-zero vectors, got {got} in row "):
            Rewards.from_arrays(**bad)

    def test_are_found_among_documents(self):
        """An indexed document is checked as well, and its row is named."""
        with pytest.raises(VectorError, match=r"^doc_vectors: expected .* got NaN in row 1$"):
            Rewards.from_indexed(**indexed(doc_vectors=spoiled(indexed()["doc_vectors"], np.nan)))

    def test_are_named_by_their_row_in_a_large_matrix(self):
        """The row named is the row of the whole matrix, wherever checking was split into blocks."""
        documents = np.ones((70_000, 2), np.float32)
        documents[69_000] = np.nan

        with pytest.raises(VectorError, match=r"^doc_vectors: expected .* got NaN in row 69000$"):
            Rewards.from_indexed(np.ones((1, 2)), documents, [[69_000]], [[0.5]])

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

    @pytest.mark.parametrize(
        ("build", "name"), [(Rewards.from_arrays, "candidate_vectors"), (Rewards.from_indexed, "doc_vectors")]
    )
    def test_of_another_width_are_errors(self, build, name):
        """Documents must be as wide as queries."""
        given_columns = columns() if build == Rewards.from_arrays else indexed()
        given_columns["query_vectors"] = np.ones((N, D + 1))

        with pytest.raises(VectorError, match=f"^{name}: expected width {D + 1} like query_vectors, got {D}$"):
            build(**given_columns)

    def test_of_two_widths_are_errors(self):
        """All candidate blocks must be of one width."""
        blocks = [np.ones((K, D)), np.ones((K, D - 1)), np.ones((K, D))]

        with pytest.raises(
            VectorError, match=r"^candidate_vectors: expected vectors of one width, got widths \[4, 5\]$"
        ):
            Rewards.from_arrays(**columns(candidate_vectors=blocks))

    @pytest.mark.parametrize("name", ["query_vectors", "doc_vectors"])
    def test_one_vector_is_no_matrix(self, name):
        """One vector must still be a matrix of one row."""
        with pytest.raises(VectorError, match=rf"^{name}: expected a matrix \(rows, d\), got shape \(5,\)$"):
            Rewards.from_indexed(**indexed(**{name: np.ones(D)}))

    def test_candidate_blocks_must_be_matrices(self):
        """A matrix in place of (n, k, d) is an error that says which shape a query's block has."""
        message = rf"^candidate_vectors: expected shape \({K}, d\) for query 0, one vector per reward, got \({D},\)$"

        with pytest.raises(InputError, match=message):
            Rewards.from_arrays(**columns(candidate_vectors=np.ones((N, D))))


class TestBadRewards:
    """Rewards that do not belong to their candidates."""

    def test_one_row_is_no_matrix(self):
        """A flat list of rewards is an error."""
        with pytest.raises(InputError, match=r"^rewards: expected one row of numbers per query, got float64 "):
            Rewards.from_arrays(**columns(rewards=np.full(N, 0.5)))

    @pytest.mark.parametrize(
        ("value", "got"),
        [
            ([["a", "b"]] * N, "could not convert"),
            (0.5, "float"),
            ("0.5", "str"),
        ],
        ids=["words", "number", "string"],
    )
    def test_must_be_numbers(self, value, got):
        """What is not a row of numbers per query is an error."""
        with pytest.raises(InputError, match=f"^rewards: expected one row .*per query, got .*{got}"):
            Rewards.from_arrays(**columns(rewards=value))

    def test_that_are_missing_are_errors(self):
        """A reward of None is an error, never imputed."""
        rewards = columns()["rewards"].tolist()
        rewards[1][2] = None

        with pytest.raises(
            RewardError, match=r"^rewards: expected finite numbers, got NaN \(leave unjudged candidates out"
        ):
            Rewards.from_arrays(**columns(rewards=rewards))

    @pytest.mark.parametrize(
        ("build", "changes", "message"),
        [
            (
                Rewards.from_arrays,
                columns(rewards=np.full((N, K - 1), 0.5)),
                "candidate_vectors: expected shape (3, d) for query 0, one vector per reward, got (4, 5)",
            ),
            (
                Rewards.from_indexed,
                indexed(rewards=[[0.1, 0.2, 0.3], [0.4], [0.6]]),
                "rewards: expected one reward per candidate, got 1 rewards for 2 candidates in query 1",
            ),
            (
                Rewards.from_indexed,
                indexed(rewards=[[0.1, 0.2, 0.3], [0.4, 0.5]]),
                "rewards: expected one reward per candidate, got 2 rows for 3 queries",
            ),
            (
                Rewards.from_arrays,
                columns(query_vectors=np.ones((4, D))),
                "rewards: expected one row per query, 4 in query_vectors, got 3",
            ),
            (
                Rewards.from_arrays,
                columns(candidate_vectors=np.ones((2, K, D))),
                "candidate_vectors: expected one block per query, 3 in rewards, got 2",
            ),
        ],
    )
    def test_of_another_number_are_errors(self, build, changes, message):
        """One row of rewards for each query, and one reward for each candidate, no fewer."""
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            build(**changes)

    def test_of_no_query_are_errors(self):
        """Without a rewarded query there is nothing to learn."""
        empty = np.empty((0, D)), np.empty((0, K, D)), np.empty((0, K))

        with pytest.raises(RewardError, match=r"^rewards: expected at least one rewarded query, got none$"):
            Rewards.from_arrays(*empty)

    @pytest.mark.parametrize(("judges", "got"), [(["a", "b", "a"], "['a', 'b']"), (["a"], "['a']")])
    def test_are_of_one_judge(self, judges, got):
        """Judges are not comparable, so rewards of two of them are an error; a list of judges covers all queries."""
        with pytest.raises(RewardError, match=rf"^judge: expected one judge for all 3 queries .*got {re.escape(got)}$"):
            Rewards.from_arrays(**columns(), judge=judges)


NONE_JUDGED = r"^rewards: expected at least one judged candidate per query, got none for query 1$"


class TestBadCandidates:
    """Candidates that are not rows of the documents, each once."""

    def test_a_query_without_candidates_is_an_error(self):
        """A query with an empty block is an error that names it."""
        blocks = [np.ones((2, D)), np.empty((0, D)), np.ones((2, D))]

        with pytest.raises(RewardError, match=NONE_JUDGED):
            Rewards.from_arrays(np.ones((N, D)), blocks, [[0.1, 0.2], [], [0.3, 0.4]])

    @pytest.mark.parametrize("none", [np.array([], int), []], ids=["array", "list"])
    def test_a_query_without_candidate_rows_is_an_error(self, none):
        """An empty array of integers and an empty list are the same error: they hold nothing of a wrong type."""
        with pytest.raises(RewardError, match=NONE_JUDGED):
            Rewards.from_indexed(**indexed(candidates=[[0, 1], none, [6]], rewards=[[0.1, 0.2], [], [0.6]]))

    @pytest.mark.parametrize(("row", "got"), [(U, "0 to 7"), (-1, "-1 to 6")])
    def test_out_of_range_are_errors(self, row, got):
        """A row beyond the documents is an error; negative rows do not count from the end."""
        with pytest.raises(InputError, match=f"^candidates: expected rows 0 to 6 of doc_vectors, got {got}$"):
            Rewards.from_indexed(**indexed(candidates=[[0, 1, row], [2, 3], [6]]))

    def test_repeated_within_a_query_are_errors(self):
        """One document has one reward per query."""
        with pytest.raises(
            InputError, match=r"^candidates: expected each document once per query, got document 3 twice in query 1$"
        ):
            Rewards.from_indexed(**indexed(candidates=[[0, 1, 2], [3, 3], [6]]))

    @pytest.mark.parametrize("rows", [[0.0, 1.0, 2.0], ["0", "1", "2"], [True, False, True]])
    def test_must_be_integers(self, rows):
        """Rows of a matrix are integers, not rounded numbers."""
        with pytest.raises(InputError, match=r"^candidates: expected integer rows of doc_vectors, got dtype "):
            Rewards.from_indexed(**indexed(candidates=[np.array(rows)] * N, rewards=[[0.1, 0.2, 0.3]] * N))


class TestBadNames:
    """Task keys and query ids that name nothing, or two things."""

    @pytest.mark.parametrize("name", ["tasks", "query_ids"])
    @pytest.mark.parametrize(("value", "got"), [(5, "5"), (None, "None"), ("", "''"), (b"b", "b'b'")])
    def test_must_be_strings(self, name, value, got):
        """A key that is not a non-empty string is an error that names its row."""
        with pytest.raises(InputError, match=f"^{name}: expected non-empty strings, got {got} at row 1$"):
            Rewards.from_arrays(**columns(), **{name: ["a", value, "c"]})

    @pytest.mark.parametrize("name", ["tasks", "query_ids"])
    @pytest.mark.parametrize(("value", "got"), [(["a", "b"], "2"), ("abc", "the string 'abc'")])
    def test_must_be_one_per_query(self, name, value, got):
        """A list of another length, or one string for all, is an error."""
        with pytest.raises(InputError, match=f"^{name}: expected one per query, 3 in query_vectors, got {got}$"):
            Rewards.from_arrays(**columns(), **{name: value})

    def test_query_ids_must_be_unique_within_a_task(self):
        """Two queries of one task cannot share an id."""
        with pytest.raises(
            InputError, match=r"^query_ids: expected ids unique within a task, got 'x' twice in task 'a'$"
        ):
            Rewards.from_arrays(**columns(), tasks=["b", "a", "a"], query_ids=["x", "x", "x"])


class TestSources:
    """Who gave a reward, and what documents are called."""

    def test_are_kept(self):
        """Sources and names stay with their rows, also where queries or documents are taken out."""
        names = [f"doc {row}" for row in range(U)]
        rewards = Rewards.from_indexed(**indexed(sources=["ann", "", "bob"], doc_ids=names))
        some = rewards.take(np.array([2, 1]))

        assert rewards.sources.tolist() == ["ann", "", "bob"]
        assert some.sources.tolist() == ["bob", ""]
        assert some.doc_ids[some.candidates].tolist() == ["doc 6", "doc 2", "doc 3"]

    def test_without_them(self):
        """The declared judge gave the rewards, all queries share a task, and queries and documents are numbered."""
        rewards = Rewards.from_indexed(**indexed())

        assert rewards.sources.tolist() == [""] * N
        assert rewards.tasks.tolist() == ["default"] * N
        assert rewards.query_ids.tolist() == ["0", "1", "2"]
        assert rewards.doc_ids[rewards.candidates].tolist() == ["0", "1", "2", "2", "3", "6"]

    def test_several_may_reward_one_query(self):
        """A query id may come again from another source, but not from the same one."""
        ids = ["q", "q", "r"]

        assert len(Rewards.from_indexed(**indexed(query_ids=ids, sources=["ann", "bob", "ann"]))) == 3
        with pytest.raises(InputError, match=r"got 'q' twice in task 'default' from source 'ann'$"):
            Rewards.from_indexed(**indexed(query_ids=ids, sources=["ann", "ann", "bob"]))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sources": ["ann"]}, "sources: expected one per query, 3 in query_vectors, got 1"),
            ({"sources": "ann"}, "sources: expected one per query, 3 in query_vectors, got the string 'ann'"),
            ({"sources": ["ann", None, "bob"]}, "sources: expected strings, got None at row 1"),
            ({"doc_ids": ["a"]}, "doc_ids: expected one per document, 7 in doc_vectors, got 1"),
            ({"doc_ids": [""] * U}, "doc_ids: expected non-empty strings, got '' at row 0"),
        ],
    )
    def test_bad_ones(self, changes, message):
        """One line says what is wrong."""
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            Rewards.from_indexed(**indexed(**changes))


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
        """A query of a thousand candidates is learned from by two hundred of them."""
        rng = np.random.default_rng(0)
        queries, documents = rng.normal(size=(12, D)), rng.normal(size=(1000, D))
        rows = [np.arange(1000), *(rng.permutation(1000)[:8] for _ in range(11))]
        rewards = Rewards.from_indexed(queries, documents, rows, [rng.uniform(size=len(row)) for row in rows])
        deep, bounded = (fit(some, scope="global", gate=False)["global"] for some in (rewards, rewards.bounded(200)))

        assert_array_equal(deep.vector, bounded.vector)
