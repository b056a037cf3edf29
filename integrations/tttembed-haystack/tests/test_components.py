"""The components in real pipelines, with a real store: steered, recorded, saved and loaded."""

import os
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

haystack = pytest.importorskip("haystack", reason="Haystack is not installed")

from haystack import Document, Pipeline, component  # noqa: E402
from haystack.components.embedders import MockDocumentEmbedder, MockTextEmbedder  # noqa: E402
from haystack.components.rankers import MetaFieldRanker  # noqa: E402
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever  # noqa: E402
from haystack.document_stores.in_memory import InMemoryDocumentStore  # noqa: E402
from haystack_integrations.components.connectors.tttembed import TTTRecorder  # noqa: E402
from haystack_integrations.components.embedders.tttembed import TTTTextEmbedder  # noqa: E402
from haystack_integrations.components.rankers.tttembed import TTTRanker  # noqa: E402
from tttembed_store.sql import open_store  # noqa: E402

from tests.adapters.worlds import BILLING, PAGES, WIDTH, of_words  # noqa: E402
from tests.traffic import published  # noqa: E402
from tttembed_rag import InputError, Offsets, context  # noqa: E402
from tttembed_rag.errors import StoreError  # noqa: E402
from tttembed_rag.offsets.rerankskips import Skips, digest_of  # noqa: E402


@pytest.fixture
def url(sqlite_url):
    """The URL of a store with a live version for the task billing."""
    return published(sqlite_url, BILLING)


def base_of(text):
    """The base vector of a query."""
    return MockTextEmbedder(dimension=WIDTH).run(text=text)["embedding"]


def hits(texts):
    """Documents as a retriever gives them."""
    return [Document(content=text, score=1.0 - place / 10) for place, text in enumerate(texts)]


def pipeline_of(url):
    """Embed, retrieve, record."""
    documents = InMemoryDocumentStore()
    embedded = MockDocumentEmbedder(dimension=WIDTH).run([Document(content=text) for text in PAGES])["documents"]
    documents.write_documents(embedded)
    pipeline = Pipeline()
    pipeline.add_component("embedder", TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url, task="billing"))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(documents))
    pipeline.add_component("recorder", TTTRecorder(url, task="billing"))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    pipeline.connect("retriever", "recorder")
    return pipeline


def test_a_query_is_steered(url):
    """The vector has the offset of its task; the rest of the answer is the wrapped embedder's."""
    answer = TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url).run("wool", task="billing")

    assert answer["embedding"] == BILLING.apply(base_of("wool"), task="billing")
    assert answer["meta"] == MockTextEmbedder(dimension=WIDTH).run(text="wool")["meta"]


async def test_the_task_of_a_run_comes_before_that_of_the_component(url):
    """Sync and async; an unknown one is bit for bit."""
    steered = TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url, task="billing")

    assert (await steered.run_async("wool"))["embedding"] == steered.run("wool")["embedding"] != base_of("wool")
    assert (await steered.run_async("wool", task="other"))["embedding"] == base_of("wool")
    assert steered.run("wool", task="other")["embedding"] == base_of("wool")


async def test_an_embedder_without_async_holds_up_no_event_loop(url):
    """It is run in a thread, as Haystack itself does with such components."""

    class Plain:
        """An embedder without async that says where it ran."""

        def run(self, text):
            """Its vector."""
            return {"embedding": base_of(text), "meta": {"thread": threading.get_ident()}}

    answer = await TTTTextEmbedder(Plain(), store=url).run_async("wool")

    assert answer["meta"]["thread"] != threading.get_ident()


def test_a_pipeline_steers_and_records(url):
    """Documents keep their vectors, the search is the steered one, and the store has what was shown."""
    pipeline = pipeline_of(url)

    documents = pipeline.run({"embedder": {"text": "wool"}, "recorder": {"query": "wool"}})["recorder"]["documents"]
    assert pipeline.get_component("recorder").log.flush()

    steered = BILLING.apply(np.array(base_of("wool")), task="billing")
    scores = {text: float(np.array(base) @ steered) for text, base in zip(PAGES, map(base_of, PAGES), strict=True)}
    assert [document.content for document in documents] == sorted(PAGES, key=scores.get, reverse=True)
    with open_store(url) as store:
        assert (store.counts().queries, store.counts().pairs, store.counts().rewards) == (1, 3, 0)


def test_a_saved_pipeline_is_the_same(url):
    """To YAML and back: the same vectors; the text names the store and holds no vector."""
    pipeline = pipeline_of(url)
    inputs = {"embedder": {"text": "wool"}, "recorder": {"query": "wool"}}

    text = pipeline.dumps()
    loaded = Pipeline.loads(text)

    assert loaded.dumps() == text
    assert url in text
    vectors = [
        either.run(inputs, include_outputs_from={"embedder"})["embedder"]["embedding"] for either in (loaded, pipeline)
    ]
    assert vectors[0] == vectors[1] != base_of("wool")


def test_scores_of_a_ranker_become_rewards(url):
    """With a judge named, `Document.score` is its score on the declared scale; documents without one are left out."""
    documents = [Document(content=text, score=score) for text, score in zip(PAGES, (0.0, 3.0, None), strict=True)]
    recorder = TTTRecorder(url, judge="ranker", scale="logit")

    answer = recorder.run("wool", documents, task="billing", tenant="acme", embedding=base_of("wool"))
    assert recorder.log.flush()

    assert answer["documents"] is documents
    with open_store(url) as store:
        ids = [store.text_id(text) for text in ("wool", *PAGES)]
        verdicts = store.history.verdicts("acme", judge="ranker", query_ids=[ids[0]])
        assert verdicts == {(ids[0], ids[1]): 0.5, (ids[0], ids[2]): pytest.approx(0.952574)}
        assert store.trusted("ranker")


def test_who_rated_documents_is_kept(url):
    """Two users rate one document of one query: both ratings reach the fit."""
    recorder = TTTRecorder(url, judge="user feedback", fingerprint="e")
    for user, score in (("ann", 1.0), ("eve", 0.0)):
        rated = [Document(content=PAGES[0], score=score, embedding=base_of(PAGES[0]))]
        with context(source=user):
            recorder.run("wool", rated, embedding=base_of("wool"), source=None)
    assert recorder.log.flush()

    with open_store(url) as store:
        rewards = store.rewards("user feedback")
        assert dict(zip(rewards.sources.tolist(), rewards.values.tolist(), strict=True)) == {"ann": 1.0, "eve": 0.0}
        assert rewards.trusted is None


@pytest.mark.parametrize(
    "component_of",
    [
        lambda url: TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url),
        lambda url: TTTRanker(store=url),
        lambda url: TTTRanker(store=url, ranker=MetaFieldRanker("meta"), judge="meta"),
    ],
    ids=["embedder", "ranker", "ranker with a judge"],
)
def test_who_serves_refuses_a_file_that_is_not_there(component_of, tmp_path):
    """A mistyped name is told before the first query, and makes no store."""
    path = tmp_path / "typo.db"

    with pytest.raises(StoreError, match="expected a store, found no file"):
        component_of(f"sqlite:///{path}").warm_up()
    assert not path.exists()


def test_who_records_costs_nothing_where_its_folder_is_not_there(tmp_path, caplog):
    """The documents as they came, and a line in the log."""
    recorder = TTTRecorder(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'ttt.db'}")
    documents = [Document(content="a")]

    shown = recorder.run("wool", documents)["documents"]
    recorder.log.close(timeout=0.1)

    assert shown is documents
    assert "nothing can be written until its folder is there" in caplog.text


@pytest.mark.parametrize("make", [partial(TTTTextEmbedder, MockTextEmbedder(dimension=WIDTH)), TTTRecorder, TTTRanker])
def test_a_password_is_refused(make):
    """It would get into a saved pipeline."""
    with pytest.raises(InputError, match="store: expected no password"):
        make(store="postgresql://me:secret@host/name")


def test_a_variable_names_the_store(url, monkeypatch):
    """`env:NAME` is looked up where it is used, and only the name is saved."""
    monkeypatch.setenv("MY_STORE", url)
    component = TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store="env:MY_STORE", task="billing")

    assert component.run("wool")["embedding"] != base_of("wool")
    assert component.to_dict()["init_parameters"]["store"] == "env:MY_STORE"
    assert os.environ["MY_STORE"] == url


class TestRanker:
    """Sorted by what verdicts taught of words."""

    @pytest.fixture
    def store(self, sqlite_url):
        """A store whose task billing has a rescorer that counts shared words ten times as much as similarity."""
        return published(sqlite_url, Offsets([of_words("billing", PAGES)], width=WIDTH))

    def test_in_a_pipeline_that_is_saved_and_loaded(self, store):
        """Embed, retrieve, rank: the document that shares words with the query comes first."""
        pipeline = pipeline_of(store)
        pipeline.add_component("ranker", TTTRanker(store=store, task="billing", top_k=2))
        pipeline.connect("retriever", "ranker")
        again = Pipeline.loads(pipeline.dumps())
        for query in ("the kettle", "past the mill", "cold wool"):
            run = {"embedder": {"text": query}, "ranker": {"query": query}, "recorder": {"query": query}}
            first, _ = again.run(run)["ranker"]["documents"]
            assert set(query.split()) - {"the"} <= set(first.content.split())

    def test_a_run_names_its_task_and_how_many_are_kept(self, store):
        """Documents without scores stand as they came."""
        ranker = TTTRanker(store=store)
        documents = hits(PAGES)
        assert ranker.run("past the mill", documents)["documents"] == documents
        assert ranker.run("past the mill", documents, task="billing", top_k=1)["documents"] == [documents[2]]
        unscored = [Document(content=text) for text in PAGES]
        assert ranker.run("past the mill", unscored, task="billing")["documents"] == unscored
        with pytest.raises(InputError, match="top_k: expected at least 1, got 0"):
            TTTRanker(store=store, top_k=0)
        with pytest.raises(InputError, match="top_k: expected at least 1, got -1"):
            ranker.run("past the mill", documents, top_k=-1)

    def test_a_ranker_behind_it_is_asked_where_the_first_leads_by_little(self, store, monkeypatch):
        """Its verdicts sort the list; where words lead nobody is asked, but about the tenth that is explored."""
        monkeypatch.setattr("tttembed_rag.serving.cascade.secrets.token_bytes", bytes)  # which are not these two
        certified = replace(of_words("billing", PAGES), skips=Skips((5.0,), (0.001,), 60, (digest_of(PAGES[2]),)))
        published(store, Offsets([certified], width=WIDTH, settings={"judge": "vowels"}))
        ranker = TTTRanker(store=store, task="billing", ranker=Vowels(), judge="vowels")
        documents = hits(PAGES)

        sure = ranker.run("past the mill", documents)["documents"]
        reranked = ranker.run("zzz", documents)["documents"]
        assert sure[0] == documents[2]
        assert [document.content for document in reranked] == sorted(PAGES, key=lambda text: -vowels(text))

    def test_verdicts_of_a_ranker_behind_it_are_its_tenants(self, store):
        """Nothing is certified for the task yet: all of them are kept, by the ranker's name."""
        ranker = TTTRanker(store=store, task="legal", tenant="acme", ranker=Vowels(), judge="vowels")
        ranker.run("zzz", hits(PAGES))
        ranker._sorter.cascade._verdicts.close()

        with open_store(store) as opened:
            kept = {tenant: opened.counts(tenant=tenant).rewards for tenant in ("acme", "")}
        assert kept == {"acme": len(PAGES), "": 0}

    def test_a_ranker_behind_it_is_saved_and_needs_a_name(self, store):
        """A pipeline keeps the ranker with its settings; verdicts of nobody could not be told from others'."""
        pipeline = Pipeline()
        ranker = TTTRanker(
            store=store, ranker=MetaFieldRanker(meta_field="year"), judge="newest", scale="logit", floor=0.05
        )
        pipeline.add_component("ranker", ranker)
        again = Pipeline.loads(pipeline.dumps()).get_component("ranker")

        assert isinstance(again.ranker, MetaFieldRanker)
        assert (again.ranker.meta_field, again.judge, again.scale, again.floor) == ("year", "newest", "logit", 0.05)
        for half in ({"ranker": MetaFieldRanker(meta_field="year")}, {"judge": "newest"}):
            with pytest.raises(InputError, match="ranker, judge: expected a ranker and its name, or neither, got "):
                TTTRanker(store=store, **half)
        for wrong in (Vowels, "cohere:rerank-v3.5"):
            with pytest.raises(InputError, match="ranker: expected a ranker of Haystack, with run, got "):
                TTTRanker(store=store, ranker=wrong, judge="newest")

    def test_a_ranker_that_leaves_documents_out_is_told(self, store, caplog):
        """Once: what it leaves out keeps its place, as nobody knows what it is worth."""
        ranker = TTTRanker(store=store, task="billing", ranker=Vowels(top_k=2), judge="vowels")
        for query in ("one", "two"):
            ranker.run(query, hits(PAGES))
        assert caplog.text.count(f"ranker: expected {len(PAGES)} documents, got 2: raise its top_k") == 1


def vowels(text):
    """The share of letters that are vowels."""
    return sum(letter in "aeiou" for letter in text) / len(text)


@component
class Vowels:
    """A ranker that likes vowels."""

    def __init__(self, top_k=10):
        self.top_k = top_k

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document]):
        """The documents with their share of vowels, best first."""
        ranked = [replace(document, score=vowels(document.content)) for document in documents]
        return {"documents": sorted(ranked, key=lambda document: -document.score)[: self.top_k]}


def test_each_run_names_its_tenant(url):
    """The run's tenant comes before the component's: it is not served what another one has."""
    published(url, BILLING, tenant="acme")
    published(url, Offsets([], width=WIDTH), tenant="beta")
    of_acme = TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url, task="billing", tenant="acme")

    assert of_acme.run("wool")["embedding"] != base_of("wool")
    assert of_acme.run("wool", tenant="beta")["embedding"] == base_of("wool")
