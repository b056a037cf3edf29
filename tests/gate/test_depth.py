"""How deep a reranker must look at a list under an offset: what kept verdicts certify, and where it is told."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.test_audit import labels_of
from tests.test_words import judged
from tttembed_rag import InputError, Offsets, Rewards, fit
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.audit import audit_sample
from tttembed_rag.gate.case import Case, Terms, gated
from tttembed_rag.gate.depth import lost_by_depth
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import CERTIFIED_LEVEL, TYPICAL_LOST
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.serving.live import LiveOffsets


def habit(n, *, depth=10, width=16, shift=1.0, seed=0, ragged=False):
    """Queries whose judge looks for the query moved by a *shift* that all share; candidates are their nearest."""
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((n, width))
    documents = queries[:, None] + rng.standard_normal((n, depth, width))
    wanted = queries + shift * 3.0 * np.eye(width)[0]
    products = np.matvec(documents, wanted)
    rewards = 1 / (1 + np.exp(0.5 * width**0.5 - 0.5 * (products - products.mean(axis=1, keepdims=True))))
    kept = rng.integers(2, depth + 1, n) if ragged else np.full(n, depth)
    shown, values = ([row[:k] for row, k in zip(rows, kept, strict=True)] for rows in (documents, rewards))
    return Rewards.from_arrays(queries, shown, values)


def case_of(rewards, labels=None):
    """The rewards under the gate, of a judge that is declared."""
    return Case.of(replace(rewards, trusted=True), gated(Recipe(), rewards), Terms(labels=labels))


def losses(rewards, offsets, depth):
    """What each query loses at a *depth*, by a loop over the definition."""
    least = rewards.values.min()
    paid, kept = [], []
    for q, (begin, end) in enumerate(zip(rewards.starts[:-1], rewards.starts[1:], strict=True)):
        documents = rewards.documents.rows(rewards.candidates[begin:end]).unit
        gains = rewards.values[begin:end] - least
        listed = gains[np.argsort(-(documents @ (rewards.queries.unit[q] + offsets[q])), kind="stable")]
        reranked = [*sorted(listed[:depth], reverse=True), *listed[depth:]]
        discount = 1 / np.log2(np.arange(2, 12))
        paid.append(sum(g * w for g, w in zip(sorted(gains, reverse=True), discount, strict=False)))
        kept.append(sum(g * w for g, w in zip(reranked, discount, strict=False)))
    paid = np.array(paid)
    return (paid - np.array(kept)) / np.maximum(paid, paid.mean())


def labelled(rewards, power):
    """A judge to whom documents are much alike, with labels that are its *rewards* to the *power*, and without any."""
    values = labels_of(rewards)
    alike = replace(rewards, values=rewards.values**0.05)
    labels = {pair: values[pair] ** power for pair in audit_sample(alike, 400)}
    return case_of(alike, labels), case_of(alike)


def test_trusted_labels_prove_what_the_judge_does_not_see():
    """Labels that are the judge's own change nothing; others raise what a small depth loses."""
    rewards = habit(200)
    scores = case_of(rewards).judged.base
    (agreeing, without), (denying, _) = (labelled(rewards, power) for power in (0.05, 2))
    unaudited = lost_by_depth(without, scores)
    more = np.array(lost_by_depth(denying, scores)) - unaudited

    assert lost_by_depth(agreeing, scores) == unaudited
    assert (more >= 0).all()
    assert more[0] > 0.01


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("depth", [10, 14])
def test_bounds_are_those_of_the_definition(ragged, depth):
    """Each bound is that of the mean loss by a loop, or of a deeper list where that is larger."""
    rewards = habit(30, depth=depth, ragged=ragged)
    offsets = 0.2 * np.random.default_rng(3).standard_normal((30, 16))
    case = case_of(rewards)
    deepest = int(np.median(rewards.depths))
    expected = [
        Gain.of(losses(rewards, offsets, d), case.voices, case.groups, typical=TYPICAL_LOST).above(CERTIFIED_LEVEL)
        for d in range(1, deepest + 1)
    ]

    lost = lost_by_depth(case, case.judged_under(offsets))

    assert len(lost) == deepest
    assert_allclose(lost, [max(expected[d:]) for d in range(deepest)], atol=1e-9)


def test_whoever_puts_the_best_first_needs_less_depth():
    """The offset that the judge's habit asks for loses less at every depth than none, and a wrong one more."""
    rewards = habit(60)
    right = np.broadcast_to(0.8 * np.eye(16)[0], (60, 16))
    by_offset = {
        name: lost_by_depth(case_of(rewards), case_of(rewards).judged_under(by * right))
        for name, by in (("right", 1), ("no", 0), ("wrong", -1))
    }

    assert by_offset["right"][2] < by_offset["no"][2] < by_offset["wrong"][2]


def test_few_queries_certify_nothing():
    perfect = habit(12, shift=0.0)
    few, many = (lost_by_depth(case_of(kind), case_of(kind).judged.base) for kind in (perfect, habit(200, shift=0.0)))

    assert few[-1] > 0.01 > many[-1]


@pytest.mark.parametrize("case", ["all bad", "all alike", "one question"])
def test_what_says_nothing_certifies_nothing(case):
    """Where every reward is the same there is no loss to measure, and a single question has no bound."""
    rewards = habit(1 if case == "one question" else 20)
    if case != "one question":
        rewards = replace(rewards, values=np.full(rewards.budget, 0.5 * (case == "all alike")))

    assert lost_by_depth(case_of(rewards), case_of(rewards).judged.base) == ()


def test_the_certificate_holds_on_other_queries():
    """Of twenty fits the certified depth loses more than is allowed on fresh queries of the same kind in one of ten."""
    broken, saved = 0, 0
    for seed in range(20):
        offsets = fit(habit(60, seed=seed), trusted=True)
        depth = offsets.depth(today=10, loss=0.03)
        fresh = habit(400, seed=1000 + seed)
        moved = offsets.apply(fresh.queries.unit) - fresh.queries.unit
        broken += losses(fresh, moved, depth).mean() > 0.03
        saved += 10 - depth

    assert saved >= 20
    assert broken <= 4


@pytest.fixture(scope="module")
def offsets():
    """What a declared judge's habit teaches."""
    return fit(habit(100), trusted=True)


class TestOffsetsThatSayIt:
    """The depth is kept with the evidence of what is served, and looked up by task."""

    def test_a_local_offset_of_a_judge(self, offsets):
        """The lookup gives the first depth whose bound is small enough; a stricter loss, a larger depth."""
        lost = offsets["local:default"].evidence.lost
        depth = offsets.depth(loss=0.02)

        assert len(lost) == 10
        assert 1 <= depth < 10
        assert lost[depth - 1] <= 0.02 < lost[depth - 2]
        assert offsets.depth(loss=0.005) >= depth

    def test_lists_that_words_sort_have_a_certificate_of_their_own(self, tmp_path):
        """It is that of the rescorer's order, also beside an offset that is withheld; a file keeps it."""
        offsets = fit(judged(120), trusted=True)
        offset = offsets["local:default"]
        certified = offset.rescorer.evidence
        assert (offset.served, len(certified.lost)) == (False, 8)
        offsets.save(tmp_path / "offsets.safetensors")
        for served in (offsets, LiveOffsets(offsets), Offsets.load(tmp_path / "offsets.safetensors")):
            assert served.depth(today=8, loss=0.05, words=True) == certified.depth(8, 0.05) < 8
            assert served.depth(today=8, loss=0.05) == 8
        assert f"sorted by words: {certified.reranking}" in offset.certified
        without = Offsets([replace(offset, rescorer=None)], width=offsets.width)
        assert without.depth(today=8, loss=0.05, words=True) == 8

    def test_nothing_is_certified_for_deeper_lists(self, offsets):
        """Verdicts on ten documents say nothing of a list that is reranked thirty deep, and all of a shorter one."""
        assert offsets.depth(today=30, loss=0.5) == 30
        assert offsets.depth(today=3, loss=1e-9) == 3

    @pytest.mark.parametrize("why", ["global", "query", "sources", "served"])
    def test_lists_that_were_not_looked_through(self, why):
        """A global offset was not tried on each task, nor private ones; users are no reranker."""
        rewards, options = habit(100), {"trusted": True}
        if why == "sources":
            rewards = replace(rewards, sources=np.array([f"user {row}" for row in range(100)]))
        elif why == "served":
            options["served"] = lambda vector, _: rewards.doc_ids[np.argsort(-(rewards.documents.unit @ vector))[:20]]
        else:
            options["scope"] = why
        offsets = fit(rewards, **options)

        assert any(offset.served for offset in offsets.values())
        assert all(offset.evidence.lost == () for offset in offsets.values())
        assert offsets.depth(today=7, loss=1.0) == 7

    def test_what_is_not_served(self):
        """A task that the gate left alone, or nobody knows, is reranked as today."""
        offsets = fit(habit(40), trusted=False)

        assert not offsets["local:default"].served
        assert (offsets.depth(), offsets.depth("unheard of", today=25)) == (10, 25)

    @pytest.mark.parametrize("lost", [(0.01, 0.02), (float("nan"),), ("none",), [0.02, 0.01]])
    def test_files_are_not_believed(self, lost):
        evidence = Evidence(3, None, None, "ungated", "made for a test", lost=lost)
        offset = Offset("task", np.ones(4), 0.5, 3, evidence, task="billing")

        with pytest.raises(InputError, match=r"numbers that never rise as evidence\.lost"):
            Offsets([offset], width=4).to_bytes()

    @pytest.mark.parametrize(
        ("wrong", "line"),
        [
            ({"today": 0}, "today: expected at least 1, got 0"),
            ({"today": "10"}, "today: expected at least 1, got '10'"),
            ({"loss": 0.0}, "loss: expected a number > 0, got 0.0"),
            ({"loss": "1%"}, "loss: expected a number > 0, got '1%'"),
            ({"task": 10}, "task: expected a text or None, got int"),
            ({"words": "yes"}, "words: expected True or False, got 'yes'"),
        ],
    )
    def test_options_that_are_none(self, wrong, line):
        """A depth below one, a loss of nothing and what is no task are refused, also where nothing is served."""
        for served in (Offsets([], width=3), LiveOffsets()):
            with pytest.raises(InputError, match=line):
                served.depth(**wrong)

    def test_of_a_task_that_nothing_was_learned_of_nothing_is_certified(self, offsets):
        """Most often its name is another one, which the offsets say."""
        assert LiveOffsets(offsets).depth("biling") == 10
        assert offsets.why_base("biling").startswith("nothing was learned of task 'biling', but of")


@pytest.mark.parametrize(
    ("verdict", "lost", "line"),
    [
        (
            "published",
            (0.2, 0.05, 0.01, 0.005, 0.003),
            "rerank 3 instead of 5: at most 0.01 nDCG@10 lost (90 %), 40% fewer pairs",
        ),
        ("published", (0.2, 0.05, 0.02), "rerank 3, as today: no less is certified"),
        ("published", (), ""),
        ("published", (0.1,), ""),
        ("abstained", (0.1, 0.0), ""),
    ],
)
def test_the_line_names_depths_loss_and_what_is_saved(verdict, lost, line):
    """Nothing is said of lists of one document, nor of what is not served or was not measured."""
    assert Evidence(9, None, None, verdict, "made up", lost=lost).reranking == line
