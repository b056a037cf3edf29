"""A floor: likelihoods that mean what they say, an exact bound, kept in a file, and served as an empty list."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.stats import beta

from tttembed_rag import InputError, LiveOffsets, Offsets, Rewards, Steering, fit
from tttembed_rag.errors import VectorError
from tttembed_rag.offsets.floor import Floor, knowledge
from tttembed_rag.offsets.rescorer import Vocabulary
from tttembed_rag.serving import first_floor

WIDTH, DOCUMENTS, DEPTH = 48, 400, 10
NO_SHARES = (0, 1, -0.1, "all")
WORDS = [f"word{number}" for number in range(DOCUMENTS)]


@cache
def world():
    """Documents, and queries of which each has one document in most lists, on one side of the space."""
    draw = np.random.default_rng(0)
    documents = draw.normal(size=(DOCUMENTS, WIDTH)) + 0.5
    noise = draw.uniform(0.3, 1.6, size=(DOCUMENTS, 1))
    queries = documents + noise * draw.normal(size=(DOCUMENTS, WIDTH))
    strangers = draw.normal(size=(100, WIDTH)) - 0.5
    return tuple((rows / np.linalg.norm(rows, axis=1, keepdims=True)) for rows in (queries, documents, strangers))


def listed(queries):
    """Rows and cosines of the ten nearest documents of each."""
    cosines = queries @ world()[1].T
    rows = np.argsort(-cosines, axis=1)[:, :DEPTH]
    return rows, np.take_along_axis(cosines, rows, axis=1)


def texts(rows):
    return [f"about {WORDS[row]} and more" for row in rows]


def judged(count=150, **options):
    """Rewards of the first queries: 1 for their own document, 0 for others."""
    queries, documents, _ = world()
    rows, _ = listed(queries[:count])
    values = (rows == np.arange(count)[:, None]).astype(float)
    names = [f"what of {word}?" for word in WORDS[:count]]
    return Rewards.from_indexed(
        queries[:count], documents, list(rows), list(values), query_texts=names, doc_texts=texts(range(DOCUMENTS)),
        **options,
    )  # fmt: skip


@cache
def learned():
    return fit(judged(), trusted=True)


def likely(offsets, queries, names):
    """The relevance of what a search finds, a row for each query."""
    steered = offsets.apply(queries)
    rows, cosines = listed(steered / np.linalg.norm(steered, axis=1, keepdims=True))
    each = zip(queries, names, rows, cosines, strict=True)
    relevance = [offsets.relevance(scores, vector=v, query=q, texts=texts(own)) for v, q, own, scores in each]
    return np.array(relevance), rows


def test_a_floor_refuses_strangers_and_keeps_answers():
    """Of queries that nobody judged few lose an answer, and most of those of another kind are refused."""
    queries, _, strangers = world()
    own, rows = likely(learned(), queries[150:], [f"what of {word}?" for word in WORDS[150:]])
    answered = (rows == np.arange(150, DOCUMENTS)[:, None]).any(axis=1)
    others, _ = likely(learned(), strangers, ["who goes there?"] * 100)
    floor = learned().floor()

    assert (own.max(axis=1) < floor)[answered].mean() <= 0.08
    assert (others.max(axis=1) < floor).mean() >= 0.9


def test_relevance_is_a_probability():
    queries, _, _ = world()
    relevance, rows = likely(learned(), queries[150:], [f"what of {word}?" for word in WORDS[150:]])
    right = rows == np.arange(150, DOCUMENTS)[:, None]
    bins = np.minimum((relevance * 10).astype(int), 9)

    assert sum(abs((relevance - right)[bins == of].sum()) for of in range(10)) / right.size <= 0.05


def test_the_bound_is_that_of_clopper_and_pearson():
    """The k-th cut is certified where, at the bound, so few of n below it have a probability of a tenth."""
    floor = learned().certificate()

    expected = [beta.ppf(0.9, refused + 1, floor.n - refused) for refused in range(len(floor.lost))]
    np.testing.assert_allclose(floor.lost, expected, rtol=1e-9)


@pytest.mark.parametrize(("lost", "cut", "cosine"), [(0.05, 0.2, 0.5), (0.01, None, None), (0.2, 0.3, 0.6)])
def test_a_cut_is_the_highest_that_loses_no_more(lost, cut, cosine):
    """Where less may be lost than any cut is certified for, there is none, and it says what is missing."""
    floor = Floor((0.0,) * 5, np.zeros((1, 2)), 0.0, 60, (0.1, 0.2, 0.3), 1.0, (0.4, 0.5, 0.6), (0.03, 0.05, 0.08))

    assert (floor.cut(lost), floor.cosine(lost=lost)) == (cut, cosine)
    assert floor.sentence(0.01) == "no floor: 170 more judged questions certify one"
    assert floor.sentence(0.05) == (
        "nothing fits below a relevance of 0.2, by the cosine alone 0.5: "
        "at most 5% of own requests that have an answer are refused (90 %)"
    )


@pytest.mark.parametrize(("without", "phrase"), [(75, "that have an answer"), (120, "with an answer or without,")])
def test_questions_without_an_answer_certify_nothing(without, phrase):
    """What is lost is a share of the requests that have an answer; only where these are too few, of all requests."""
    rewards = judged()
    values = np.array(rewards.values).reshape(150, DEPTH)
    values[:without] = 0.0
    floor = fit(replace(rewards, values=values.ravel()), trusted=True).certificate()
    answered = int((values.max(axis=1) == 1.0).sum())

    assert floor.n == (answered if answered >= 45 else 150)
    assert phrase in floor.sentence()


def test_the_cosine_alone_keeps_answers_too():
    """For a search that knows nothing but the vector, few that have an answer lie below it, and strangers do."""
    refused, answered = {}, np.ones(DOCUMENTS, dtype=bool)
    for kind, queries in (("own", world()[0]), ("strangers", world()[2])):
        steered = learned().apply(queries)
        rows, cosines = listed(steered / np.linalg.norm(steered, axis=1, keepdims=True))
        cuts = [learned().certificate().cosine(query) for query in queries]
        refused[kind] = cosines[:, 0] < cuts
        if kind == "own":
            answered = (rows == np.arange(DOCUMENTS)[:, None]).any(axis=1)

    assert refused["own"][150:][answered[150:]].mean() <= 0.08
    assert refused["strangers"].mean() >= 0.9


def test_a_query_unlike_own_ones_must_find_more():
    """The cosine below which nothing fits rises with its distance, and by nothing for what is nearer than they are."""
    floor = Floor((0.0,) * 5, np.array([[0.6, 0.0]]), 0.5, 60, (0.1,), 2.0, (0.4,), (0.04,))

    cuts = [floor.cosine(np.array(vector)) for vector in ((1.0, 0.0), (0.5, 0.75**0.5), (0.0, 3.0))]
    assert cuts == pytest.approx([0.4, 0.4 + 2 * 0.2, 0.4 + 2 * 0.5])
    assert floor.cosine() == 0.4


def test_words_are_covered_by_their_rarity():
    """A rare word of the query counts more than a frequent one; of a query without words nothing is covered."""
    known = Vocabulary.of(["the fox", "the hen", "the dog"])
    covered = knowledge(known, "the fox", ["the hen", "a fox", "the fox"], [0.3, 0.2, 0.1])[:, 2]

    assert covered[0] < covered[1] < covered[2] == 1
    assert knowledge(known, "?", ["the hen"], [0.3])[0, 2] == 0


def test_without_a_judge_that_somebody_vouches_for_there_is_no_floor():
    """Votes of sources and a judge that nobody believes say nothing of answers; too few questions certify nothing."""
    votes = judged(60, sources=[f"user {row}" for row in range(60)])

    assert fit(votes).certificate() is None
    assert fit(judged(60), trusted=False).certificate() is None
    assert fit(judged(40), trusted=True).floor() is None
    assert fit(judged(40), trusted=True).certificate().missing() == 5


def test_a_judge_that_repeats_the_order_of_the_retriever_has_a_floor():
    """There is nothing to learn for an offset, and all to know of what has an answer."""
    rewards = judged(100)
    best = np.arange(DEPTH) == 0
    repeating = replace(
        rewards, values=np.where(np.tile(best, 100), rewards.values.reshape(100, DEPTH).max(axis=1).repeat(DEPTH), 0.0)
    )
    offsets = fit(repeating, trusted=True)

    assert offsets.find() is None
    assert offsets.floor() is not None


def test_own_requests_alone_refuse_strangers_on_day_one():
    """Without a verdict at most one in twenty own requests is refused, and most of another kind."""
    queries, _, strangers = world()
    names = [f"what of {word}?" for word in WORDS]
    rows, cosines = listed(queries[:150])
    own = [(name, texts(of), scores) for name, of, scores in zip(names, rows, cosines, strict=False)]
    offsets = first_floor(queries[:150], own)
    refused = {
        kind: (likely(offsets, rows, wording)[0].max(axis=1) < offsets.floor()).mean()
        for kind, rows, wording in (("own", queries[150:], names[150:]), ("others", strangers, ["who goes?"] * 100))
    }

    assert refused["own"] <= 0.07
    assert refused["others"] >= 0.8
    assert "own requests, with an answer or without, are refused" in offsets.certificate().sentence()


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": (0.0, 1.0)},
        {"weights": (np.nan,) * 5},
        {"centre": np.zeros((1, 3))},
        {"centre": np.full((1, WIDTH), np.inf)},
        {"lowest": (0.5, 0.1), "cosines": (0.1, 0.5), "lost": (0.01, 0.02)},
        {"lowest": (0.1, 0.5), "cosines": (0.5, 0.1), "lost": (0.01, 0.02)},
        {"lowest": (0.5,), "cosines": (), "lost": ()},
        {"lowest": (), "cosines": (0.5,), "lost": ()},
        {"n": -1},
    ],
)
def test_numbers_that_are_no_floor_are_refused(changes):
    local = learned()["local:default"]

    with pytest.raises((InputError, VectorError), match=r"^(offsets|'local:default'): expected"):
        Offsets([replace(local, floor=replace(local.floor, **changes))], width=WIDTH).to_bytes()


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: learned().relevance([0.1, np.nan]), "scores: expected finite numbers"),
        (lambda: learned().relevance([0.1], query="a"), "query, texts: expected both or neither"),
        (lambda: learned().relevance([0.1], query="a", texts=["a", "b"]), "scores: expected 2, one per text"),
        (lambda: learned().relevance([0.1], vector=[1.0, 2.0]), "X: expected shape"),
        *((lambda lost=lost: learned().floor(lost=lost), "lost: expected a number > 0 and < 1") for lost in NO_SHARES),
    ],
)
def test_what_is_wrong_is_one_line(call, line):
    with pytest.raises((InputError, VectorError), match=f"^{line}"):
        call()


def test_a_request_says_that_nothing_fits():
    """The base vector of the request counts; what is no cosine is known of nothing."""
    queries, _, strangers = world()
    steering = Steering(LiveOffsets(learned()))
    refused = []
    for vector, query in ((queries[200], "what of word200?"), (strangers[0], "who goes there?")):
        request = steering.request(query)
        steered = np.array(request.vector(vector))
        rows, cosines = listed(steered[None] / np.linalg.norm(steered))
        refused.append(request.refuses(request.relevance(texts(rows[0]), cosines[0].tolist()), 0.05))

    assert refused == [False, True]
    assert request.relevance(["a", "b"], [3.0, 7.0]) is None
    assert not request.refuses(None, 0.05)
