"""A setting of the application's own search: chosen by verdicts, published under the same gate."""

from dataclasses import replace

import numpy as np
import pytest

from tests.test_words import corpus, judged, questions
from tttembed_rag import InputError, tune
from tttembed_rag.gate.tuning import Tuned
from tttembed_rag.offsets.codes import COMPARE, FALLS, MEANS, PUBLISHED
from tttembed_rag.vectors.bm25 import words

VECTORS, TEXTS = corpus()


def fused(weight, vector, text):
    """A search that adds to the similarity a *weight* for each word that a document shares with the query."""
    near = VECTORS @ (vector / np.linalg.norm(vector))
    shared = np.array([len({*words(text)} & {*words(document)}) for document in TEXTS])
    return [str(row) for row in np.argsort(-(near + weight * shared), kind="stable").tolist()]


def test_the_weight_that_verdicts_prefer_is_published():
    """It is better on queries that it was not chosen by, and on others."""
    chosen = tune(judged(), fused, (0.0, 0.5, -0.5), trusted=True)
    assert (chosen.setting, chosen.evidence.code) == (0.5, PUBLISHED)
    assert chosen.evidence.gain > 0.05
    assert chosen.evidence.interval[0] > 0
    queries, wording, wanted = questions(VECTORS, 60, seed=5)
    first = {
        weight: np.mean(
            [fused(weight, *query)[0] == str(row) for *query, row in zip(queries, wording, wanted, strict=True)]
        )
        for weight in (0.0, chosen.setting)
    }
    assert first[chosen.setting] > first[0.0] + 0.1


@pytest.mark.parametrize("trusted", [True, None])
def test_todays_setting_stays_where_no_other_is_better(trusted):
    """Harmful weights are never chosen, whoever vouches."""
    chosen = tune(judged(), fused, (0.0, -0.5), trusted=trusted)
    assert (chosen.setting, chosen.evidence.verdict, chosen.evidence.code) == (0.0, "abstained", FALLS.code)


def test_rewards_that_nobody_vouches_for_choose_nothing():
    """By chance some weight is the best of a worthless judge's."""
    rewards = judged()
    rng = np.random.default_rng(0)
    worthless = replace(rewards, values=rng.permutation(rewards.values))
    chosen = tune(worthless, fused, (0.0, 0.5, -0.5))
    assert (chosen.setting, chosen.evidence.code) == (0.0, MEANS.code)
    equal = tune(replace(rewards, values=np.full(rewards.budget, 0.5)), fused, (0.0, 0.5))
    assert (equal.setting, equal.evidence.code) == (0.0, COMPARE.code)


def test_documents_that_nobody_judged_count_as_nothing():
    """A search that puts unknown documents first is no better for it, whatever it does to the others."""

    def crowded(weight, vector, text):
        return [f"new {place}" for place in range(round(20 * weight))] + fused(weight, vector, text)

    assert tune(judged(), crowded, (0.0, 0.5), trusted=True).setting == 0.0


def test_a_setting_in_front_of_a_reranker_counts_by_what_it_brings():
    """A list that is turned round brings it as much."""

    def tuned(step, **settings):
        def brought(weight, vector, text):
            return fused(weight, vector, text)[:2][::step]

        return tune(judged(), brought, (0.0, 0.5), trusted=True, **settings)

    assert tuned(-1, reranked=True).setting == 0.5
    assert tuned(-1, reranked=True).evidence.gain == tuned(1, reranked=True).evidence.gain
    assert tuned(-1).evidence.gain != tuned(1).evidence.gain


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"settings": (0.5,)}, "settings: expected today's and at least one more, got 1"),
        ({"settings": ()}, "settings: expected today's and at least one more, got 0"),
        ({"settings": 0.5}, "settings: expected a list with today's first, got 0.5"),
        ({"settings": {0.0, 0.5}}, "settings: expected a list with today's first, got "),
        ({"search": [0.0, 0.5]}, "search: expected a function of a setting, a vector and a text, got list"),
        ({"search": lambda *_: ["elsewhere"]}, "your search: expected ids such as "),
        ({"search": lambda *_: [{"id": "0"}]}, "your search: expected a list of ids of documents, got "),
        ({"search": lambda *_: 1 // 0}, "your search: expected a list of ids of documents, got ZeroDivisionError"),
        ({"rewards": [("query", "document", 1.0)]}, "rewards: expected Rewards"),
        ({"trusted": "yes"}, "trusted: expected True or False, got 'yes'"),
        ({"reranked": "no"}, "reranked: expected True or False, got 'no'$"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(options, line):
    with pytest.raises(InputError, match=f"^{line}"):
        tune(**{"rewards": judged(), "search": fused, "settings": (0.0, 0.5), "trusted": True} | options)


def test_the_result_is_a_setting_with_its_evidence():
    """Anything may be a setting, also names."""
    chosen = tune(
        judged(), lambda name, *query: fused({"as it is": 0.0, "words": 0.5}[name], *query), ("as it is", "words")
    )
    assert isinstance(chosen, Tuned)
    assert chosen.setting == "words"
    assert str(chosen).startswith("'words': published: +")
