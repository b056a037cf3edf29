"""Rewards of texts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tttembed_store import open_store

from tttembed_rag import InputError, Offsets, Rewards, fit
from tttembed_rag.errors import EmbedderError, RewardError
from tttembed_rag.testing import FakeEmbedder

MODEL = FakeEmbedder(width=16)
ROWS = [
    ("reset my password", "how to reset a password", 1.0),
    ("reset my password", "our refund policy", 0.0),
    ("money back", "our refund policy", 1.0, "billing"),
    ("money back", "how to reset a password", 0.2, "billing"),
    ("money back", "how to reset a password", 0.4, "billing"),
]


def of(rows, **options):
    model = {"embed_query": embed_query, "embed_documents": MODEL.embed_documents}
    return Rewards.from_texts(rows, **model | options)


def embed_query(text):
    """One query at a time, as embedding models of frameworks are asked."""
    return MODEL.embed_queries([text])[0]


class TestFromTexts:
    """Rows of query, document, reward and perhaps a task."""

    def test_rows_become_rewards(self):
        """Vectors are the model's, a query's id is its text, the task of rows without one is the default task."""
        texts = []

        def embed_documents(documents):
            texts.append(list(documents))
            return MODEL.embed_documents(documents)

        rewards = of(ROWS, judge="people", embed_documents=embed_documents)

        assert rewards.query_ids.tolist() == ["reset my password", "money back"]
        assert rewards.tasks.tolist() == ["default", "billing"]
        assert rewards.values.tolist() == pytest.approx([1.0, 0.0, 1.0, 0.3])
        assert rewards.judge == "people"
        assert_allclose(rewards.query_vectors[1], embed_query("money back"))
        documents = MODEL.embed_documents(["our refund policy", "how to reset a password"])
        assert_allclose(rewards.doc_vectors[rewards.candidates[2:]], documents)
        assert texts == [["how to reset a password", "our refund policy"]]
        assert repr(rewards) == "Rewards(2 queries of 2 tasks, 4 pairs, width 16, people)"

    @pytest.mark.parametrize(
        ("scale", "best", "worst", "expected"), [("rubric:0,5", 5, 1, [1.0, 0.2]), ("rubric:-1,1", 1, -1, [1.0, 0.0])]
    )
    def test_a_scale_is_declared(self, scale, best, worst, expected):
        assert of([("q", "a", best), ("q", "b", worst)], scale=scale).values.tolist() == expected

    def test_swapped_columns_are_asked_about(self, caplog):
        """Rows of (document, query, reward) are taken as they stand, and one line asks whether they are swapped."""
        of([(document, query, reward) for query, document, reward in ROWS[:2]] + [("a third", "money back", 1.0)])

        [line] = [record.getMessage() for record in caplog.records]
        assert line == ("feedback: each of 3 queries has one document, of 2 in all: are queries and documents swapped?")

    def test_sources_have_rows_of_their_own(self):
        """Two users may say different things of one document; the mean is of one source alone."""
        rows = [("q", "a", 1.0, "", "ann"), ("q", "a", 0.0, "", "ben"), ("q", "a", 0.5, "", "ben"), ("q", "b", 0.1)]
        rewards = of(rows)

        assert rewards.sources.tolist() == ["ann", "ben", ""]
        assert rewards.tasks.tolist() == ["default"] * 3
        assert rewards.values.tolist() == [1.0, 0.25, 0.1]

    def test_offsets_carry_the_embedding_model(self, tmp_path):
        """From the rewards, through a part of them and a fit, to a file of offsets and a version of a store."""
        rewards = of(ROWS, embedder="model-a")
        offsets = fit(rewards.take(np.array([1])))
        offsets.save(tmp_path / "offsets.safetensors")

        read = Offsets.load(tmp_path / "offsets.safetensors")
        assert read.settings["embedder"] == "model-a"
        assert "embedder" not in fit(of(ROWS)).settings
        with open_store(f"sqlite:///{tmp_path / 'ttt.db'}") as store:
            assert store.registry.publish(read, by="me").embedder == "model-a"
            assert store.registry.publish(read, by="me", embedder="model-b").embedder == "model-b"

    def test_documents_that_begin_alike_have_ids_of_their_own(self, tmp_path):
        """An id is how the text begins, whichever others begin so: the folder that is written is read again."""
        page, ending = "a page " * 12, ["1", "2", " #2"]
        texts = [page + end for end in ending] + [f"{page[:80]} #2", "another page"]
        rewards = of([("q", text, value) for text, value in zip(texts, (0.1, 0.3, 0.5, 0.7, 0.9), strict=True)])
        rewards.to_parquet(tmp_path / "set")
        read = Rewards.from_parquet(tmp_path / "set")

        assert rewards.doc_ids[[0, -1]].tolist() == [page[:80], "another page"]
        assert len(set(rewards.doc_ids.tolist())) == len(texts)
        values = dict(zip(read.doc_ids[read.candidates].tolist(), read.values.tolist(), strict=True))
        assert [values[name] for name in rewards.doc_ids.tolist()] == [0.1, 0.3, 0.5, 0.7, 0.9]

    @pytest.mark.parametrize(
        ("rows", "error", "message"),
        [
            ([], RewardError, "expected at least one row, got none"),
            (
                [("q", "d")],
                InputError,
                r"expected \(query, document, reward\[, task\[, source\]\]\), got \('q', 'd'\) at row 0",
            ),
            (["text"], InputError, "got 'text' at row 0"),
            ([("q", "d", 1), ("q", "", 1)], InputError, "expected texts .* at row 1"),
            ([{"q": "q", "d": "d", "r": 1}], InputError, r"\(query, document, .*got \{'q': 'q', .* at row 0"),
            ([("q", "d", "good")], InputError, "expected a number as reward, got 'good' at row 0"),
            ([("q", "a", 5), ("q", "b", 1)], RewardError, r"\[0, 1\]"),
            # The line says on which scale thumbs are.
            ([("q", "a", 1), ("q", "b", -1)], RewardError, "of thumbs -1 and 1 rubric:-1,1"),
        ],
    )
    def test_what_is_no_row_is_named(self, rows, error, message):
        with pytest.raises(error, match=message):
            of(rows)

    @pytest.mark.parametrize(
        ("name", "function", "message"),
        [
            ("embed_query", lambda: None, r"embed_query: expected one vector \(d,\) .* got TypeError: .*takes 0"),
            ("embed_query", lambda _: [[1.0, 2.0]], r"got shape \(1, 2\)"),
            ("embed_query", lambda text: [1.0] * len(text), "embed_query: expected vectors of one width, got 10, 17"),
            ("embed_documents", lambda _: ["a", "b"], r"embed_documents: expected vectors \(2, d\) .*, got dtype <U1"),
            ("embed_documents", lambda _: [[1.0]], r"for a list of 2 texts, got shape \(1, 1\)"),
            ("embed_documents", lambda texts: texts[5], r"got IndexError \(.*\.py:\d+\): list index out of range"),
        ],
    )
    def test_an_embedding_function_that_is_wrong_is_named(self, name, function, message):
        """With what it was called with, what was expected and what came."""
        with pytest.raises(EmbedderError, match=message):
            of(ROWS, **{name: function})
