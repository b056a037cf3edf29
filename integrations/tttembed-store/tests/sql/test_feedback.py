"""What anybody says of documents stands beside what the application recorded, and never in its place."""

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store.sql import Candidate, Served, schema

from tttembed_rag.rewards.observations import MAX_DEPTH
from tttembed_rag.testing import FakeEmbedder

JUDGE = "user feedback"


def query(*documents, text="a question", query_id="q", source="", reward=None, embedder=""):
    """A query with documents, each an id or an id and a text."""
    named = [document if isinstance(document, tuple) else (document, "") for document in documents]
    shown = [Candidate(doc_id, text=text, reward=reward) for doc_id, text in named]
    return Served(query_id, None, shown, text, source=source, embedder=embedder)


def spoken(*documents, source="eve", **facts):
    """The same with a thumb of a source for each document."""
    return query(*documents, source=source, reward=1.0, **facts)


def waiting(store):
    """The texts of each query that waits for a judge, with those of its documents."""
    queue = store.judge_queue.waiting("judge")
    return {served.query: [candidate.text for candidate in served.candidates] for served in queue}


def documents_of(store, source):
    """The documents of which a source has a reward."""
    d, s = schema.documents.c, schema.rewards.c
    with store._database.read() as connection:
        names = select(d.name).join_from(schema.documents, schema.rewards, s.document == d.id)
        return {*connection.execute(names.where(s.source == source)).scalars()}


class TestJudging:
    """What a judge is paid for: pairs that the application recorded, with texts that it recorded."""

    def test_what_feedback_brought_waits_for_no_judge(self, store):
        """Neither texts that it brings itself, nor documents that a query was not shown."""
        store.observe([query(("a", "text of a")), query(("b", "text of b"), text="another", query_id="r")])
        waiting(store)  # from now on pairs are counted as they come
        store.feedback([spoken(("x", "a lure"), text="a lure", query_id="lure"), spoken("b")], judge=JUDGE)

        assert waiting(store) == {"a question": ["text of a"], "another": ["text of b"]}

    def test_what_the_application_records_waits_whoever_named_it_before(self, store):
        """With the texts and the place that the application gave."""
        waiting(store)
        store.feedback([spoken(("b", "a lure"), ("a", "a lure"), text="a lure")], judge=JUDGE)
        store.observe([query(("a", "text of a"), ("b", "text of b"))])

        assert waiting(store) == {"a question": ["text of a", "text of b"]}

    @pytest.mark.parametrize("first", ["feedback", "application"])
    def test_a_text_that_feedback_brought_is_not_the_applications(self, store, first):
        """Where the application records a document without a text, no judge reads another's."""
        waiting(store)
        write = {
            "feedback": lambda: store.feedback([spoken(("a", "a lure"))], judge=JUDGE),
            "application": lambda: store.observe([query("a", ("b", "text of b"))]),
        }
        for who in sorted(write, key=lambda who: who != first):
            write[who]()

        assert waiting(store) == {"a question": ["text of b"]}


class TestRoom:
    """The 200 candidates of a query."""

    def test_sources_share_the_room(self, store):
        """Whoever names as many documents as there is room for silences nobody who speaks later."""
        store.feedback([spoken(*(f"junk {number}" for number in range(MAX_DEPTH)))], judge=JUDGE)
        kept = [store.feedback([spoken("a", "b", source=name)], judge=JUDGE) for name in ("ann", "bob")]
        last = store.feedback([spoken(*(f"more {number}" for number in range(MAX_DEPTH)))], judge=JUDGE)

        assert (*kept, last) == ([2], [2], [MAX_DEPTH - 2])
        assert [documents_of(store, name) for name in ("ann", "bob")] == [{"a", "b"}] * 2
        assert documents_of(store, "eve") == {f"more {number}" for number in range(MAX_DEPTH - 2)}

    def test_requests_of_one_transaction_share_it_too(self, store):
        """Each is told how many of its rewards were written."""
        junk = [spoken(*(f"{flood} {number}" for number in range(MAX_DEPTH))) for flood in range(3)]

        kept = store.feedback([*junk, spoken("a", source="ann")], judge=JUDGE)

        assert (sum(kept), kept[-1]) == (MAX_DEPTH, 1)
        assert documents_of(store, "ann") == {"a"}

    def test_what_the_application_recorded_keeps_its_place(self, store):
        """Feedback pushes none of it out, also where the application needs the room for more."""
        own = [f"own {number}" for number in range(MAX_DEPTH)]
        store.observe([query(*own[:150], reward=0.5)], judge="judge")
        store.feedback([spoken(*(f"junk {number}" for number in range(60)))], judge=JUDGE)
        store.observe([query(*own[150:190], reward=0.5)], judge="judge")

        assert len(store.history.verdicts("", judge="judge")) == 190
        assert len(documents_of(store, "eve")) == 10


class TestVectors:
    """A vector is of a text."""

    @pytest.mark.parametrize("before", ["feedback", "observe"])
    def test_a_text_that_is_replaced_takes_its_vectors_along(self, store, before):
        """Whether the application changes its own text, or somebody else named the id first."""
        model, own = FakeEmbedder(fingerprint="m"), [query(("a", "right text"), text="right query")]
        other = [spoken(("a", "wrong text"), text="wrong query")]
        store.feedback(other, judge=JUDGE) if before == "feedback" else store.observe(other, judge=JUDGE)
        store.vectors.fill(model, "m")
        store.observe(own)
        lacking = store.vectors.lacking("m").texts
        store.vectors.fill(model, "m")

        assert lacking == 2
        assert vectors_of(store) == [model.embed_query("right query"), *model.embed_documents(["right text"]).tolist()]

    def test_vectors_that_come_with_a_text_stay(self, store):
        """Those of another model, which were of the text before, go."""
        for text, model in (("old", "m"), ("new", "n")):
            shown = [Candidate("a", np.full(2, 1.0), text)]
            store.observe([Served("q", np.full(2, 1.0), shown, text, embedder=model)])

        assert [store.vectors.lacking(model).texts for model in ("m", "n")] == [2, 0]

    def test_a_vector_is_not_written_for_a_text_that_came_meanwhile(self, store):
        """Embedding takes its time: what is changed by then is embedded the next time."""

        class Slow(FakeEmbedder):
            def embed_queries(self, texts):
                store.observe([query(text="right query")])
                return super().embed_queries(texts)

        store.observe([query(text="wrong query")])

        assert store.vectors.fill(Slow(fingerprint="m"), "m").texts == 1


def vectors_of(store):
    """The vectors of all queries and documents."""
    tables = schema.query_vectors, schema.document_vectors
    with store._database.read() as connection:
        packed = [row for table in tables for row in connection.execute(select(table.c.vector)).scalars()]
    return [np.frombuffer(row, "<f4").tolist() for row in packed]
