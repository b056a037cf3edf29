"""The audit: trusted labels correct what a judge claims."""

from collections import Counter
from dataclasses import replace
from itertools import compress

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tttembed_rag import Offsets, Rewards, fit
from tttembed_rag.fitting.scopes import of_task
from tttembed_rag.fitting.voices import Voices
from tttembed_rag.gate.audit import LEAST, PAIRS, audit_sample, audited, confirmed_order
from tttembed_rag.offsets.codes import AUDITED


def world(n=80, *, documents=200, depth=10, width=16, seed=0, shift=0.0):
    """Rewards by a judge that is right, and the label of each pair; queries are asked *shift* beside what is meant."""
    rng = np.random.default_rng(seed)
    docs = rng.standard_normal((documents, width))
    meant = docs[rng.integers(documents, size=n)] + 0.5 * rng.standard_normal((n, width))
    queries = meant + 0.8 * rng.standard_normal((n, width)) + shift * np.random.default_rng(1).standard_normal(width)
    lists = np.argsort(-(queries @ docs.T), axis=1)[:, :depth]
    values = 1 / (1 + np.exp(-np.matvec(docs[lists], meant) / 2 + 3))
    rewards = Rewards.from_indexed(queries, docs, lists, values, doc_ids=[f"d{row}" for row in range(documents)])
    return rewards, labels_of(rewards)


def labels_of(rewards):
    """The rewards as labels by query and document."""
    query = np.repeat(rewards.query_ids, rewards.depths).tolist()
    documents = rewards.doc_ids[rewards.candidates].tolist()
    return dict(zip(zip(query, documents, strict=True), rewards.values.tolist(), strict=True))


def some(labels, pairs):
    """The labels of some pairs."""
    return {pair: labels[pair] for pair in pairs}


def redrawn(rewards, labels, seed):
    """The same under other query ids, of which the hash draws other pairs."""
    names = {name: f"{seed} {name}" for name in rewards.query_ids.tolist()}
    mine = replace(rewards, query_ids=np.array(list(names.values())))
    return mine, {(names[query], document): label for (query, document), label in labels.items()}


def half_wrong(rewards):
    """A judge of yes and no that is wrong of three documents in ten."""
    rng = np.random.default_rng(2)
    good = rewards.values > np.quantile(rewards.values, 0.8)
    return good, replace(rewards, values=np.where(rng.random(rewards.budget) < 0.3, 1.0 - good, good))


def moves(rewards, seed=1):
    """Offsets at random."""
    return 0.3 * np.random.default_rng(seed).standard_normal((len(rewards), rewards.width))


def learned(rewards, offsets=None):
    """The private offsets of all queries, or what some *offsets* add to them."""
    offsets = offsets or fit(rewards, gate=False, scope="query")
    x = rewards.queries.unit
    return offsets.apply(x, task=rewards.tasks.tolist(), query_id=rewards.query_ids.tolist()) - x


def audit_of(rewards, labels, offsets=None):
    """The audit of *offsets* at random, where all queries have a voice."""
    return audited(rewards, np.ones(len(rewards)), moves(rewards) if offsets is None else offsets, labels)


class TestAudited:
    """Prediction-powered inference of the change of DCG."""

    def test_labels_of_all_documents_give_their_own_mean(self):
        """Where every document has a label the corrected change is that of the labels, whatever the judge said."""
        rewards, labels = world(20, depth=PAIRS)
        wrong = replace(rewards, values=np.random.default_rng(2).random(rewards.budget))
        scale = audit_of(wrong, {}).claimed / raw_change(wrong, moves(wrong))

        assert_allclose(audit_of(wrong, labels).corrected, scale * raw_change(rewards, moves(rewards)), rtol=1e-9)

    @pytest.mark.parametrize("count", [30, 100])
    def test_the_interval_holds_the_change_by_labels(self, count):
        """The 90 % interval holds the change by all labels in 85 to 95 % of draws; nothing is confirmed too often."""
        rewards, _ = world(120)
        good, wrong = half_wrong(rewards)
        of_pair = labels_of(replace(rewards, values=good.astype(float)))
        offsets = learned(wrong)
        scale = audit_of(wrong, {}, offsets).claimed / raw_change(wrong, offsets)
        truth = scale * raw_change(replace(rewards, values=good.astype(float)), offsets)
        held = 0
        for seed in range(200):
            mine, labels = redrawn(wrong, of_pair, seed)
            audit = audit_of(mine, some(labels, audit_sample(mine, count)), offsets)
            low, high = audit.interval(0.05)
            held += low <= truth <= high

        assert audit.labels == count // PAIRS * PAIRS
        assert 0.85 <= held / 200 <= 0.95

    def test_a_change_is_none_that_cannot_be(self):
        """A judge that grades in thousandths has a change in thousandths: of labels in whole, it stays below one."""
        rewards, labels = world(40)
        tiny = replace(rewards, values=rewards.values / 1000)
        audit = audit_of(tiny, some(labels, audit_sample(tiny, 30)))

        assert abs(audit.corrected) > 1
        assert -1 <= audit.interval(0.05)[0] <= audit.interval(0.05)[1] <= 1
        assert "say +1.000 [" in str(audit) or "say -1.000 [" in str(audit)

    def test_a_judge_of_another_scale_is_corrected_exactly(self):
        """Where labels are a line of the rewards, a few labels give what all would."""
        rewards, labels = world(20)
        stretched = replace(rewards, values=0.3 + 0.5 * rewards.values)
        audit = audit_of(stretched, some(labels, audit_sample(stretched, 30)))

        assert audit.corrected == pytest.approx(2 * audit.claimed)

    @pytest.mark.parametrize("label", [0.0, 0.3, 1.0])
    def test_equal_labels_tell_nothing(self, label):
        """The changes of a query's places sum to zero, and labels that are all good may be so by chance."""
        rewards, labels = world(20)
        for seed in range(20):
            assert not audit_of(rewards, dict.fromkeys(labels, label), moves(rewards, seed)).confirms(0.2)

    def test_few_labels_confirm_nothing(self):
        """However well those of two queries fit the judge: they may do so by chance."""
        rewards, labels = world(20)
        offsets = learned(rewards)
        few, enough = (audit_of(rewards, some(labels, audit_sample(rewards, count)), offsets) for count in (6, 40))

        assert (few.labels, few.confirms(0.2)) == (6, False)
        assert "6 trusted labels say too little" in str(few)
        assert (enough.labels, enough.queries, enough.confirms(0.05)) == (39, 13, True)


class TestDesign:
    """Which labels count is not up to who labels."""

    def test_labels_of_other_pairs_are_ignored(self):
        """Labels of the rest of a query change nothing but a line."""
        rewards, labels = world(40)
        drawn = audit_sample(rewards, 60)
        queries = {query for query, _ in drawn}
        rest = {pair: 1 - labels[pair] for pair in labels.keys() - set(drawn) if pair[0] in queries}
        few, more = (audit_of(rewards, some(labels, drawn) | some(rest, pairs)) for pairs in ([], rest))

        assert replace(more, ignored=0) == few
        assert (few.ignored, more.ignored) == (0, len(rest))
        assert f", {len(rest)} labels that `tttembed audit draw` did not ask for are ignored" in str(more)
        assert confirmed_order(rewards, some(labels, drawn) | rest) == confirmed_order(rewards, some(labels, drawn))

    @pytest.mark.parametrize("chosen", ["first three", "risen", "liked", "whole queries that are liked"])
    def test_labels_chosen_by_place_or_reward_do_not_count(self, chosen):
        """Next to no query has a label on each document that the hash draws, and no query counts far behind others."""
        rewards, labels = world(200)
        documents = rewards.documents.unit[rewards.candidates].reshape(200, 10, -1)
        before, after = (
            np.argsort(np.argsort(-np.matvec(documents, queries), axis=1), axis=1)
            for queries in (rewards.queries.unit, rewards.queries.unit + moves(rewards))
        )
        own = rewards.values.reshape(200, 10)
        liked = own > np.quantile(own, 0.7, axis=1, keepdims=True)
        best = np.tile(own.max(axis=1, keepdims=True) > np.quantile(own.max(axis=1), 0.4), 10)
        wanted = {"first three": before < 3, "risen": after < before, "liked": liked}.get(chosen, best).ravel()
        pairs = list(compress(labels, wanted))

        assert audit_of(rewards, some(labels, pairs)).labels < LEAST < 500 < len(pairs)

    def test_a_few_queries_may_lack_labels(self):
        """As where they were asked after the draw; labels beyond the last four fifths do not count."""
        rewards, labels = world(40)
        drawn = np.array(audit_sample(rewards, 120)).reshape(40, PAIRS, 2)
        kept = [np.delete(drawn, missing, axis=0)[:16].reshape(-1, 2) for missing in (range(4, 8), range(4, 9))]
        audits = [audit_of(rewards, some(labels, map(tuple, pairs.tolist()))) for pairs in kept]

        assert [audit.labels for audit in audits] == [PAIRS * 16, PAIRS * 4]


class TestConfirmedOrder:
    """How far labels confirm a judge's order."""

    def test_is_two_auc_minus_one_of_labels_good_or_bad(self):
        rewards, labels = world(20, depth=PAIRS)
        noisy = replace(rewards, values=np.random.default_rng(1).random(rewards.budget))
        good = {pair: float(label > 0.3) for pair, label in labels.items()}
        above = noisy.values - np.repeat(np.add.reduceat(noisy.values, noisy.starts[:-1]) / noisy.depths, noisy.depths)
        bits = np.array(list(good.values())) > 0
        pairs = np.sign(above[bits][:, None] - above[~bits][None])

        assert confirmed_order(noisy, good) == pytest.approx(max(0.0, float(pairs.mean())))
        assert confirmed_order(replace(noisy, values=1 - noisy.values), good) == pytest.approx(
            max(0.0, -float(pairs.mean()))
        )

    def test_few_labels_take_no_trust_away(self):
        """Below thirty labels that deny the judge nothing is decided."""
        rewards, labels = world(40)
        denied = {pair: 1 - label for pair, label in labels.items()}
        trusts = [confirmed_order(rewards, some(denied, audit_sample(rewards, count))) for count in (29, 30)]

        assert trusts == [1, 0]

    def test_only_the_order_counts(self):
        """A judge with another scale is confirmed whole, its opposite not at all; labels that are one say nothing."""
        rewards, labels = world(20)
        by_mean = replace(rewards, values=rewards.values**3)
        centred = labels_of(replace(rewards, values=np.clip(above_mean(by_mean), 0, 1)))

        assert confirmed_order(by_mean, centred) == pytest.approx(1, abs=1e-9)
        assert confirmed_order(replace(rewards, values=1 - rewards.values), labels) == 0
        assert confirmed_order(rewards, dict.fromkeys(labels, 0.5)) == confirmed_order(rewards, {}) == 1


def above_mean(rewards):
    """Rewards above the mean of their query, from 0 up."""
    mean = np.repeat(np.add.reduceat(rewards.values, rewards.starts[:-1]) / rewards.depths, rewards.depths)
    return (1 + rewards.values - mean) / 2


def raw_change(rewards, offsets):
    """The mean change of DCG@10 of what was judged, written out."""
    total = 0.0
    for q, (x, offset) in enumerate(zip(rewards.queries.unit, offsets, strict=True)):
        pairs = slice(rewards.starts[q], rewards.starts[q + 1])
        documents = rewards.documents.unit[rewards.candidates[pairs]]
        for sign, query in ((-1, x), (1, x + offset)):
            order = np.argsort(-(documents @ query), kind="stable")
            total += sign * (rewards.values[pairs][order] / np.log2(np.arange(len(order)) + 2))[:10].sum()
    return total / len(offsets)


class TestGate:
    """`fit(..., audit=)`."""

    def test_a_judge_that_is_right_is_confirmed(self):
        """A hundred labels of a true judge change nothing but what the evidence says."""
        rewards, labels = world(shift=0.8)
        plain = fit(rewards)
        confirmed = fit(rewards, audit=some(labels, audit_sample(rewards, 100)))

        assert [offset.served for offset in confirmed.values()] == [offset.served for offset in plain.values()]
        assert any("trusted labels say +" in offset.evidence.details for offset in confirmed.values())

    @pytest.mark.parametrize("scope", ["auto", "query"])
    def test_a_judge_that_is_wrong_is_withheld(self, scope):
        """A judge that follows the retriever, but for a taste of its own, is refused by the labels."""
        rewards, labels = world(shift=0.8)
        taste = np.random.default_rng(3).standard_normal(rewards.width)
        liked = rewards.documents.unit[rewards.candidates] @ taste
        similar = np.vecdot(
            np.repeat(rewards.queries.unit, rewards.depths, axis=0), rewards.documents.unit[rewards.candidates]
        )
        wrong = replace(rewards, values=1 / (1 + np.exp(-8 * similar + 4 - 2 * liked)))
        plain = fit(wrong, scope=scope, trusted=True)
        refused = fit(wrong, scope=scope, trusted=True, audit=some(labels, audit_sample(wrong, 200)))

        assert any(offset.served for offset in plain.values())
        assert not any(offset.served for offset in refused.values())
        assert {offset.evidence.code for offset in refused.values()} == {AUDITED.code}

    def test_the_dose_shrinks_with_what_labels_confirm(self, planted, tmp_path):
        """Every part is that of the judge alone times the factor, which the evidence says and a file keeps."""
        rewards = planted(60)
        rng = np.random.default_rng(4)
        labels = {pair: rng.choice((label, rng.random()), p=(0.6, 0.4)) for pair, label in labels_of(rewards).items()}
        names, queries = rewards.query_ids.tolist(), rewards.queries.unit
        task = str(rewards.tasks[0])
        trust = fit(rewards, scope="task", audit=labels)[f"task:{task}"].evidence.trust

        assert 0.3 < trust < 0.9
        for scope in ("task", "local", "query"):
            alone, shrunk = (
                np.array([offsets.find(task, name).dosed(query) for query, name in zip(queries, names, strict=True)])
                for offsets in (fit(rewards, scope=scope), fit(rewards, scope=scope, audit=labels))
            )
            assert_allclose(shrunk, trust * alone, atol=1e-5)
        offsets = fit(rewards, scope="task", audit=labels)
        offsets.save(tmp_path / "offsets")
        kept = Offsets.load(tmp_path / "offsets")[f"task:{task}"].evidence
        assert kept.trust == trust
        assert f"dose times {trust:.2f}, as far as labels confirm the judge's order" in kept.statistics

    def test_a_judge_that_labels_contradict_is_refused(self):
        rewards, labels = world(shift=0.8)
        refused = fit(rewards, audit={pair: 1 - label for pair, label in labels.items()})

        assert {offset.evidence.code for offset in refused.values()} == {AUDITED.code}
        assert "trusted labels contradict the judge's order" in refused["local:default"].evidence.reason


def rated_twice(rewards, tasks, names):
    """The rewards by two sources: each was shown the documents under the first or the second name of a text.

    Args:
        rewards: Judged candidates.
        tasks: Of each query.
        names: By source, (n,) which of the names each query was shown.
    """
    n = len(rewards)
    documents = np.concatenate([rewards.doc_vectors] * 2)
    shown = [rewards.candidates.reshape(n, -1) + name[:, None] * len(rewards.doc_vectors) for name in names]
    return Rewards.from_indexed(
        np.concatenate([rewards.query_vectors] * 2),
        documents,
        np.concatenate(shown),
        np.tile(rewards.values.reshape(n, -1), (2, 1)),
        tasks * 2,
        rewards.query_ids.tolist() * 2,
        doc_ids=[f"{manual}{row}" for manual in "AB" for row in range(len(rewards.doc_vectors))],
        sources=["ann"] * n + ["eve"] * n,
    )


class TestCopies:
    """A text under several ids, of which each task knows its own."""

    def test_a_pair_is_drawn_under_the_id_that_was_judged(self):
        """And `fit`, which takes each task by itself, finds every label."""
        rewards, _ = world(40)
        manual = np.repeat([0, 1], 20)
        twice = rated_twice(rewards, ["a"] * 20 + ["b"] * 20, [manual, manual])
        offsets = fit(twice, gate=False, scope="query")
        pairs = audit_sample(twice, 100)
        tasks = [Voices.of(of_task(twice, task), 1.0).rewards for task in "ab"]
        audits = [audit_of(task, dict.fromkeys(pairs, 0.5), learned(task, offsets)) for task in tasks]

        assert set(pairs) <= labels_of(twice).keys()
        assert [audit.ignored for audit in audits] == [0, 0]
        assert sum(audit.labels for audit in audits) > 90

    def test_a_label_of_a_copy_counts(self):
        """Where one user was shown the copy A and another B, a label of either counts; that of A comes first."""
        rewards, labels = world(20)
        each = Voices.of(rated_twice(rewards, ["t"] * 20, [np.zeros(20, int), np.ones(20, int)]), 1.0).rewards
        noisy = replace(each, values=(each.values + np.random.default_rng(1).random(each.budget)) / 2)
        of = {manual: {(q, manual + d[1:]): label for (q, d), label in labels.items()} for manual in "AB"}
        orders = {name: confirmed_order(noisy, wanted) for name, wanted in of.items()}
        orders["AB"] = confirmed_order(noisy, of["A"] | dict.fromkeys(of["B"], 0.0))

        assert 0 < orders["A"] < 1
        assert orders == dict.fromkeys(orders, orders["A"])

    def test_a_label_is_counted_once(self):
        """Where a query was shown both copies, the label of one is that of no other: each was drawn by itself."""
        rewards, _ = world(20)
        both = Rewards.from_indexed(
            rewards.query_vectors,
            np.concatenate([rewards.doc_vectors] * 2),
            np.concatenate([rewards.candidates.reshape(20, -1) + shift for shift in (0, 200)], axis=1),
            np.tile(rewards.values.reshape(20, -1), 2),
            doc_ids=[f"{copy}{row}" for copy in "de" for row in range(200)],
        )
        drawn = audit_sample(both, 60)
        mixed = [query for query, name in drawn if name.startswith("e")][-1]
        labels = dict.fromkeys([*drawn, *((query, f"d{name[1:]}") for query, name in drawn)], 0.5)
        rest = [pair for pair in labels if not (pair in drawn and pair[0] == mixed and pair[1].startswith("e"))]

        assert [audit_of(both, some(labels, pairs)).labels for pairs in (labels, rest)] == [PAIRS * 20, PAIRS * 19]


class TestSample:
    """Pairs worth a person's minute."""

    def test_are_judged_pairs_of_whole_queries(self):
        """Each is judged, none twice, the draw is the same every time, and a larger one holds a smaller one."""
        rewards, labels = world()
        pairs = audit_sample(rewards, 30)

        assert len(set(pairs)) == 30
        assert set(pairs) <= set(labels)
        assert set(Counter(query for query, _ in pairs).values()) == {PAIRS}
        assert audit_sample(rewards, 31) == pairs
        assert audit_sample(rewards, 99)[:30] == pairs
        assert len(audit_sample(rewards, 10**6)) == PAIRS * len(rewards)

    def test_any_document_is_drawn_as_often(self):
        rewards, labels = world(400)
        drawn = set(audit_sample(rewards, 10**6))
        of_place = np.array([pair in drawn for pair in labels]).reshape(-1, 10).mean(axis=0)

        assert np.abs(of_place - 0.3).max() < 0.08

    def test_are_drawn_once_however_many_sources_rewarded_them(self):
        """None twice, where two users rated each of them."""
        rewards, _ = world(30)
        twice = Rewards.from_indexed(
            np.repeat(rewards.query_vectors, 2, axis=0),
            rewards.doc_vectors,
            np.repeat(rewards.candidates.reshape(30, -1), 2, axis=0),
            np.repeat(rewards.values.reshape(30, -1), 2, axis=0),
            query_ids=np.repeat(rewards.query_ids, 2).tolist(),
            doc_ids=rewards.doc_ids.tolist(),
            sources=["ann", "eve"] * 30,
        )

        assert audit_sample(twice, 1000) == audit_sample(rewards, 1000)
