"""Rewards that follow the length of documents, or the order in which they were found, are told."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from tttembed_rag import Rewards
from tttembed_rag.judging.biases import spearman, warnings_of


def judged(values_of, n=40, *, seed=0):
    """Rewards of eight documents of each query, by a function of similarity, length and noise; and the lengths."""
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((n, 16))
    documents = queries[:, None] + 1.5 * rng.standard_normal((n, 8, 16))
    similarity = np.vecdot(documents / np.linalg.norm(documents, axis=-1, keepdims=True), queries[:, None])
    similarity /= np.linalg.norm(queries, axis=-1, keepdims=True)
    lengths = rng.integers(20, 2000, (n, 8))
    values = values_of(similarity, lengths, rng.random((n, 8)))
    rewards = Rewards.from_arrays(queries, documents, np.clip(values, 0, 1))
    return rewards, dict(zip(rewards.doc_ids.tolist(), lengths.ravel().tolist(), strict=True))


def test_the_correlation_is_spearmans():
    """Within each query, ties included, as SciPy has it."""
    rewards, lengths = judged(lambda _, length, noise: np.round(0.5 * noise + length / 4000, 1), 5)
    feature = np.array([lengths[name] for name in rewards.doc_ids.tolist()], dtype=float)[rewards.candidates]

    expected = [
        spearmanr(rewards.values[8 * row : 8 * row + 8], feature[8 * row : 8 * row + 8]).statistic for row in range(5)
    ]

    np.testing.assert_allclose(spearman(rewards, feature), expected)


@pytest.mark.parametrize(("sign", "word"), [(1, "longer"), (-1, "shorter")])
def test_a_judge_of_length_is_told(sign, word):
    """However well it reads the length, with some noise."""
    [line] = warnings_of(*judged(lambda _, length, noise: 0.5 + sign * (length / 4000 - 0.25) + 0.2 * noise))

    assert line.startswith(f"rewards follow the length of documents, {word} is better (Spearman's correlation within")


def test_clicks_on_what_stood_first_are_told():
    """Rewards that repeat base order are named, with the correlation."""
    [line] = warnings_of(*judged(lambda similarity, _, __: similarity))

    assert line.startswith("rewards repeat the order in which documents were found (Spearman's correlation within")


@pytest.mark.parametrize("known", [True, False])
def test_a_judge_that_counts_words_is_told(known):
    """Rewards that all but repeat how many words a document shares with its query; not where a text is missing."""
    rng = np.random.default_rng(0)
    shared = np.stack([rng.permutation(8) for _ in range(40)])
    rewards, _ = judged(lambda _, __, noise: shared / 10 + 0.02 * noise)
    texts = [" ".join(f"Word{word}," for word in range(count)) for count in shared.ravel()]
    documents = dict(zip(rewards.doc_ids.tolist(), texts, strict=True))
    queries = dict.fromkeys(rewards.query_ids.tolist() if known else [], " ".join(f"word{word}" for word in range(8)))
    lines = warnings_of(rewards, texts=lambda _: (queries, documents))

    assert [line.partition(" (")[0] for line in lines] == [
        "rewards repeat how many words documents share with their query"
    ] * known


@pytest.mark.parametrize("seed", range(5))
def test_a_judge_that_reads_is_not(seed):
    """It agrees with similarity, if not always, and a little with length."""
    judge = judged(lambda similarity, length, noise: similarity + 0.5 * noise + length / 20_000, seed=seed)

    assert warnings_of(*judge) == []


def test_a_little_of_length_is_not():
    """A correlation that is weak is no warning, also where rewards hardly follow similarity."""
    judge = judged(lambda similarity, length, noise: 0.3 + noise / 2 + length / 25_000 - similarity / 10, 400)

    assert warnings_of(*judge) == []


def test_noise_and_few_queries_are_not():
    """Rewards at random follow nothing; nine queries say nothing."""
    assert warnings_of(*judged(lambda _, __, noise: noise)) == []
    assert warnings_of(*judged(lambda _, length, __: length / 2000, 9)) == []


def test_without_texts_only_base_order_is_looked_at():
    """Where a length is missing, lengths say nothing."""
    rewards, lengths = judged(lambda _, length, __: length / 2000)

    assert warnings_of(rewards) == []
    assert warnings_of(rewards, dict(list(lengths.items())[1:])) == []
