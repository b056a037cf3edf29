"""Exposure: documents that an offset lifts into everybody's list are named, and those lifted for no reason unjudged."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tttembed_rag import Offsets, Rewards, fit
from tttembed_rag.gate.exposure import Exposure
from tttembed_rag.gate.thresholds import EXPOSED


def crowd(n=80, *, documents=300, depth=10, width=24, shift=0.5, seed=0):
    """Queries over common documents that were all asked a little beside what they meant, judged by what they meant."""
    rng = np.random.default_rng(seed)
    docs = rng.standard_normal((documents, width))
    docs /= np.linalg.norm(docs, axis=1, keepdims=True)
    meant = docs[rng.integers(documents, size=n)] + 0.6 * rng.standard_normal((n, width)) / width**0.5
    beside = rng.standard_normal(width) / width**0.5
    asked = meant - shift * beside
    found = np.argsort(-(asked @ docs.T), axis=1)[:, :depth]
    values = 1 / (1 + np.exp(-12 * (np.matvec(docs[found], meant) - 0.4)))
    names = [f"doc {row}" for row in range(documents)]
    return Rewards.from_indexed(asked, docs, found, values, doc_ids=names)


def overrated(rewards, name, *, every=3):
    """The same judge, but it likes one document whatever is asked, and that is shown to one query in *every*."""
    row = rewards.doc_ids.tolist().index(name)
    rows, values = (np.split(part, rewards.starts[1:-1]) for part in (rewards.candidates, rewards.values))
    for q in range(len(rows)):
        if row not in rows[q] and q % every == 0:
            rows[q] = np.append(rows[q][:-1], row)
        values[q] = np.where(rows[q] == row, 1.0, values[q])
    return Rewards.from_indexed(
        rewards.query_vectors, rewards.doc_vectors, rows, values, doc_ids=rewards.doc_ids.tolist()
    )


def popular(rewards, name):
    """A document that answers a third of the queries and is known by it: its rewards tell them from the others."""
    spoiled = overrated(rewards, name)
    row = spoiled.doc_ids.tolist().index(name)
    query = np.repeat(np.arange(len(spoiled)), spoiled.depths)
    values = np.where((spoiled.candidates == row) & (query % 2 == 1), 0.0, spoiled.values)
    return replace(spoiled, values=values)


class TestExposure:
    """The small index of what was judged."""

    def test_rises_are_those_of_a_search(self):
        """The share of lists that hold a document, before and after, as a loop counts them."""
        rewards = crowd(40)
        exposure = Exposure.of(rewards)
        offsets = 0.3 * np.random.default_rng(1).standard_normal((40, 24))
        voices = np.random.default_rng(2).random(40)
        expected = np.zeros(len(exposure.pool))
        for unit, offset, voice in zip(rewards.queries.unit, offsets, voices, strict=True):
            for sign, query in ((-1, unit), (1, unit + offset)):
                expected[np.argsort(-(exposure.pool @ query))[:10]] += sign * voice / voices.sum()

        assert len(exposure.pool) >= 100
        assert_allclose(exposure.rises(rewards, voices, offsets), expected, atol=1e-12)

    def test_copies_of_a_document_are_one(self):
        """A text under two names stands in the index once."""
        rewards = crowd(20)
        again = Rewards.from_arrays(
            rewards.query_vectors,
            rewards.doc_vectors[rewards.candidates].reshape(20, 10, -1),
            rewards.values.reshape(20, 10),
        )

        assert len(Exposure.of(again).pool) == len(Exposure.of(rewards).pool)

    def test_nothing_rises_without_an_offset(self):
        """Base vectors leave every list as it was."""
        rewards = crowd(20)

        assert Exposure.of(rewards).risen(rewards, np.ones(20), np.zeros((20, 24))) == []


class TestGate:
    """What the gate does about documents that rise."""

    @pytest.mark.parametrize("scope", ["task", "auto"])
    def test_an_overrated_document_is_unjudged(self, scope):
        """It is named with its code, what is served does not lift it, and the gain of all others stays."""
        rewards = crowd()
        name = str(rewards.doc_ids[rewards.candidates[7]])
        spoiled = overrated(rewards, name)
        found = fit(spoiled, scope=scope)
        shared = next(offset for offset in found.values() if offset.query_id is None and offset.served)
        vector = rewards.doc_vectors[rewards.doc_ids.tolist().index(name)]

        assert shared.evidence.withheld == (name,)
        assert f"without the rewards of {name} [{EXPOSED.code}]" in str(shared.evidence)
        assert shared.evidence.gain > 0
        moved = found.apply(rewards.query_vectors)
        assert ((moved - rewards.query_vectors) @ vector).mean() < 0.05

    def test_a_private_offset_does_not_lift_it_either(self):
        """Where private offsets alone are asked for, the document that they would all lift is unjudged."""
        rewards = crowd()
        name = str(rewards.doc_ids[rewards.candidates[7]])
        found = fit(overrated(rewards, name, every=1), scope="query")

        assert {offset.evidence.withheld for offset in found.values()} == {(name,)}

    def test_a_popular_document_keeps_its_rewards(self):
        """One that rises because of what is asked is named, and learned from."""
        rewards = crowd(shift=1.5)
        names = fit(popular(rewards, str(rewards.doc_ids[rewards.candidates[7]])))
        shared = next(offset for offset in names.values() if offset.query_id is None and offset.served)

        assert shared.evidence.withheld == ()

    def test_clean_rewards_name_no_document(self):
        """A judge that does its work is not suspected."""
        for seed in range(4):
            for offset in fit(crowd(seed=seed)).values():
                assert (offset.evidence.withheld, offset.evidence.risen) == ((), ())

    def test_names_stay_in_the_file(self, tmp_path):
        """What was withheld can be read years later."""
        rewards = crowd()
        found = fit(overrated(rewards, str(rewards.doc_ids[rewards.candidates[7]])), scope="task")
        found.save(tmp_path / "offsets.safetensors")
        again = Offsets.load(tmp_path / "offsets.safetensors")

        assert again["task:default"].evidence == found["task:default"].evidence
        assert again["task:default"].evidence.withheld

    def test_accounts_do_not_lift_a_document(self):
        """Accounts that praise one document where it has no business are outvoted: its rewards are not counted."""
        rewards = crowd(120, shift=0.5)
        name = str(rewards.doc_ids[rewards.candidates[7]])
        spoiled = overrated(rewards, name, every=4)
        sources = [f"attacker {i}" if i % 4 == 0 else f"user {i}" for i in range(120)]
        found = fit(replace(spoiled, sources=np.array(sources)), scope="task")["task:default"]

        assert name in found.evidence.withheld
