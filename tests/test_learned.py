"""The front door: an embedding model and a reranker in, one sentence out."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from tttembed_rag import InputError, Learned, context
from tttembed_rag.cli import main
from tttembed_rag.errors import RewardError
from tttembed_rag.evaluate.files import write_beir
from tttembed_rag.testing import FakeEmbedder, FakeJudge, word_overlap

TOPICS = [f"{noun} {where}" for noun in ("refunds", "invoices", "backups", "payments") for where in "abcdefghij"]
PAGES = [f"{kind} on {topic}" for topic in [*TOPICS, "taxes"] for kind in ("manual", "guide with examples")]
QUESTIONS = [f"how do {topic} work" for topic in TOPICS]
TAXES = "how do taxes work"


def embed(texts):
    """A function of the user's own; documents and queries alike."""
    return FakeEmbedder().embed_documents(texts)


def rerank(query, texts):
    """A reranker that prefers guides on what was asked."""
    return [0.9 if "guide" in text and text.split(" on ")[1] in query else 0.1 for text in texts]


def made(reranker=rerank, **options):
    return Learned(embed, reranker, **{"k": 6, **options})


@pytest.fixture
def learned():
    """One that was asked all questions."""
    ttt = made()
    ttt.ask(QUESTIONS, ttt.documents(PAGES))
    return ttt


def first(ttt, question):
    """The first page for a question, by the vectors that it is searched with."""
    return PAGES[int(np.argmax(embed(PAGES) @ ttt.embeddings([question])[0]))]


class TestSentences:
    """What `learn` says."""

    def test_it_is_served_with_a_figure_and_who_vouches(self, learned):
        """The evidence of what is served has the same figure."""
        conclusion = learned.learn()
        evidence = learned.live.current["local:default"].evidence

        assert (conclusion.decision, conclusion.evidence) == ("served", evidence)
        assert re.fullmatch(
            r"served: \+\.\d{3} nDCG@10 \[\+\.\d{3}, \+\.\d{3}\] on 40 held-out queries; "
            r"rerank 1 instead of 6; vouched for by your reranker",
            str(conclusion),
        )

    def test_nothing_is_to_gain_where_the_search_is_right_already(self):
        ttt = made(lambda query, texts: embed(texts) @ embed([query])[0] / 2 + 0.5)
        ttt.ask(QUESTIONS, ttt.documents(PAGES))

        assert str(ttt.learn()) == "nothing to gain: your search already sorts these documents as they were judged"
        with context(task="rare"):
            ttt.ask(QUESTIONS[:3], ttt.documents(PAGES))
        assert str(ttt.learn()).endswith("sorts these documents as they were judged; of the largest of 2 tasks")

    def test_not_yet_says_what_would_change_it(self):
        """One document of each question tells nothing."""
        ttt = made(k=1)
        ttt.ask(QUESTIONS, ttt.documents(PAGES))

        assert str(ttt.learn()) == (
            "not yet: it takes more questions, each with several documents that differ; "
            "one candidate of each was judged [TTT-G01]"
        )

    def test_of_several_tasks_it_is_about_the_largest(self, learned):
        with context(task="rare"):
            learned.ask(QUESTIONS[:3], learned.documents(PAGES))

        assert "; of the largest of 2 tasks" in str(learned.learn())

    def test_where_nothing_was_judged_the_cause_is_said(self):
        """Scores that are no probabilities need a scale."""
        ttt = made(lambda _, texts: [7.0] * len(texts))
        ttt.reranker("q", ["a", "b"])

        with pytest.raises(
            RewardError, match=r"^rewards: expected a judged document, got none .*; scores were refused: "
        ):
            ttt.learn()


class TestServing:
    """What stands where the user's own stood."""

    def test_queries_find_what_the_reranker_prefers(self, learned):
        """Nobody asked about taxes; before, vectors are those of the model, bit for bit."""
        before = learned.embeddings([TAXES])
        page = first(learned, TAXES)
        learned.learn()

        assert before.tolist() == embed([TAXES]).tolist()
        assert (page, first(learned, TAXES)) == ("manual on taxes", "guide with examples on taxes")

    def test_what_is_reranked_is_learned_from(self):
        """Scores come as they are."""
        ttt = made()
        search = ttt.documents(PAGES)
        scores = [ttt.reranker(question, search(question)) for question in QUESTIONS]

        assert scores == [rerank(question, search(question)) for question in QUESTIONS]
        assert ttt.learn().decision == "served"

    def test_scores_off_their_scale_cost_a_line(self, caplog):
        ttt = made(lambda _, texts: [7.0] * len(texts))

        assert ttt.reranker("q", ["a", "b"]) == [7.0, 7.0]
        assert "scored documents were not recorded" in caplog.text

    def test_what_was_saved_is_served_and_learned_from_again(self, learned, tmp_path):
        conclusion = learned.learn()
        learned.save(tmp_path / "kept")
        loaded = Learned.load(tmp_path / "kept", embed, rerank)

        assert loaded.embeddings([TAXES])[0].tolist() == pytest.approx(learned.embeddings([TAXES])[0], abs=1e-6)
        assert loaded.learn() == conclusion

    def test_another_model_of_the_same_width_is_refused(self, learned, tmp_path):
        learned.learn()
        learned.save(tmp_path)

        with pytest.raises(InputError, match=r"^offsets: .*: they were learned for another embedding model$"):
            Learned.load(tmp_path, lambda texts: np.roll(embed(texts), 1, axis=1), rerank)


class TestAsking:
    """Questions without traffic."""

    def test_no_pair_is_judged_twice(self):
        judge = FakeJudge()
        ttt = made(judge)
        for _ in range(2):
            ttt.ask(QUESTIONS[:3], ttt.documents(PAGES))

        assert len(judge.asked) == 18

    def test_a_budget_ends_it(self):
        judge = FakeJudge()
        ttt = made(judge)
        verdicts = ttt.ask(QUESTIONS, ttt.documents(PAGES), budget="pairs=9")

        assert (verdicts.progress.pairs, len(judge.asked)) == (9, 9)

    def test_what_is_no_search_is_refused(self):
        with pytest.raises(InputError, match=r"^search: expected a function from a question to documents, got list$"):
            made().ask(QUESTIONS, PAGES)


@pytest.mark.parametrize(
    ("model", "reranker", "line"),
    [
        (7, rerank, r"^embedder: expected int to be a function from texts to vectors"),
        (embed, 7, r"^judge: expected an object with score"),
        ("nothing:x", rerank, r"^embedder: expected"),
    ],
)
def test_what_is_neither_model_nor_reranker_is_refused(model, reranker, line):
    with pytest.raises(InputError, match=line):
        Learned(model, reranker)


def test_a_judge_says_its_scale_itself():
    """A rubric's grades are rewards without a word of the user."""
    ttt = made(FakeJudge(lambda query, text: 5 * word_overlap(query, text), scale="rubric:0,5"))
    ttt.reranker("refunds a", ["refunds a", "b"])

    assert [row[2] for row in ttt.log.rows()] == [1.0, 0.0]


class TestCommand:
    """`tttembed try`: the same sentence of files; of logs see `tests/adapters/test_learned.py`."""

    @pytest.fixture
    def tried(self, monkeypatch):
        """Runs it with a model of the user's own; gives what it prints, and how it ends."""
        monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(embedder=FakeEmbedder(), judge=FakeJudge()))

        def run(*arguments):
            result = CliRunner().invoke(main, ["try", *map(str, arguments), "--embed", "python:mine:embedder"])
            return result.stdout.strip(), result.exit_code, result.stderr

        return run

    def test_verdicts_that_were_saved_give_the_lesson_that_was_printed(self, learned, tried, tmp_path):
        learned.save(tmp_path)
        file = tmp_path / "verdicts.jsonl"
        printed, *_ = tried(file, "--trusted", "--json")

        assert tried(file, "--trusted")[0] == str(learned.learn())
        assert json.loads(printed)["evidence"]["gain"] == pytest.approx(learned.learn().evidence.gain, abs=1e-6)

    def test_a_folder_is_searched_and_judged_under_a_budget(self, tried, tmp_path):
        """Its page is that of `tttembed eval`."""
        corpus = [(f"d{i}", "", page) for i, page in enumerate(PAGES)]
        queries = {f"q{i}": question for i, question in enumerate(QUESTIONS)}
        write_beir(tmp_path, corpus, queries, {f"q{i}": {f"d{2 * i + 1}": 1.0} for i in range(len(QUESTIONS))})
        page = tmp_path / "page.html"
        printed, code, errors = tried(tmp_path, "--judge", "python:mine:judge", "--budget", "pairs=90", "--html", page)

        assert (code, printed[:6] in ("served", "not ye", "nothin")) == (0, True), errors
        assert "judged: 90 of 90 pairs" in errors
        assert "<html" in page.read_text(encoding="utf-8")

    def test_votes_need_no_judge(self, tried, tmp_path):
        file = tmp_path / "votes.csv"
        file.write_text("query,document,thumb\nq,a,1\nq,b,-1\n", encoding="utf-8")
        _, code, errors = tried(file, "--judge", "python:mine:judge")

        assert code == 2
        assert "--judge: expected a log or a folder, got" in errors
        assert tried(file)[0].startswith("not yet: it takes more questions")


def test_what_was_saved_before_anything_was_judged_is_loaded(tmp_path):
    """As of a service that ends before its first question."""
    made().save(tmp_path)

    assert Learned.load(tmp_path, embed, rerank).log.rows() == []


@pytest.mark.parametrize("questions", [QUESTIONS, []])
def test_vectors_are_of_the_shape_and_precision_of_the_model(learned, questions):
    learned.learn()
    vectors, base = learned.embeddings(questions), embed(questions)

    assert (vectors.shape, vectors.dtype) == (base.shape, base.dtype)
