"""Voices: no source, no copy of a question and no document counts more than once."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tttembed_rag import Rewards, fit
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.voices import Voices
from tttembed_rag.gate.case import Case, gated


def from_sources(sources, *, n=None, ids=None, near=0.0, depth=6, width=16, seed=0):
    """Random rewards, a row for each of *sources*, of queries within *near* of each other (0: unrelated ones)."""
    rng = np.random.default_rng(seed)
    n = len(sources) if n is None else n
    documents = rng.standard_normal((40, width))
    queries = rng.standard_normal((n, width))
    if near:
        queries = queries[0] + near * queries
    lists = np.array([rng.permutation(40)[:depth] for _ in range(n)])
    values = rng.random((n, depth))
    return Rewards.from_indexed(queries, documents, lists, values, query_ids=ids, sources=sources)


class TestHeard:
    """Weights of queries, and one row for each."""

    def test_the_declared_judge_is_heard_at_every_question(self):
        """Without sources every query counts one, and nothing is copied."""
        rewards = from_sources(None, n=12)
        voices = Voices.of(rewards, 1.0)

        assert voices.rewards is rewards
        assert_array_equal(voices.weights, np.ones(12))
        assert voices.sources == 0

    def test_copies_of_a_question_share_a_voice(self):
        """Fifty copies, whoever sent them, are one voice in all."""
        for sources in (None, ["a"] * 50, [f"user {i}" for i in range(50)]):
            voices = Voices.of(from_sources(sources, n=50, near=1e-4), 1.0)

            assert_allclose(voices.weights.sum(), 1.0)

    @pytest.mark.parametrize("cap", [1.0, 3.0])
    def test_a_source_is_at_most_so_many_voices_near_any_query(self, cap):
        """However many queries one source sends, kernel and weights together give it no more than the cap."""
        rewards = from_sources(["attacker"] * 100 + [f"user {i}" for i in range(20)], n=120, near=1.0)
        voices = Voices.of(rewards, cap)
        unit = rewards.queries.unit
        kernel = np.exp((unit @ unit.T - 1) / (1 - (unit @ unit.T)[~np.eye(120, dtype=bool)].mean()))

        assert (kernel[:, :100] @ voices.weights[:100]).max() < 1.05 * cap
        assert_array_equal(voices.weights[100:], np.ones(20))

    def test_distinct_users_are_distinct_voices(self):
        rewards = from_sources([f"user {i}" for i in range(30)])

        assert_array_equal(Voices.of(rewards, 1.0).weights, np.ones(30))

    def test_verdicts_of_sources_on_one_query_are_averaged(self):
        """A query that three sources rewarded is one row; the last verdict replaces none."""
        rng = np.random.default_rng(0)
        query, documents = rng.standard_normal(8), rng.standard_normal((4, 8))
        values = np.array([[1.0, 0.0, 0.5, 0.2], [1.0, 0.0, 0.5, 0.2], [0.0, 1.0, 0.5, 0.2]])
        rewards = Rewards.from_indexed(
            [query] * 3, documents, [[0, 1, 2, 3]] * 3, values, query_ids=["q"] * 3, sources=["a", "b", "c"]
        )
        voices = Voices.of(rewards, 1.0)
        by_document = dict(zip(voices.rewards.candidates.tolist(), voices.rewards.values.tolist(), strict=True))

        assert voices.rewards.query_ids.tolist() == ["q"]
        assert by_document == pytest.approx({0: 2 / 3, 1: 1 / 3, 2: 0.5, 3: 0.2})
        assert (voices.weights.tolist(), voices.sources) == ([1.0], 3)

    def test_what_few_have_seen_is_not_the_word_of_all(self):
        """A document that one of three sources was shown has the least reward from the two others."""
        documents = np.eye(8)[:4]
        rewards = Rewards.from_indexed(
            [np.ones(8)] * 3,
            documents,
            [[0, 1], [0, 1], [1, 3]],
            [[1.0, 0.1], [0.7, 0.1], [0.1, 1.0]],
            query_ids=["q"] * 3,
            sources=["a", "b", "attacker"],
        )
        assert sorted(Voices.of(rewards, 1.0).rewards.values) == pytest.approx(
            [0.1, (1.0 + 0.1 + 0.1) / 3, (1.0 + 0.7 + 0.1) / 3]
        )

    def test_a_document_has_one_vote_of_each_source(self):
        """One that is the best of too many queries is unjudged in all but one of each source's."""
        rng = np.random.default_rng(0)
        documents, queries = rng.standard_normal((30, 8)), rng.standard_normal((24, 8))
        rows = [[0, *rng.permutation(np.arange(1, 30))[:4]] for _ in range(24)]
        values = np.full((24, 5), 0.1)
        values[:, 0], values[:, 1] = 1.0, 0.4
        sources = ["attacker"] * 12 + [f"user {i}" for i in range(12)]
        kept = Voices.of(Rewards.from_indexed(queries, documents, rows, values, sources=sources), 1.0).rewards
        judged = np.array([0 in part for part in np.split(kept.candidates, kept.starts[1:-1])])

        assert judged[:12].sum() == 1
        assert judged[12:].all()


def of_sources(rewards, sources):
    """The same rewards, given by *sources*."""
    return replace(rewards, sources=np.array(sources))


class TestGate:
    """What the gate makes of sources."""

    def test_many_sources_are_believed_like_a_judge(self, planted):
        """A task that many users reward gets its offset; the evidence counts them."""
        rewards = of_sources(planted(40, strength=0.5), [f"user {i}" for i in range(40)])
        evidence = fit(rewards, scope="task")["task:default"].evidence

        assert {offset.evidence.sources for offset in fit(rewards, scope="query").values()} == {40}
        assert (evidence.verdict, evidence.sources) == ("published", 40)
        assert "from 40 sources" in evidence.statistics

    def test_one_source_alone_is_not(self, planted):
        """What a single account says is few voices, whatever it sends."""
        rewards = planted(80, strength=0.9)

        assert not any(offset.served for offset in fit(of_sources(rewards, ["me"] * 80)).values())
        assert fit(rewards)["local:default"].served

    def test_n_counts_voices(self, planted):
        """Fifty copies of a question are one in what n and the dose count."""
        rewards = planted(12, strength=0.9)
        copies = np.concatenate([np.arange(12), np.zeros(50, dtype=int)])
        names = [str(i) for i in range(62)]
        copied = replace(rewards.take(copies), query_ids=np.array(names))
        case = Case.of(copied, gated(Recipe(), copied))

        assert case.questions == 12
        assert_allclose(case.voices.sum(), 12.0)
