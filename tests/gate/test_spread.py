"""Cosines are measured in their spread: what all vectors have in common changes nothing that is learned."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tttembed_rag import fit

SQUEEZED = [0.5, 0.8, 0.9]


def changed(rewards, change):
    """The rewards with what *change* makes of the unit vectors of queries and of documents."""
    queries, documents = (change(rows.unit) for rows in (rewards.queries, rewards.documents))
    norms = {"query_norms": np.linalg.norm(queries, axis=1), "doc_norms": np.linalg.norm(documents, axis=1)}
    return replace(rewards, query_vectors=queries, doc_vectors=documents, **norms)


def squeezed(rewards, common):
    """The rewards under an embedder whose cosines are (1 - common) c + common: a constant coordinate is added."""
    return changed(rewards, lambda unit: np.insert((1 - common) ** 0.5 * unit, 0, common**0.5, axis=1))


def rotated(rewards):
    """The rewards with all vectors turned the same way."""
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((rewards.width, rewards.width)))[0]
    return changed(rewards, lambda unit: unit @ turn)


def lengthened(rewards):
    """The rewards with three times as many coordinates beside, which hardly count."""
    rng, width = np.random.default_rng(0), rewards.width
    return changed(
        rewards,
        lambda unit: np.append(unit, 0.02 * rng.standard_normal((len(unit), 3 * width)) / width**0.5, axis=1),
    )


def rounded(rewards, dtype):
    """The rewards with vectors that were kept in another precision."""
    return changed(rewards, lambda unit: unit.astype(dtype).astype(np.float32))


def decisions(rewards, trusted=None):
    """What the gate says of each offset, and the measured gains."""
    evidence = [offset.evidence for offset in fit(rewards, trusted=trusted).values()]
    return [(of.verdict, of.code, of.n) for of in evidence], [of.gain or 0.0 for of in evidence]


def scores(rewards, offsets, of):
    """(n, k) products of the queries of *rewards* with the candidates, less their mean in each list, by *offsets*."""
    moved = rewards.queries.unit + offsets.find("default").map(rewards.queries.unit)
    products = rewards.documents.similarities(replace(rewards.queries, vectors=moved, norms=np.ones(len(moved))), of)
    return products - products.mean(axis=1, keepdims=True)


@pytest.fixture(scope="module", params=product([(4, 0.9), (12, 0.2), (40, 0.6)], [True, None]))
def decided(request, planted):
    """Some rewards, whether their judge is declared, and what the gate says of them."""
    (n, strength), trusted = request.param
    rewards = planted(n, strength=strength)
    return rewards, trusted, decisions(rewards, trusted)


@pytest.mark.parametrize(
    "change",
    [
        *(partial(squeezed, common=common) for common in SQUEEZED),
        rotated,
        *(partial(rounded, dtype=dtype) for dtype in (np.float16, np.float32)),
    ],
    ids=[*(f"squeezed by {common}" for common in SQUEEZED), "rotated", "float16", "float32"],
)
def test_no_decision_and_no_gain_changes(decided, change):
    """Verdicts and measured gains are those of the vectors as they were."""
    rewards, trusted, (verdicts, gains) = decided
    after, gains_after = decisions(change(rewards), trusted)

    assert after == verdicts
    assert_allclose(gains_after, gains, atol=0.002)


def test_the_head_of_longer_vectors_teaches_as_much(planted):
    rewards = planted(40, strength=0.6)
    (verdicts, gains), (after, gains_after) = decisions(rewards), decisions(lengthened(rewards))

    assert after == verdicts
    assert_allclose(gains_after, gains, atol=0.002)


class TestSqueezed:
    """Cosines c that become a c + b."""

    @pytest.mark.parametrize("common", SQUEEZED)
    def test_lists_are_sorted_as_they_were(self, planted, common):
        """Every score of an unseen query differs from those of its list by 1 - common as much as before."""
        rewards = planted(80, strength=0.6)
        seen, unseen = (np.arange(40), np.arange(40, 80))
        other = squeezed(rewards, common)
        listed = rewards.candidates.reshape(80, 8)[unseen] - int(rewards.candidates.reshape(80, 8)[40, 0])
        before, after = (
            scores(part.take(unseen), fit(part.take(seen), trusted=True), listed) for part in (rewards, other)
        )

        assert_allclose(after, (1 - common) * before, atol=1e-4 * (1 - common))

    def test_the_spread_follows(self, planted):
        for n in (1, 20):
            rewards = planted(n)

            assert_allclose(squeezed(rewards, 0.8).spread, 0.2 * rewards.spread, rtol=1e-5)

    def test_repeats_are_those_of_before(self, planted):
        """A question that was asked again in other words is one with it, and different ones stay different."""
        rewards = planted(30)
        queries = rewards.query_vectors.copy()
        queries[1::3] = queries[::3] + 0.05 * np.random.default_rng(0).standard_normal(queries[::3].shape)
        rewards = replace(rewards, query_vectors=queries, query_norms=np.linalg.norm(queries, axis=1))
        groups = [mine.near_queries[:, None] == mine.near_queries for mine in (rewards, squeezed(rewards, 0.9))]

        assert_array_equal(*groups)
        assert 20 <= len(np.unique(rewards.near_queries)) < 30


def test_without_the_gate_cosines_are_as_they_are(planted):
    """The paper's rule knows no spread."""
    offsets = fit(planted(8), scope="global", gate=False)

    assert (offsets.settings["spread"], offsets.settings["student_temperature"]) == (1.0, 0.05)
