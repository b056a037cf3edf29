"""Who vouches for rewards: a permutation test against drawn permutations, and judges of every kind."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tttembed_rag import Rewards
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.merging import merged
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.belief import Signal
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.thresholds import BELIEVED_LEVEL, STRICT_LEVEL, VARIES


def permuted(rewards, seed):
    """The same rewards, permuted within each query."""
    rng = np.random.default_rng(seed)
    values = [rng.permutation(part) for part in np.split(rewards.values, rewards.starts[1:-1])]
    return replace(rewards, values=np.concatenate(values))


def shared_documents(n=60, *, documents=80, depth=10, width=16, noise=0.4, seed=0):
    """Queries over few documents, judged by what each query wants: the query itself, bent its own way."""
    rng = np.random.default_rng(seed)
    docs = rng.standard_normal((documents, width))
    queries = docs[rng.integers(documents, size=n)] + 0.8 * rng.standard_normal((n, width))
    lists = np.argsort(-(queries @ docs.T), axis=1)[:, :depth]
    wanted = queries + noise * rng.standard_normal((n, width))
    values = 1 / (1 + np.exp(-np.matvec(docs[lists], wanted) / width**0.5))
    return Rewards.from_indexed(queries, docs, lists, values)


def by_document(rewards, score):
    """The same rewards by a judge that never looks at the query."""
    return replace(rewards, values=score[rewards.candidates])


class TestAgreement:
    """Rewards permuted within queries."""

    @pytest.mark.parametrize("judge", ["graded", "one good candidate"])
    def test_the_p_value_is_that_of_drawn_permutations(self, judge):
        """The closed form is within a factor of the share of permutations that agree as much."""
        rng = np.random.default_rng(0)
        for seed in range(8):
            rewards = shared_documents(6, seed=seed, noise=3.0)
            if judge == "one good candidate":
                values = np.zeros((6, 10))
                values[np.arange(6), rng.integers(0, 6, 6)] = 1.0
                rewards = replace(rewards, values=values.ravel())
            base = Grid.of(rewards).base
            base = base - base.mean(axis=1, keepdims=True)
            base /= np.linalg.norm(base, axis=1, keepdims=True)
            values = rewards.values.reshape(6, 10) / rewards.values.reshape(6, 10).std(axis=1, keepdims=True)
            drawn = np.random.default_rng(seed).permuted(np.tile(values, (2000, 1, 1)), axis=2)
            share = np.mean((drawn * base).sum(axis=(1, 2)) >= (values * base).sum() - 1e-12)

            assert_allclose(Signal.of(rewards).agrees_p, share, atol=0.03)

    def test_it_is_uniform_where_rewards_mean_nothing(self):
        """One judge in 200 without meaning is believed, and one in 20 contradicts."""
        signals = [Signal.of(permuted(shared_documents(12, seed=seed), 1000 + seed)) for seed in range(300)]
        p = np.array([signal.agrees_p for signal in signals])

        assert_allclose(np.quantile(p, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.07)
        assert np.mean(p < BELIEVED_LEVEL) < 0.02
        assert 0.02 < np.mean([signal.contradicts for signal in signals]) < 0.09

    def test_agreement_and_contradiction(self):
        rewards = shared_documents()
        signal, upside_down = Signal.of(rewards), Signal.of(replace(rewards, values=1 - rewards.values))

        assert (signal.believed, signal.contradicts) == (True, False)
        assert signal.varies > 2 * VARIES
        assert (upside_down.believed, upside_down.contradicts) == (False, True)
        assert_allclose(signal.agrees_p, 1 - upside_down.agrees_p, atol=1e-6)

    def test_copies_of_a_document_are_one(self):
        """A judge that never looks at the query is the same where half of the queries were shown copies."""
        rewards = shared_documents()
        rewards = by_document(rewards, np.random.default_rng(1).random(len(rewards.doc_vectors)))
        shift = np.repeat(np.arange(60) % 2, 10).reshape(60, 10) * len(rewards.doc_vectors)
        copied = Rewards.from_indexed(
            rewards.query_vectors,
            np.concatenate([rewards.doc_vectors] * 2),
            rewards.candidates.reshape(60, 10) + shift,
            rewards.values.reshape(60, 10),
        )
        signal, expected = Signal.of(copied), Signal.of(rewards)

        assert (
            (signal.level, signal.varies) == (expected.level, pytest.approx(expected.varies)) == (BELIEVED_LEVEL, 0.0)
        )

    def test_constant_rewards_say_nothing(self):
        """Every permutation of equal rewards is the one that was observed."""
        signal = Signal.of(replace(shared_documents(), values=np.full(600, 0.3)))

        assert (signal.agrees_p, signal.varies, signal.contradicts) == (1.0, 0.0, False)

    def test_no_query_is_louder_than_another(self):
        """A query whose rewards are stretched says as much as before."""
        rewards = shared_documents()
        stretched = replace(rewards, values=rewards.values * np.repeat(np.where(np.arange(60) % 2, 1.0, 1e-3), 10))

        assert_allclose(Signal.of(stretched).agrees_p, Signal.of(rewards).agrees_p, rtol=1e-6)

    def test_a_voice_counts_as_its_weight(self):
        """Queries without a voice are as if they were not there."""
        rewards = shared_documents()
        half = rewards.take(np.arange(30))

        assert_allclose(Signal.of(rewards, np.repeat([1.0, 0.0], 30)).agrees_p, Signal.of(half).agrees_p, rtol=1e-6)

    def test_a_question_logged_again_and_again_is_asked_once(self):
        """Copies of a query, embedded again or a little off, add nothing to the evidence."""
        rewards = permuted(shared_documents(12), 3)
        rng = np.random.default_rng(0)
        rows = np.repeat(np.arange(12), 20)
        again = rewards.take(rows)
        noise = 0.02 * rng.standard_normal(again.query_vectors.shape)
        again = replace(
            again,
            query_vectors=again.query_vectors + noise,
            query_norms=np.linalg.norm(again.query_vectors + noise, axis=1),
            query_ids=np.array([str(i) for i in range(240)]),
        )

        assert_allclose(Signal.of(again).agrees_p, Signal.of(rewards).agrees_p, rtol=0.2)


class TestReadingTheQuery:
    """How much of what is said of a document depends on what is asked."""

    @pytest.mark.parametrize("judge", ["random", "a direction", "near the middle", "far from the middle"])
    def test_a_judge_of_documents_alone_is_not(self, judge):
        """One score for each document, however it comes about, never depends on what is asked."""
        for seed in range(12):
            rewards = shared_documents(80, seed=seed)
            docs = rewards.documents.unit
            middle = docs @ docs.mean(axis=0)
            scores = {
                "random": np.random.default_rng(seed).random(len(docs)),
                "a direction": docs[:, 0],
                "near the middle": middle,
                "far from the middle": -middle,
            }[judge]
            signal = Signal.of(by_document(rewards, (scores - scores.min()) / np.ptp(scores)))

            assert (signal.varies, signal.believed) == (pytest.approx(0.0, abs=1e-9), False)

    def test_a_little_noise_on_it_is_no_reading(self):
        """A document's score with noise of a fifth of its spread is no verdict on the query."""
        rng = np.random.default_rng(0)
        rewards = shared_documents(40)
        score = rng.random(len(rewards.doc_vectors))[rewards.candidates]

        assert Signal.of(replace(rewards, values=score + 0.2 * rng.random(rewards.budget))).varies < VARIES

    def test_without_documents_in_common_agreement_must_be_beyond_doubt(self, planted):
        """Where no document was judged twice nothing tells whether the judge reads the query: the level is stricter."""
        sure, faint = Signal.of(planted(20)), Signal.of(planted(4, depth=4, seed=3))

        assert (sure.level, sure.varies, sure.believed) == (STRICT_LEVEL, 1.0, True)
        assert (faint.level, faint.believed) == (STRICT_LEVEL, False)


class TestVouching:
    """Who speaks first decides."""

    @pytest.mark.parametrize(
        ("trusted", "sources", "expected"),
        [
            (None, False, "the data"),
            (True, False, "its declaration"),
            (False, False, "nobody"),
            (True, True, "the data"),
            (False, True, "nobody"),
        ],
    )
    def test_a_declaration_comes_before_the_data_and_never_of_sources(self, trusted, sources, expected):
        """Whoever may vote is believed by the data alone; with False nobody vouches, whatever the data say."""
        rewards = shared_documents()
        if sources:
            rewards = replace(rewards, sources=np.array([f"user {i}" for i in range(60)]))

        assert Case.of(replace(rewards, trusted=trusted), Recipe()).voucher == expected


class TestMerged:
    """One query for each question."""

    def test_candidates_join_and_rewards_are_averaged(self):
        documents = np.eye(4)
        rewards = Rewards.from_indexed(
            np.array([[1.0, 0.1, 0, 0], [0, 0, 1.0, 0.1], [1.0, 0.1, 0, 0]]),
            documents,
            [[0, 1], [2, 3], [1, 2]],
            [[1.0, 0.2], [0.5, 0.5], [0.6, 0.0]],
        )
        whole = merged(rewards, rewards.near_queries)
        parts = (np.split(part, whole.starts[1:-1]) for part in (whole.candidates, whole.values))
        judged = {frozenset(zip(c.tolist(), v.tolist(), strict=True)) for c, v in zip(*parts, strict=True)}

        assert judged == {frozenset({(0, 1.0), (1, 0.4), (2, 0.0)}), frozenset({(2, 0.5), (3, 0.5)})}

    def test_a_text_under_two_ids_is_one_document(self):
        documents = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        rewards = Rewards.from_indexed(np.array([[1.0, 1.0]]), documents, [[0, 1, 2]], [[0.2, 0.4, 1.0]])

        assert_array_equal(np.sort(merged(rewards, rewards.near_queries).values), [pytest.approx(0.3), 1.0])
