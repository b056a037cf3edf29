"""The fakes that we ship: they keep the contracts of the real parts, and say what they were asked."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tttembed_rag import InputError, Known, context
from tttembed_rag.adapting import Log, checked_rewards
from tttembed_rag.embedders import Embedder
from tttembed_rag.embedders.wrapped import FrameworkEmbedder
from tttembed_rag.errors import RewardError
from tttembed_rag.testing import FakeClock, FakeEmbedder, FakeJudge, FakeLog, word_overlap

TEXTS = ["wash a wool jumper", "a wool jumper", "rust on a chain", ""]


class TestJudge:
    """`FakeJudge`."""

    def test_counts_common_words(self):
        """The score is the share of the query's words; upper case and marks do not matter."""
        assert FakeJudge().score("Wash WOOL?", ["wool: how to wash it", "wool", "rust", ""]) == [1.0, 0.5, 0.0, 0.0]

    def test_fails_while_it_is_told_to(self):
        """The error is raised, the pairs are noted all the same, and the next call is answered."""
        judge = FakeJudge(error=TimeoutError("away"))
        with pytest.raises(TimeoutError, match="away"):
            judge.score("q", ["a", "b"])
        judge.error = None

        assert judge.score("q", ["q"]) == [1.0]
        assert (judge.calls, judge.asked) == (2, [("q", "a"), ("q", "b"), ("q", "q")])

    def test_scores_as_it_is_told_to(self):
        """A function of query and document, on a scale of its own; None is a document it declines."""
        judge = FakeJudge(lambda _, text: None if text == "?" else float(text), scale="rubric:0,5")

        assert judge.score("q", ["5", "?"]) == [5.0, None]
        assert checked_rewards(judge, judge.score("q", ["5", "1", "?"])) == pytest.approx(
            [1.0, 0.2, np.nan], nan_ok=True
        )
        with pytest.raises(RewardError, match="rubric:0,5"):
            checked_rewards(judge, judge.score("q", ["7"]))

    def test_a_column_of_scores_is_a_list(self):
        """As some cross-encoders give them."""
        assert checked_rewards(FakeJudge(scale="rubric:0,5"), np.array([[5.0], [0.0]])).tolist() == [1.0, 0.0]


class TestEmbedder:
    """`FakeEmbedder`."""

    def test_is_an_embedder(self):
        """Unit vectors as float32, one per text, queries and documents alike, none for none."""
        model = FakeEmbedder(24)

        queries, documents = model.embed_queries(TEXTS), model.embed_documents(TEXTS)

        assert isinstance(model, Embedder)
        assert (queries.shape, queries.dtype) == ((4, 24), np.float32)
        assert np.linalg.norm(queries, axis=1) == pytest.approx(np.ones(4))
        assert np.array_equal(queries, documents)
        assert model.embed_queries([]).shape == (0, 24)
        assert model.queries == model.documents == TEXTS

    def test_is_one_in_frameworks_too(self):
        """Its methods are those of LangChain's embeddings, with the same vectors."""
        model = FakeEmbedder()

        assert model.embed_query("wool") == model.embed_queries(["wool"])[0].tolist()
        assert np.allclose(FrameworkEmbedder(model).embed_documents(TEXTS), model.embed_documents(TEXTS))

    def test_common_words_are_near(self):
        """Texts that share more words have a larger cosine."""
        wash, wool, rust, _ = FakeEmbedder().embed_documents(TEXTS)

        assert wash @ wool > wash @ rust

    @settings(max_examples=20)
    @given(text=st.text())
    def test_any_text_has_a_vector(self, text):
        """Also one without words, with signs alone or with lone surrogates; twice the same."""
        vectors = FakeEmbedder(8).embed_documents([text, text])

        assert np.isfinite(vectors).all()
        assert np.array_equal(vectors[0], vectors[1])

    def test_vectors_are_the_same_in_every_process(self):
        """No hash of this process goes into them."""
        code = "from tttembed_rag.testing import FakeEmbedder; print(FakeEmbedder(4).embed_query('wool'))"

        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

        assert done.stdout.strip() == str(FakeEmbedder(4).embed_query("wool"))

    def test_vectors_may_be_given(self):
        """Of some texts, at unit length; all others are drawn."""
        model = FakeEmbedder(2, vectors={"east": [2, 0]})

        assert model.embed_query("east") == [1.0, 0.0]
        assert model.embed_query("north") == FakeEmbedder(2).embed_query("north")

    def test_without_width_it_is_refused(self):
        """A vector has dimensions."""
        with pytest.raises(InputError, match=r"^width: expected at least 1, got 0$"):
            FakeEmbedder(0)


class TestLog:
    """`FakeLog`."""

    def test_keeps_calls_as_they_came(self):
        """Observed and recorded, with the task and what the caller knew."""
        log, known = FakeLog(), Known(query_id="q7")
        log.observe("q", iter(["a", "b"]), task="billing", known=known)
        with context(source="ann"):
            log.record("q", ["a"], [None])
        calls = [(call.query, call.documents, call.scores, call.task, call.known, call.source) for call in log.calls]

        assert isinstance(log, Log)
        assert calls == [
            ("q", ("a", "b"), None, "billing", known, ""),
            ("q", ("a",), (None,), None, None, "ann"),
        ]

    def test_is_for_one_judge(self):
        """Rewards of two judges do not mix."""
        FakeLog().check_is_for(FakeJudge())

        with pytest.raises(InputError, match=r"^log: expected one for other, got one for fake$"):
            FakeLog().check_is_for(FakeJudge(fingerprint="other"))


def test_models_and_logs_fail_while_they_are_told_to():
    """As a service that is down, or a full disk; a log keeps nothing then."""
    log = FakeLog(error=OSError("disk full"))
    for call in (lambda: FakeEmbedder(error=OSError()).embed_query("q"), lambda: log.record("q", ["a"], [1.0])):
        with pytest.raises(OSError):  # noqa: PT011 - one without words, too
            call()

    assert log.calls == []


def test_a_clock_moves_as_somebody_sleeps():
    """Nobody waits, and every wait is noted."""
    clock = FakeClock(now=5.0)
    clock.sleep(2.5)
    clock.sleep(1.0)

    assert (clock(), clock.slept) == (8.5, [2.5, 1.0])


@given(st.text(), st.text())
def test_overlap_is_a_share(query, document):
    """In [0, 1], 1 for a text and itself where it has words."""
    assert 0.0 <= word_overlap(query, document) <= 1.0
    assert word_overlap(query, f"{document} {query}") in (0.0, 1.0)


def test_the_fakes_need_no_pytest():
    """They import where it is not installed, as after `pip install tttembed-rag`."""
    code = "import sys; sys.modules['pytest'] = None; import tttembed_rag.testing; print(tttembed_rag.testing.__all__)"

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "FakeEmbedder" in done.stdout
