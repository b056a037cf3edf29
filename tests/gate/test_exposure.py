"""Exposure: where sources, or a judge, would move a document into everybody's list, their word on it is not heard."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tttembed_rag import Offsets, Rewards, fit
from tttembed_rag.gate.exposure import Exposure


def crowd(n=80, *, documents=300, depth=10, width=24, shift=0.5, seed=0):
    """Queries over common documents that were all asked a little beside what they meant, judged by what they meant."""
    rng = np.random.default_rng(seed)
    docs = rng.standard_normal((documents, width))
    docs /= np.linalg.norm(docs, axis=1, keepdims=True)
    meant = docs[rng.integers(documents, size=n)] + 0.6 * rng.standard_normal((n, width)) / width**0.5
    beside = rng.standard_normal(width) / width**0.5
    queries = meant - shift * beside
    lists = np.argsort(-(queries @ docs.T), axis=1)[:, :depth]
    values = 1 / (1 + np.exp(-12 * (np.matvec(docs[lists], meant) - 0.4)))
    names = [f"doc {row}" for row in range(documents)]
    return Rewards.from_indexed(queries, docs, lists, values, doc_ids=names)


def overrated(rewards, *, every=3):
    """The same judge, but it likes one document whatever is asked, and that is shown to one query in *every*; its name.

    The document is what the first query finds in its eighth place.
    """
    row = rewards.candidates[7]
    rows, values = (np.split(part, rewards.starts[1:-1]) for part in (rewards.candidates, rewards.values))
    for q in range(len(rows)):
        if row not in rows[q] and q % every == 0:
            rows[q] = np.append(rows[q][:-1], row)
        values[q] = np.where(rows[q] == row, 1.0, values[q])
    spoiled = Rewards.from_indexed(
        rewards.query_vectors, rewards.doc_vectors, rows, values, doc_ids=rewards.doc_ids.tolist()
    )
    return spoiled, str(rewards.doc_ids[row])


def voted(rewards):
    """The same rewards, each query's by a user of its own."""
    return replace(rewards, sources=np.array([f"user {i}" for i in range(len(rewards))]))


class TestExposure:
    """The small index of what was judged."""

    @pytest.mark.parametrize(("documents", "places"), [(300, 10), (15, 1)])
    def test_changes_are_those_of_a_search(self, documents, places):
        """The share of lists that hold a document, before and after, as a loop counts them: a tenth of a small pool."""
        rewards = crowd(40, documents=documents)
        exposure = Exposure.of(rewards)
        offsets = 0.3 * np.random.default_rng(1).standard_normal((40, 24))
        voices = np.random.default_rng(2).random(40)
        expected = np.zeros(len(exposure.pool))
        for unit, offset, voice in zip(rewards.queries.unit, offsets, voices, strict=True):
            for sign, query in ((-1, unit), (1, unit + offset)):
                expected[np.argsort(-(exposure.pool @ query))[:places]] += sign * voice / voices.sum()

        assert_allclose(exposure.changes(rewards, voices, offsets), expected, atol=1e-12)

    def test_copies_of_a_document_are_one(self):
        rewards = crowd(20)
        again = Rewards.from_arrays(
            rewards.query_vectors,
            rewards.doc_vectors[rewards.candidates].reshape(20, 10, -1),
            rewards.values.reshape(20, 10),
        )

        assert len(Exposure.of(again).pool) == len(Exposure.of(rewards).pool)

    def test_nothing_moves_without_an_offset(self):
        rewards = voted(crowd(20))

        assert Exposure.of(rewards).moved(rewards, np.ones(20), np.zeros((20, 24))).tolist() == []


class TestGate:
    """What the gate does about documents that sources move."""

    @pytest.mark.parametrize(
        ("n", "every", "sources", "trusted"),
        [
            (80, 3, [f"user {i}" for i in range(80)], None),
            (120, 4, [f"user {i}" if i % 4 else f"attacker {i}" for i in range(120)], None),
            (80, 3, None, None),
            (80, 3, None, True),
        ],
        ids=["users", "users and accounts", "a judge", "a declared judge"],
    )
    def test_what_is_said_of_an_overrated_document_is_not_heard(self, tmp_path, n, every, sources, trusted):
        """It is named with its code, in the file too; what is served does not lift it; all others gain."""
        spoiled, name = overrated(crowd(n), every=every)
        spoiled = spoiled if sources is None else replace(spoiled, sources=np.array(sources))
        offsets = fit(spoiled, scope="task", trusted=trusted)
        evidence = offsets["task:default"].evidence
        vector = spoiled.doc_vectors[spoiled.doc_ids.tolist().index(name)]
        offsets.save(tmp_path / "offsets.safetensors")

        assert evidence.withheld == (name,)
        assert f"without what was said of {name}" in evidence.statistics
        assert f"on {n} held-out queries; without what was said of 1 document" in str(evidence)
        assert Offsets.load(tmp_path / "offsets.safetensors")["task:default"].evidence == evidence
        assert ((offsets.apply(spoiled.query_vectors) - spoiled.query_vectors) @ vector).mean() < 0.05

    def test_a_judge_may_lift_a_document_that_it_grades_by_what_is_asked(self):
        """It speaks for what it serves: the best of many lists, and bad in others, comes up as far as it teaches."""
        spoiled, name = overrated(crowd())
        its = np.flatnonzero(spoiled.doc_ids[spoiled.candidates] == name)[::3]
        spoiled.values[its] = 0.0

        assert {offset.evidence.withheld for offset in fit(spoiled, trusted=True).values()} == {()}

    def test_a_judge_is_heard_where_sources_are_not(self):
        """Of a document that sources overrate the judge's own rewards stay."""
        rewards = crowd(40)
        row = rewards.candidates[7]
        spoiled = voted(overrated(rewards)[0])
        both = Rewards.joined([replace(rewards, query_ids=np.array([f"j{i}" for i in range(40)])), spoiled])
        exposure = Exposure.of(both)
        rest = exposure.without(exposure.document[both.doc_ids[both.candidates] == rewards.doc_ids[row]])

        assert (rest.doc_ids[rest.candidates] == rewards.doc_ids[row]).sum() == (rewards.candidates == row).sum()
        assert exposure.without([]).budget == both.budget
        assert Exposure.of(spoiled).without(range(300)) is None

    def test_a_document_may_fall_out_of_lists_no_more_than_rise_into_them(self):
        """Where the votes of sources would push one out of everybody's list, they are not heard either."""
        rewards = voted(crowd(120, documents=12))
        exposure = Exposure.of(rewards)
        first = np.argmax(rewards.queries.unit @ exposure.pool.T, axis=1)
        common = int(np.bincount(first).argmax())
        away = np.tile(-2 * exposure.pool[common], (120, 1))

        assert np.mean(first == common) > 0.1
        assert common in exposure.moved(rewards, np.ones(120), away)

    def test_clean_votes_name_no_document(self):
        """Users who say what they want are not suspected where they want different things."""
        for seed in range(4):
            for offset in fit(voted(crowd(shift=0.2, seed=seed))).values():
                assert offset.evidence.withheld == ()
