"""Each host in its own way: queries steered, documents bit for bit, and what it saves opened again."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest
from tttembed_store import open_store

from tttembed_rag import Evidence, InputError, Offset, Offsets, context
from tttembed_rag.testing import FakeEmbedder

DOCUMENTS = ["wash wool cold", "boil the kettle", "river past the mill"]
WIDTH = 16
FAKE = FakeEmbedder(width=WIDTH)


def offsets_of(width=WIDTH, *, task=None, seed=0):
    """Offsets with one vector, for all tasks or one."""
    vector = np.random.default_rng(seed).normal(size=width).astype(np.float32) / 4
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    return Offsets([Offset("global" if task is None else "task", vector, 0.9, 9, evidence, task=task)], width=width)


def vector_of(text):
    return np.asarray(FAKE.embed_query(text), np.float32)


def in_a_new_process(code, *arguments):
    """What a fresh interpreter prints."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def published(sqlite_url):
    """The URL of a store with a live version for the task billing."""
    with open_store(sqlite_url) as store:
        store.registry.publish(offsets_of(task="billing"), by="test")
    return sqlite_url


@pytest.fixture
def of_acme(sqlite_url):
    """The URL of a store with a live version of the tenant acme."""
    with open_store(sqlite_url) as store:
        store.registry.publish(offsets_of(), by="test", tenant="acme")
    return sqlite_url


class TestPydanticAI:
    """`TTTEmbeddingModel` under a real `Embedder`."""

    @pytest.fixture
    def wrapped(self):
        """A model of Pydantic AI that knows the vectors of texts."""
        embeddings = pytest.importorskip("pydantic_ai.embeddings", reason="Pydantic AI is not installed")
        from pydantic_ai.embeddings.result import EmbeddingResult

        class Model(embeddings.EmbeddingModel):
            """Word vectors."""

            @property
            def model_name(self):
                """Its name."""
                return "words"

            @property
            def system(self):
                """Whose it is."""
                return "test"

            async def embed(self, inputs, *, input_type, settings=None):
                """A vector each."""
                inputs, settings = self.prepare_embed(inputs, settings)
                vectors = [vector_of(text).tolist() for text in inputs]
                return EmbeddingResult(
                    vectors, inputs=inputs, input_type=input_type, model_name="words", provider_name="test"
                )

        return Model()

    def test_queries_are_steered_and_documents_are_not(self, wrapped):
        """The role is an argument of every call."""
        from pydantic_ai import Embedder
        from tttembed_hosts.pydantic_ai import TTTEmbeddingModel

        embedder = Embedder(TTTEmbeddingModel(wrapped, offsets=offsets_of(), task="billing"))

        query = asyncio.run(embedder.embed_query("wool"))
        several = asyncio.run(embedder.embed_query(["wool", "tea"]))
        documents = asyncio.run(embedder.embed_documents(DOCUMENTS))

        expected = [offsets_of().apply(vector_of(text).tolist()) for text in ("wool", "tea")]
        assert query.embeddings == expected[:1]
        assert several.embeddings == expected
        assert documents.embeddings == [vector_of(text).tolist() for text in DOCUMENTS]
        assert (query.model_name, query.inputs) == ("words", ["wool"])

    def test_the_context_of_the_caller_holds(self, wrapped):
        """Without a task of its own, the model serves that of the caller."""
        from tttembed_hosts.pydantic_ai import TTTEmbeddingModel

        model = TTTEmbeddingModel(wrapped, offsets=offsets_of(task="billing"))

        async def asked():
            with context(task="billing"):
                inside = await model.embed("wool", input_type="query")
            return inside, await model.embed("wool", input_type="query")

        inside, outside = asyncio.run(asked())

        assert inside.embeddings[0] != outside.embeddings[0] == vector_of("wool").tolist()

    def test_documents_embedded_as_queries_are_steered(self, wrapped):
        """The trap: what a tool embeds as a query is a query; the wrapped model has the base vector."""
        from tttembed_hosts.pydantic_ai import TTTEmbeddingModel

        model = TTTEmbeddingModel(wrapped, offsets=offsets_of())

        steered = asyncio.run(model.embed(DOCUMENTS, input_type="query")).embeddings
        base = asyncio.run(model.wrapped.embed(DOCUMENTS, input_type="query")).embeddings

        assert all(one != other for one, other in zip(steered, base, strict=True))

    def test_wrapping_twice_is_refused(self, wrapped):
        """An offset is added once."""
        from tttembed_hosts.pydantic_ai import TTTEmbeddingModel

        with pytest.raises(InputError, match="wrapped: expected a model without offsets"):
            TTTEmbeddingModel(TTTEmbeddingModel(wrapped, offsets=offsets_of()), offsets=offsets_of())


LANCE = """
import os, sys
import lancedb, numpy as np
from lancedb.embeddings import TextEmbeddingFunction, register
from tttembed_rag.testing import FakeEmbedder
import tttembed_hosts.lancedb

@register("words")
class Words(TextEmbeddingFunction):
    width: int
    def ndims(self):
        return self.width
    def generate_embeddings(self, texts):
        return [np.asarray(FakeEmbedder(width=self.width).embed_query(text), np.float32) for text in texts]

table = lancedb.connect(sys.argv[1]).open_table("manuals")
(found,) = table.search("wool").limit(1).to_list()
print(found["_distance"])
print(table.schema.metadata[b"embedding_functions"].decode().replace("\\n", ""), flush=True)
# A thread of LanceDB aborts, now and then, an interpreter that comes to its end.
os._exit(0)
"""


class TestLanceDB:
    """The registered function with a real table on disk."""

    @pytest.fixture
    def words(self):
        """An embedding function of LanceDB that knows the vectors of texts."""
        embeddings = pytest.importorskip("lancedb.embeddings", reason="LanceDB is not installed")
        if "words" not in embeddings.get_registry()._functions:

            @embeddings.register("words")
            class Words(embeddings.TextEmbeddingFunction):
                width: int

                def ndims(self):
                    return self.width

                def generate_embeddings(self, texts):
                    return [vector_of(text) for text in texts]

        return embeddings.get_registry()

    @pytest.fixture
    def table(self, words, published, tmp_path):
        """A table whose rows were added and are searched by text."""
        import lancedb
        import tttembed_hosts.lancedb  # noqa: F401 - importing it registers the function
        from lancedb.pydantic import LanceModel, Vector

        function = words.get("tttembed").create(
            inner="words", options={"width": WIDTH}, store=published, task="billing"
        )

        class Manual(LanceModel):
            text: str = function.SourceField()
            vector: Vector(WIDTH) = function.VectorField()

        table = lancedb.connect(tmp_path / "lance").create_table("manuals", schema=Manual)
        table.add([{"text": text} for text in DOCUMENTS])
        return table

    def test_rows_keep_base_vectors_and_searches_are_steered(self, table):
        """What was added is the inner function's, bit for bit; the nearest row is that of the steered vector."""
        rows = table.to_arrow().to_pylist()
        (found,) = table.search("wool").limit(1).to_list()

        query = offsets_of(task="billing").apply(vector_of("wool"), task="billing")
        distances = {text: float(((vector_of(text) - query) ** 2).sum()) for text in DOCUMENTS}
        assert [row["vector"] for row in rows] == [vector_of(text).tolist() for text in DOCUMENTS]
        assert found["text"] == min(distances, key=distances.get)
        assert found["_distance"] == pytest.approx(min(distances.values()), rel=1e-4)

    def test_a_search_by_vector_is_as_before(self, table):
        (found,) = table.search(vector_of(DOCUMENTS[0])).limit(1).to_list()

        assert (found["text"], found["_distance"]) == (DOCUMENTS[0], 0.0)

    @pytest.mark.slow
    def test_another_process_opens_the_table(self, table, published, tmp_path):
        """It searches with the same offsets; the table names the store, and holds no vector of an offset."""
        distance, metadata = in_a_new_process(LANCE, tmp_path / "lance").splitlines()

        (found,) = table.search("wool").limit(1).to_list()
        assert float(distance) == pytest.approx(found["_distance"], rel=1e-4)
        assert published in metadata
        assert len(metadata) < 600

    def test_its_tenant_is_served(self, words, of_acme):
        """That of the function, whoever asks."""
        import tttembed_hosts.lancedb  # noqa: F401 - importing it registers the function

        options = {"inner": "words", "options": {"width": WIDTH}, "store": of_acme, "tenant": "acme"}
        function = words.get("tttembed").create(**options)

        with context(tenant="beta"):
            vectors = function.compute_query_embeddings("wool")

        np.testing.assert_allclose(vectors, [offsets_of().apply(vector_of("wool"))], atol=1e-6)

    def test_a_password_is_refused(self, words):
        """It would be written into the table."""
        import tttembed_hosts.lancedb  # noqa: F401 - importing it registers the function

        with pytest.raises(InputError, match="store: expected no password"):
            words.get("tttembed").create(inner="words", options={"width": 4}, store="postgresql://a:b@c/d")

    def test_wrapping_twice_is_refused(self, words):
        """An offset is added once."""
        import tttembed_hosts.lancedb  # noqa: F401 - importing it registers the function

        with pytest.raises(InputError, match="inner: expected a function without offsets"):
            words.get("tttembed").create(inner="tttembed", store="sqlite:///a.db")


CHROMA = """
import sys
import chromadb, numpy as np
from chromadb.api.types import EmbeddingFunction
from chromadb.utils.embedding_functions import register_embedding_function
from tttembed_rag.testing import FakeEmbedder
import tttembed_hosts.chroma

@register_embedding_function
class Words(EmbeddingFunction):
    def __init__(self, width):
        self.width = width
    def __call__(self, input):
        return [np.asarray(FakeEmbedder(width=self.width).embed_query(text), np.float32) for text in input]
    @staticmethod
    def name():
        return "words"
    def get_config(self):
        return {"width": self.width}
    @staticmethod
    def build_from_config(config):
        return Words(config["width"])

collection = chromadb.PersistentClient(sys.argv[1]).get_collection("manuals")
print(collection.query(query_texts=["wool"], n_results=1)["distances"][0][0])
"""


class TestChroma:
    """The registered function with a real collection on disk."""

    @pytest.fixture
    def words(self):
        """An embedding function of Chroma that knows the vectors of texts."""
        types = pytest.importorskip("chromadb.api.types", reason="Chroma is not installed")
        from chromadb.utils.embedding_functions import register_embedding_function

        @register_embedding_function
        class Words(types.EmbeddingFunction):
            """Word vectors."""

            def __init__(self, width):
                """Of this width."""
                self.width = width

            def __call__(self, input):  # noqa: A002 - Chroma's name
                """A vector each."""
                return [vector_of(text) for text in input]

            @staticmethod
            def name():
                """Its name."""
                return "words"

            def get_config(self):
                """Its width."""
                return {"width": self.width}

            @staticmethod
            def build_from_config(config):
                """A new one."""
                return Words(config["width"])

        return Words(WIDTH)

    @pytest.fixture
    def collection(self, words, published, tmp_path):
        """A collection on disk, filled."""
        import chromadb
        from tttembed_hosts.chroma import ChromaEmbeddingFunction

        function = ChromaEmbeddingFunction(words, store=published, task="billing")
        client = chromadb.PersistentClient(str(tmp_path / "chroma"))
        collection = client.create_collection("manuals", embedding_function=function)
        collection.add(ids=["a", "b", "c"], documents=DOCUMENTS)
        return collection

    def test_documents_keep_base_vectors_and_queries_are_steered(self, collection):
        """What was added is the inner function's; distances are those of the steered vector."""
        stored = collection.get(ids=["a", "b", "c"], include=["embeddings"])["embeddings"]
        found = collection.query(query_texts=["wool"], n_results=3)

        query = offsets_of(task="billing").apply(vector_of("wool"), task="billing")
        distances = sorted(float(((vector_of(text) - query) ** 2).sum()) for text in DOCUMENTS)
        np.testing.assert_array_equal(stored, [vector_of(text) for text in DOCUMENTS])
        assert found["distances"][0] == pytest.approx(distances, rel=1e-4)

    def test_a_query_by_vector_is_as_before(self, collection):
        """A vector of your own is searched with as it is."""
        found = collection.query(query_embeddings=[vector_of(DOCUMENTS[0])], n_results=1)

        assert (found["documents"][0], found["distances"][0]) == ([DOCUMENTS[0]], [0.0])

    def test_a_collection_that_was_made_without_offsets_is_asked_by_vector(self, words, published, tmp_path):
        """Chroma opens it with the function that made it alone; steered vectors find in it what they find elsewhere."""
        import chromadb
        from tttembed_hosts.chroma import ChromaEmbeddingFunction

        plain = chromadb.PersistentClient(str(tmp_path / "plain")).create_collection(
            "manuals", embedding_function=words
        )
        plain.add(ids=["a", "b", "c"], documents=DOCUMENTS)
        steered = ChromaEmbeddingFunction(words, store=published, task="billing").embed_query(["wool"])
        found = plain.query(query_embeddings=steered, n_results=1)

        query = offsets_of(task="billing").apply(vector_of("wool"), task="billing")
        nearest = min(float(((vector_of(text) - query) ** 2).sum()) for text in DOCUMENTS)
        assert found["distances"][0] == pytest.approx([nearest], rel=1e-4)

    def test_its_tenant_is_served(self, words, of_acme):
        """That of the function, whoever asks."""
        from tttembed_hosts.chroma import ChromaEmbeddingFunction

        function = ChromaEmbeddingFunction(words, store=of_acme, tenant="acme")

        with context(tenant="beta"):
            vectors = function.embed_query(["wool"])

        np.testing.assert_allclose(vectors, [offsets_of().apply(vector_of("wool"))], atol=1e-6)

    @pytest.mark.slow
    def test_another_process_opens_the_collection(self, collection, tmp_path):
        """It finds the function by its name, and queries with the same offsets."""
        distance = in_a_new_process(CHROMA, tmp_path / "chroma")

        found = collection.query(query_texts=["wool"], n_results=1)
        assert float(distance) == pytest.approx(found["distances"][0][0], rel=1e-4)

    def test_the_configuration_builds_the_same_function(self, words, published):
        """There and back; no vector in it."""
        from tttembed_hosts.chroma import ChromaEmbeddingFunction

        function = ChromaEmbeddingFunction(words, store=published, task="billing", embedder="words-v1")
        config = function.get_config()

        assert ChromaEmbeddingFunction.build_from_config(config).get_config() == config
        assert config["store"] == published

    def test_wrapping_twice_is_refused(self, words):
        """An offset is added once."""
        from tttembed_hosts.chroma import ChromaEmbeddingFunction

        with pytest.raises(InputError, match="inner: expected a function without offsets"):
            ChromaEmbeddingFunction(ChromaEmbeddingFunction(words, store="sqlite:///a"), store="sqlite:///a")


class TestSentenceTransformers:
    """A module in a real model, saved and loaded."""

    @pytest.fixture
    def plain(self):
        """A model of the library, small and made here: static vectors of words, at unit length."""
        st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = sorted({word for text in DOCUMENTS for word in text.split()} | {"[UNK]"})
        tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        weights = np.random.default_rng(0).normal(size=(len(words), WIDTH)).astype(np.float32)
        return lambda: st.SentenceTransformer(
            modules=[StaticEmbedding(tokenizer, embedding_weights=weights), Normalize()], device="cpu"
        )

    def test_queries_are_steered_and_all_else_is_not(self, plain):
        """`encode_query` gets the offset; `encode_document` and `encode` are the model's, bit for bit."""
        from tttembed_hosts.sentence_transformers import TTTOffsets

        base, model = plain(), plain()
        model.append(TTTOffsets(offsets_of(), task="billing"))

        expected = offsets_of().apply(base.encode_query(DOCUMENTS))
        np.testing.assert_allclose(model.encode_query(DOCUMENTS), expected, atol=1e-6)
        np.testing.assert_array_equal(model.encode_document(DOCUMENTS), base.encode_document(DOCUMENTS))
        np.testing.assert_array_equal(model.encode(DOCUMENTS), base.encode(DOCUMENTS))

    def test_the_context_of_the_caller_holds(self, plain):
        """Without a task of its own, the module serves that of the caller; another task is bit for bit."""
        from tttembed_hosts.sentence_transformers import TTTOffsets

        base, model = plain(), plain()
        model.append(TTTOffsets(offsets_of(task="billing")))

        with context(task="billing"):
            inside = model.encode_query(DOCUMENTS)

        assert not np.allclose(inside, base.encode_query(DOCUMENTS), atol=1e-3)
        np.testing.assert_array_equal(model.encode_query(DOCUMENTS), base.encode_query(DOCUMENTS))

    def test_it_travels_with_a_saved_model(self, plain, tmp_path):
        """Saved and loaded without trusting the model's code; without the class, the library refuses by name."""
        import sentence_transformers
        from tttembed_hosts.sentence_transformers import TTTOffsets, load_steered

        model = plain()
        model.append(TTTOffsets(offsets_of(task="billing"), task="billing"))
        model.save_pretrained(str(tmp_path / "steered"))

        loaded = load_steered(str(tmp_path / "steered"), device="cpu")

        np.testing.assert_array_equal(loaded.encode_query(DOCUMENTS), model.encode_query(DOCUMENTS))
        np.testing.assert_array_equal(loaded.encode_document(DOCUMENTS), model.encode_document(DOCUMENTS))
        with pytest.raises(ValueError, match="trust_remote_code"):
            sentence_transformers.SentenceTransformer(str(tmp_path / "steered"), device="cpu")

    def test_half_precision_stays(self, plain):
        """The vector comes back in the precision of the model."""
        import torch
        from tttembed_hosts.sentence_transformers import TTTOffsets

        base = torch.nn.functional.normalize(torch.ones(2, WIDTH), dim=1).to(torch.bfloat16)

        steered = TTTOffsets(offsets_of()).forward({"sentence_embedding": base}, task="query")["sentence_embedding"]

        assert steered.dtype == torch.bfloat16
        assert not torch.equal(steered, base)
