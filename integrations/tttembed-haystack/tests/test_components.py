"""The components in real pipelines, with a real store: steered, recorded, saved and loaded."""

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

haystack = pytest.importorskip("haystack", reason="Haystack is not installed")

from haystack import Document, Pipeline, component  # noqa: E402
from haystack.components.embedders import MockDocumentEmbedder, MockTextEmbedder  # noqa: E402
from haystack.components.rankers import MetaFieldRanker  # noqa: E402
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever, InMemoryEmbeddingRetriever  # noqa: E402
from haystack.document_stores.in_memory import InMemoryDocumentStore  # noqa: E402
from haystack_integrations.components.connectors.tttembed import TTTRecorder  # noqa: E402
from haystack_integrations.components.embedders.tttembed import TTTTextEmbedder  # noqa: E402
from haystack_integrations.components.rankers.tttembed import TTTRanker  # noqa: E402
from tttembed_store.sql import open_store  # noqa: E402

from tttembed_rag import Evidence, InputError, Offset, Offsets, context  # noqa: E402
from tttembed_rag.errors import StoreError  # noqa: E402
from tttembed_rag.offsets.floor import Floor  # noqa: E402
from tttembed_rag.offsets.rerankskips import Skips, digest_of  # noqa: E402
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary  # noqa: E402

WIDTH = 16
TEXTS = ["wash wool cold", "boil the kettle", "river past the mill"]


def offsets_of(*, task="billing"):
    """Offsets with one vector, for one task."""
    vector = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32) / 4
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    return Offsets([Offset("task", vector, 0.9, 9, evidence, task=task)], width=WIDTH)


@pytest.fixture
def url(tmp_path):
    """The URL of a store with a live version for the task billing."""
    with open_store(f"sqlite:///{tmp_path / 'ttt.db'}") as store:
        store.registry.publish(offsets_of(), by="test")
    return f"sqlite:///{tmp_path / 'ttt.db'}"


def base_of(text):
    """The base vector of a query."""
    return MockTextEmbedder(dimension=WIDTH).run(text=text)["embedding"]


def pipeline_of(url):
    """Embed, retrieve, record."""
    documents = InMemoryDocumentStore()
    embedded = MockDocumentEmbedder(dimension=WIDTH).run([Document(content=text) for text in TEXTS])["documents"]
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

    assert answer["embedding"] == offsets_of().apply(base_of("wool"), task="billing")
    assert answer["meta"] == MockTextEmbedder(dimension=WIDTH).run(text="wool")["meta"]


def test_each_run_names_its_task(url):
    """The run's task comes before the component's, and that before the caller's; an unknown one is bit for bit."""
    fixed = TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url, task="billing")
    free = TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url)
    with context(task="billing"):
        inside = free.run("wool")

    steered = [
        answer["embedding"] != base_of("wool")
        for answer in (fixed.run("wool"), fixed.run("wool", task="other"), free.run("wool"), inside)
    ]

    assert steered == [True, False, False, True]


async def test_async_runs_give_the_same(url):
    """Through `run_async` of the wrapped embedder, and without one."""

    class Plain:
        """An embedder without async."""

        def run(self, text):
            """Its vector."""
            return {"embedding": base_of(text), "meta": {}}

    for wrapped in (MockTextEmbedder(dimension=WIDTH), Plain()):
        component = TTTTextEmbedder(wrapped, store=url, task="billing")
        assert (await component.run_async("wool"))["embedding"] == component.run("wool")["embedding"]


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

    found = pipeline.run({"embedder": {"text": "wool"}, "recorder": {"query": "wool"}})["recorder"]["documents"]
    assert pipeline.get_component("recorder").log.flush()

    steered = offsets_of().apply(np.array(base_of("wool")), task="billing")
    scores = {text: float(np.array(base) @ steered) for text, base in zip(TEXTS, map(base_of, TEXTS), strict=True)}
    assert [one.content for one in found] == sorted(TEXTS, key=scores.get, reverse=True)
    with open_store(url) as store:
        assert (store.counts().queries, store.counts().pairs, store.counts().rewards) == (1, 3, 0)


def test_a_saved_pipeline_is_the_same(url):
    """To YAML and back: the same vectors; the text names the store and holds no vector."""
    pipeline = pipeline_of(url)
    asked = {"embedder": {"text": "wool"}, "recorder": {"query": "wool"}}

    text = pipeline.dumps()
    loaded = Pipeline.loads(text)

    assert loaded.dumps() == text
    assert url in text
    embedded = [one.run(asked, include_outputs_from={"embedder"})["embedder"] for one in (loaded, pipeline)]
    assert embedded[0]["embedding"] == embedded[1]["embedding"] != base_of("wool")


def test_retrievers_that_embed_nothing_are_as_before(url):
    """A search by words never asks for a vector: the offset has no way in."""
    documents = InMemoryDocumentStore()
    documents.write_documents([Document(content=text) for text in TEXTS])

    with context(task="billing"):
        found = InMemoryBM25Retriever(documents).run("wool")["documents"]

    assert found[0].content == TEXTS[0]  # by the release of Haystack, texts without the word follow


def test_scores_of_a_ranker_become_rewards(url):
    """With a judge named, `Document.score` is its score on the declared scale; documents without one are left out."""
    documents = [Document(content=text, score=score) for text, score in zip(TEXTS, (0.0, 3.0, None), strict=True)]
    recorder = TTTRecorder(url, judge="ranker", scale="logit")

    answer = recorder.run("wool", documents, task="billing", tenant="acme", embedding=base_of("wool"))
    assert recorder.log.flush()

    assert answer["documents"] is documents
    with open_store(url) as store:
        ids = [store.text_id(text) for text in ("wool", *TEXTS)]
        verdicts = store.history.verdicts("acme", judge="ranker", query_ids=[ids[0]])
        assert verdicts == {(ids[0], ids[1]): 0.5, (ids[0], ids[2]): pytest.approx(0.952574)}
        assert store.trusted("ranker")


def test_who_rated_documents_is_kept(url):
    """Two users rate one document of one query: both ratings reach the fit."""
    recorder = TTTRecorder(url, judge="user feedback", fingerprint="e")
    for user, score in (("ann", 1.0), ("eve", 0.0)):
        rated = [Document(content=TEXTS[0], score=score, embedding=base_of(TEXTS[0]))]
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


def test_bad_arguments_are_refused(url):
    """One line says what was expected; a password never gets into a saved pipeline."""
    embedder = MockTextEmbedder(dimension=WIDTH)
    with pytest.raises(InputError, match="embedder: expected one without offsets"):
        TTTTextEmbedder(TTTTextEmbedder(embedder, store=url), store=url)
    with pytest.raises(InputError, match="store: expected no password"):
        TTTTextEmbedder(embedder, store="postgresql://me:secret@host/name")
    with pytest.raises(InputError, match="store: expected no password"):
        TTTRecorder("postgresql://me:secret@host/name")


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
    def store(self, tmp_path):
        """A store whose task billing has a rescorer that counts shared words ten times as much as similarity."""
        evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
        rescorer = Rescorer(np.array([1.0, 10.0, 0.0, 0.0]), Vocabulary.of(TEXTS), evidence)
        unserved = Evidence(9, None, None, "abstained", "")
        local = Offset("local", np.zeros(WIDTH), 0.0, 9, unserved, task="billing", rescorer=rescorer)
        url = f"sqlite:///{tmp_path / 'words.db'}"
        with open_store(url) as opened:
            opened.registry.publish(Offsets([local], width=WIDTH), by="test")
        return url

    def test_in_a_pipeline_that_is_saved_and_loaded(self, store):
        """Embed, retrieve, rank: the document that shares words with the query comes first."""
        pipeline = pipeline_of(store)
        pipeline.add_component("ranker", TTTRanker(store=store, task="billing", top_k=2))
        pipeline.connect("retriever", "ranker")
        again = Pipeline.loads(pipeline.dumps())
        for query in ("the kettle", "past the mill", "cold wool"):
            run = {"embedder": {"text": query}, "ranker": {"query": query}, "recorder": {"query": query}}
            found = again.run(run)["ranker"]["documents"]
            assert len(found) == 2
            assert set(query.split()) - {"the"} <= set(found[0].content.split())

    @pytest.mark.parametrize(("cut", "kept"), [(0.99, 0), (1e-6, len(TEXTS))])
    def test_nothing_is_left_where_nothing_fits(self, tmp_path, cut, kept):
        """Above the floor scores are how likely documents are relevant; a saved pipeline keeps the option."""
        floor = Floor((0.0, 1.0, 0.0, 0.0, 0.0), np.zeros((1, 4)), 0.0, 60, (cut,), 1.0, (cut,), (0.04,))
        unsure = Evidence(9, None, None, "abstained", "made for a test")
        offset = Offset("local", np.zeros(4), 0.0, 9, unsure, task="default", floor=floor)
        Offsets([offset], width=4).save(path := tmp_path / "offsets.safetensors")
        ranker = TTTRanker.from_dict(TTTRanker(store=str(path), floor=0.05).to_dict())
        documents = [Document(content=text, score=0.9 - place / 10) for place, text in enumerate(TEXTS)]
        found = ranker.run("past the mill", documents)["documents"]

        assert len(found) == kept
        assert all(0.5 < document.score < 0.75 for document in found)

    def test_another_task_keeps_the_order(self, store):
        """So do documents without scores."""
        ranker = TTTRanker(store=store)
        documents = [Document(content=text, score=1.0 - place / 10) for place, text in enumerate(TEXTS)]
        assert ranker.run("past the mill", documents)["documents"] == documents
        assert ranker.run("past the mill", documents, task="billing", top_k=1)["documents"] == [documents[2]]
        unscored = [Document(content=text) for text in TEXTS]
        assert ranker.run("past the mill", unscored, task="billing")["documents"] == unscored
        with pytest.raises(InputError, match="top_k: expected at least 1, got 0"):
            TTTRanker(store=store, top_k=0)
        with pytest.raises(InputError, match="top_k: expected at least 1, got -1"):
            ranker.run("past the mill", documents, top_k=-1)

    def test_a_ranker_behind_it_is_asked_where_the_first_leads_by_little(self, store, monkeypatch):
        """Its verdicts sort the list; where words lead nobody is asked, but about the tenth that is explored."""
        monkeypatch.setattr("tttembed_rag.serving.cascade.secrets.token_bytes", bytes)  # which are not these two
        with open_store(store) as opened:
            (local,) = opened.serving().version.offsets.values()
            certified = replace(local, skips=Skips((5.0,), (0.001,), 60, (digest_of(TEXTS[2]),)))
            opened.registry.publish(Offsets([certified], width=WIDTH, settings={"judge": "vowels"}), by="test")
        ranker = TTTRanker(store=store, task="billing", ranker=Vowels(), judge="vowels")
        documents = [Document(content=text, score=1.0 - place / 10) for place, text in enumerate(TEXTS)]

        sure = ranker.run("past the mill", documents)["documents"]
        asked = ranker.run("zzz", documents)["documents"]
        assert sure[0] == documents[2]
        assert [one.content for one in asked] == sorted(TEXTS, key=lambda text: -vowels(text))

    def test_verdicts_of_a_ranker_behind_it_are_its_tenants(self, store):
        """Nothing is certified for the task yet: all of them are kept, by the ranker's name."""
        ranker = TTTRanker(store=store, task="legal", tenant="acme", ranker=Vowels(), judge="vowels")
        documents = [Document(content=text, score=1.0 - place / 10) for place, text in enumerate(TEXTS)]
        ranker.run("zzz", documents)
        ranker._sorter.cascade._verdicts.close()

        with open_store(store) as opened:
            kept = {tenant: opened.counts(tenant=tenant).rewards for tenant in ("acme", "")}
        assert kept == {"acme": len(TEXTS), "": 0}

    def test_a_ranker_behind_it_is_saved_and_needs_a_name(self, store):
        """A pipeline keeps the ranker with its settings; verdicts of nobody could not be told from others'."""
        pipeline = Pipeline()
        ranker = TTTRanker(store=store, ranker=MetaFieldRanker(meta_field="year"), judge="newest", scale="logit")
        pipeline.add_component("ranker", ranker)
        again = Pipeline.loads(pipeline.dumps()).get_component("ranker")

        assert isinstance(again.ranker, MetaFieldRanker)
        assert (again.ranker.meta_field, again.judge, again.scale) == ("year", "newest", "logit")
        for half in ({"ranker": MetaFieldRanker(meta_field="year")}, {"judge": "newest"}):
            with pytest.raises(InputError, match="ranker, judge: expected a ranker and its name, or neither, got "):
                TTTRanker(store=store, **half)
        for wrong in (Vowels, "cohere:rerank-v3.5"):
            with pytest.raises(InputError, match="ranker: expected a ranker of Haystack, with run, got "):
                TTTRanker(store=store, ranker=wrong, judge="newest")

    def test_a_ranker_that_leaves_documents_out_is_told(self, store, caplog):
        """Once: what it leaves out keeps its place, as nobody knows what it is worth."""
        ranker = TTTRanker(store=store, task="billing", ranker=Vowels(top_k=2), judge="vowels")
        documents = [Document(content=text, score=1.0 - place / 10) for place, text in enumerate(TEXTS)]
        for query in ("one", "two"):
            ranker.run(query, documents)
        assert caplog.text.count(f"ranker: expected {len(TEXTS)} documents, got 2: raise its top_k") == 1


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
        ranked = [replace(one, score=vowels(one.content)) for one in documents]
        return {"documents": sorted(ranked, key=lambda one: -one.score)[: self.top_k]}


def test_each_run_names_its_tenant(url):
    """The run's tenant comes before the component's: it is not served what another one has."""
    with open_store(url) as store:
        store.registry.publish(offsets_of(), by="test", tenant="acme")
        store.registry.publish(offsets_of(task="other"), by="test", tenant="beta")
    of_acme = TTTTextEmbedder(MockTextEmbedder(dimension=WIDTH), store=url, task="billing", tenant="acme")

    assert of_acme.run("wool")["embedding"] != base_of("wool")
    assert of_acme.run("wool", tenant="beta")["embedding"] == base_of("wool")
