"""Embedders: each kind equals a plain computation of one text, says who it is, and is asked no text twice."""

from __future__ import annotations

import itertools
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from tests.judges.conftest import folder_of
from tttembed_rag import InputError
from tttembed_rag.embedders import GeminiEmbedder, open_embedder
from tttembed_rag.embedders.cache import CachedEmbedder, VectorCache
from tttembed_rag.embedders.local import local_model, model2vec
from tttembed_rag.embedders.specs import name_of
from tttembed_rag.embedders.wrapped import FrameworkEmbedder, Truncated
from tttembed_rag.errors import DataError, EmbedderError
from tttembed_rag.judges import Patience
from tttembed_rag.testing import FakeEmbedder

TEXTS = ["the old mill", "wash a wool jumper in cold water with a little soap", "river", "é 水 yes"]
INSTRUCTION = "Given a question, find the river"


def tokenizer_of(*, closing=True):
    """A byte-level tokenizer that closes every text with its end, in the form transformers saves."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<|pad|>", "eos_token": "<|endoftext|>"}
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special.values(), *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if closing:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="right", model_max_length=512, **special)


def sizes(tokenizer):
    """Of tiny models of the Qwen3 and the Gemma kind."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    """A tiny Qwen3 as transformers saves it: no word on pooling, padding on the right."""
    from transformers import Qwen3Config, Qwen3Model

    tokenizer = tokenizer_of()
    torch.manual_seed(0)
    model = Qwen3Model(Qwen3Config(**sizes(tokenizer)))
    return folder_of((model, tokenizer), tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="module")
def gemma_folder(tmp_path_factory):
    """A tiny bidirectional Gemma 3 with mean pooling and two projections, as EmbeddingGemma is saved."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer import modules
    from transformers import Gemma3TextConfig, Gemma3TextModel

    folder = tmp_path_factory.mktemp("models")
    tokenizer = tokenizer_of()
    torch.manual_seed(1)
    config = Gemma3TextConfig(**sizes(tokenizer), use_bidirectional_attention=True, sliding_window=64)
    folder_of((Gemma3TextModel(config), tokenizer), folder / "bare")
    plain = {"bias": False, "activation_function": torch.nn.Identity()}
    parts = [modules.Transformer(str(folder / "bare")), modules.Pooling(16, "mean")]
    parts += [Dense(16, 48, **plain), Dense(48, 16, **plain), modules.Normalize()]
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    SentenceTransformer(modules=parts, prompts=prompts, device="cpu").save(str(folder / "tiny-gemma"))
    return folder / "tiny-gemma"


def unit(vector):
    return vector / np.linalg.norm(vector)


def hidden_states(folder, text):
    """The last layer for one text alone, nothing padded."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()


class TestQwen3:
    """Instruction, last token, padding on the left."""

    def test_equals_a_plain_computation(self, qwen_folder):
        """A text in a batch is its last token's vector, of a query behind the instruction, as for it alone."""
        embedder = local_model(str(qwen_folder), "qwen3", instruction=INSTRUCTION)
        queries = [hidden_states(qwen_folder, f"Instruct: {INSTRUCTION}\nQuery:{text}")[-1] for text in TEXTS]
        documents = [hidden_states(qwen_folder, text)[-1] for text in TEXTS]

        assert_allclose(embedder.embed_queries(TEXTS), [unit(vector) for vector in queries], atol=1e-5)
        assert_allclose(embedder.embed_documents(TEXTS), [unit(vector) for vector in documents], atol=1e-5)

    def test_long_texts_keep_their_end_token(self, qwen_folder):
        """A text cut at the limit still ends with the token whose vector is taken."""
        embedder = local_model(str(qwen_folder), "qwen3", max_tokens=8)
        cut = hidden_states(qwen_folder, "wash a ")[-1]  # seven bytes, and the end

        assert_allclose(embedder.embed_documents(["wash a wool jumper"])[0], unit(cut), atol=1e-5)

    def test_a_tokenizer_without_an_end_is_refused(self, qwen_folder, tmp_path):
        """Without an end token the last word's vector would be taken."""
        for file in qwen_folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        tokenizer_of(closing=False).save_pretrained(tmp_path)

        with pytest.raises(EmbedderError, match="expected a tokenizer that ends every text with a special token"):
            local_model(str(tmp_path), "qwen3")


class TestSentenceTransformer:
    """Any model, as it is stored."""

    def test_equals_a_plain_computation(self, gemma_folder):
        """Queries and documents carry the prompts that are stored with the model; padding changes nothing."""
        embedder = local_model(str(gemma_folder))
        first, second = (layer.linear.weight.detach().numpy() for layer in list(embedder._model)[2:4])

        def plain(text):
            return unit(second @ (first @ hidden_states(gemma_folder, text).mean(axis=0)))

        queries = [plain(f"task: search result | query: {text}") for text in TEXTS]
        documents = [plain(f"title: none | text: {text}") for text in TEXTS]
        assert_allclose(embedder.embed_queries(TEXTS), queries, atol=1e-5)
        assert_allclose(embedder.embed_documents(TEXTS), documents, atol=1e-5)

    def test_batches_by_tokens_give_the_same_vectors(self, gemma_folder):
        """Off the CPU texts of like length are read together, and their vectors come back in order."""
        model = local_model(str(gemma_folder))
        texts = [text for count in (40, 1, 7) for text in (*TEXTS, "river " * count)]
        expected, model._batch_size = model.embed_documents(texts), None

        assert_allclose(model.embed_documents(texts), expected, atol=1e-5)
        assert len(model.embed_queries([])) == 0

    def test_a_folder_without_a_model_is_an_error(self, tmp_path):
        """One line says what was expected there."""
        with pytest.raises(EmbedderError, match="expected a model that sentence-transformers can load"):
            local_model(str(tmp_path))

    def test_an_unreachable_hub_is_said_at_once(self, monkeypatch):
        """The first failed connection ends it, in one line."""
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(EmbedderError, match=r"^no/such: expected .* http://127.0.0.1:9 is not reachable: [^\n]+$"):
            local_model("no/such")

    def test_a_downloaded_model_needs_no_hub(self, qwen_folder, downloaded):
        """Where the hub is away, its copy on this machine gives the same vectors."""
        vectors = local_model(downloaded(qwen_folder), "qwen3").embed_queries(TEXTS)

        assert_array_equal(vectors, local_model(str(qwen_folder), "qwen3").embed_queries(TEXTS))


# model2vec leaves the files that it reads and writes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_model2vec_is_the_mean_of_token_vectors(tmp_path, downloaded):
    """A static model averages the rows of its table, also one that was downloaded before the hub was away."""
    from model2vec import StaticModel

    tokenizer = tokenizer_of(closing=False)
    table = np.random.default_rng(0).normal(size=(len(tokenizer), 12)).astype(np.float32)
    StaticModel(table, tokenizer.backend_tokenizer, normalize=False).save_pretrained(tmp_path / "table")
    ids = tokenizer("old mill")["input_ids"]

    for model in (str(tmp_path / "table"), downloaded(tmp_path / "table")):
        assert_allclose(model2vec(model).embed_documents(["old mill"])[0], unit(table[ids].mean(0)), atol=1e-5)


class TestFingerprint:
    """Whatever changes vectors changes it."""

    def test_tells_settings_apart(self, qwen_folder):
        """Instruction, length, precision and pooling are part of it."""
        settings = [{"instruction": INSTRUCTION}, {"max_tokens": 8}, {"dtype": "bfloat16"}]
        usual, same, *others = (
            local_model(str(qwen_folder), **{"kind": "qwen3", **options}).fingerprint
            for options in ({}, {}, *settings, {"kind": "sentence-transformers"})
        )

        assert usual == same
        assert len({usual, *others}) == 5

    def test_tells_weights_apart(self, qwen_folder, tmp_path):
        """A folder of the same name with other weights is another embedder."""
        from transformers import AutoModel, AutoTokenizer

        model = AutoModel.from_pretrained(qwen_folder)
        with torch.no_grad():
            model.norm.weight += 0.5
        folder = folder_of((model, AutoTokenizer.from_pretrained(qwen_folder)), tmp_path / qwen_folder.name)

        assert local_model(str(qwen_folder), "qwen3").fingerprint != local_model(str(folder), "qwen3").fingerprint


def embedder(**settings):
    """An embedder of three dimensions that counts what it is asked."""
    return FakeEmbedder(3, **settings)


class TestTruncated:
    """Matryoshka."""

    def test_keeps_the_first_dimensions_at_unit_length(self):
        """The cut vector is normalised again; it is never taken for the whole one."""
        whole = embedder().embed_queries(TEXTS)

        cut = Truncated(embedder(), 2)

        expected = whole[:, :2] / np.linalg.norm(whole[:, :2], axis=1, keepdims=True)
        assert_allclose(cut.embed_queries(TEXTS), expected, atol=1e-6)
        assert len({embedder().fingerprint, cut.fingerprint, Truncated(embedder(), 1).fingerprint}) == 3

    def test_more_than_there_are_is_an_error(self):
        """A model has no dimensions to add."""
        with pytest.raises(InputError, match="dimensions: expected at most 3, got 4"):
            Truncated(embedder(), 4).embed_documents(TEXTS)


class TestCache:
    """Vectors by content."""

    @pytest.fixture
    def cache(self, tmp_path):
        with closing(VectorCache.open(tmp_path / "known.sqlite")) as opened:
            yield opened

    def test_its_files_are_their_owners_alone(self, cache, tmp_path):
        """The vectors of users' queries, also in the file that SQLite writes beside it."""
        CachedEmbedder(embedder(), cache).embed_queries(["a"])

        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
        assert modes == dict.fromkeys(["known.sqlite", "known.sqlite-shm", "known.sqlite-wal"], "0o600")

    def test_gives_what_the_embedder_gives(self, cache):
        """Fresh and known vectors are the embedder's own, in the order asked for."""
        CachedEmbedder(embedder(), cache).embed_documents(TEXTS[2:])
        cached = CachedEmbedder(embedder(), cache, at_once=3).embed_documents(TEXTS)

        assert_array_equal(cached, embedder().embed_documents(TEXTS))

    def test_asks_for_a_text_once(self, cache):
        """Nor a known or repeated one again; as a query, or of another model, it is another vector."""
        model, other = embedder(), embedder(fingerprint="other")
        cached = CachedEmbedder(model, cache)
        cached.embed_documents(["a", "b", "a"])
        cached.embed_documents(["b", "c"])
        cached.embed_queries(["a"])
        CachedEmbedder(other, cache).embed_documents(["a"])

        assert (model.documents, model.queries) == (["a", "b", "c"], ["a"])
        assert other.documents == ["a"]

    def test_a_width_that_changes_is_an_error(self, cache):
        """The model behind a service may become another one in the middle: nothing of that is kept."""
        width = itertools.count(3)
        changing = SimpleNamespace(
            fingerprint="changing", embed_documents=lambda texts: np.ones((len(texts), next(width)), np.float32)
        )
        embedder = CachedEmbedder(changing, cache, at_once=2)
        with pytest.raises(EmbedderError, match="changing: expected vectors of width 3, got 4"):
            embedder.embed_documents(["a", "b", "c"])

        assert embedder.embed_documents(["a", "b"]).shape == (2, 3)

    def test_goes_on_where_it_broke(self, tmp_path):
        """What was written before a failure is not embedded again, by another process either."""
        path, breaking, again, done = tmp_path / "known.sqlite", embedder(), embedder(), []

        def watch(_):
            if len(breaking.documents) == 4:
                breaking.error = EmbedderError("gone")

        with closing(VectorCache.open(path)) as cache, pytest.raises(EmbedderError):
            CachedEmbedder(breaking, cache, at_once=2, watch=watch).embed_documents([*"abcdef"])
        with closing(VectorCache.open(path)) as cache:
            vectors = CachedEmbedder(again, cache, at_once=2, watch=done.append).embed_documents([*"abcdef"])

        assert again.documents == ["e", "f"]
        assert done == [2, 2, 2]
        assert_array_equal(vectors, embedder().embed_documents([*"abcdef"]))

    def test_another_file_is_an_error(self, tmp_path):
        """A file that is no database is named."""
        path = tmp_path / "notes.txt"
        path.write_text("not a database, but long enough to look at" * 10)
        with pytest.raises(DataError, match=r"notes.txt: expected a vector cache"):
            VectorCache.open(path)


class TestFrameworks:
    """Objects of LangChain and LlamaIndex; `tests/adapters` has their own."""

    def test_the_methods_of_either_are_asked(self):
        """Queries and documents go through their own methods; vectors come out at unit length."""
        langchain = SimpleNamespace(
            embed_query=lambda _: [3.0, 4.0], embed_documents=lambda texts: [[0.0, 2.0]] * len(texts)
        )
        llama = SimpleNamespace(
            get_query_embedding=langchain.embed_query, get_text_embedding_batch=langchain.embed_documents
        )

        for framework in (langchain, llama):
            embedder = FrameworkEmbedder(framework)
            assert_allclose(embedder.embed_queries(["a", "b"]), [[0.6, 0.8]] * 2)
            assert_allclose(embedder.embed_documents(["a", "b"]), [[0.0, 1.0]] * 2)

    class Client:
        """A model of LangChain that leaves out the vectors of some texts."""

        def __init__(self, model, left_out=0):
            self.model, self.left_out = model, left_out

        def embed_query(self, text):
            """One vector."""
            return [1.0]

        def embed_documents(self, texts):
            """A vector of each, but for the first ones."""
            return [[1.0] for _ in texts[self.left_out :]]

    def test_models_of_one_class_are_told_apart(self):
        """The model's name is part of the fingerprint."""
        assert len({FrameworkEmbedder(self.Client(name)).fingerprint for name in ("small", "large")}) == 2

    def test_anything_else_is_refused(self):
        """An object without the methods is named, and a batch that comes back short is not taken."""
        with pytest.raises(InputError, match=r"\(LangChain\).* got dict"):
            FrameworkEmbedder({})
        with pytest.raises(EmbedderError, match=r"embed_documents: expected vectors \(4, d\) .* got shape \(3, 1\)"):
            FrameworkEmbedder(self.Client("short", 1)).embed_documents(TEXTS)


@pytest.fixture
def gemini(serve):
    """Starts a server that embeds as *answer* says, or by length, and an embedder that asks it."""

    def by_length(path, body, _):
        texts = [request["content"]["parts"][0]["text"] for request in body["requests"]]
        return 200, {}, {"embeddings": [{"values": [3.0, float(len(text))]} for text in texts]}

    def start(model, answer=by_length, **options):
        server = serve(answer)
        embedder = GeminiEmbedder(
            model, url=server.url, key="k", patience=Patience(attempts=3, first_wait=0.01), **options
        )
        return embedder, server

    return start


class TestGemini:
    """Both generations, on a loopback server."""

    @pytest.mark.parametrize(
        ("model", "texts", "tasks"),
        [
            ("gemini-embedding-001", ["a", "b", "d"], ["RETRIEVAL_QUERY", "RETRIEVAL_QUERY", "RETRIEVAL_DOCUMENT"]),
            (
                "gemini-embedding-2",
                [*(f"task: search result | query: {text}" for text in "ab"), "title: none | text: d"],
                [None] * 3,
            ),
        ],
    )
    def test_a_generation_is_told_by_task_type_and_the_next_by_prefix(self, gemini, model, texts, tasks):
        """What a text is for; each is a content of its own, in the width that was asked for."""
        embedder, server = gemini(model, dimensions=2)
        embedder.embed_queries(["a", "b"])
        embedder.embed_documents(["d"])

        sent = [request for _, _, body in server.asked for request in body["requests"]]
        assert [request["content"]["parts"] for request in sent] == [[{"text": text}] for text in texts]
        assert [request.get("taskType") for request in sent] == tasks
        assert {request["outputDimensionality"] for request in sent} == {2}

    def test_cut_vectors_are_normalised(self, gemini):
        """What the service leaves at another length comes out at unit length."""
        embedder, _ = gemini("gemini-embedding-001", dimensions=2)

        assert_allclose(embedder.embed_documents(["abcd"]), [[0.6, 0.8]])

    def test_requests_hold_what_the_service_takes(self, gemini):
        """A hundred texts, or sixty thousand characters; vectors come back in order."""
        texts = ["x" * n for n in range(1, 251)]
        embedder, server = gemini("gemini-embedding-001")
        vectors = embedder.embed_documents([*texts, "y" * 59_900])

        assert [len(body["requests"]) for _, _, body in server.asked] == [100, 100, 50, 1]
        assert_allclose(vectors[:, 1] / vectors[:, 0] * 3, [*range(1, 251), 59_900], rtol=1e-4)

    def test_one_vector_for_many_texts_is_an_error(self, gemini):
        """An aggregated vector is not taken for every text's."""
        embedder, _ = gemini("gemini-embedding-2", lambda *_: (200, {}, {"embeddings": [{"values": [1.0]}]}))
        with pytest.raises(EmbedderError, match="expected one vector for each of 2 texts"):
            embedder.embed_queries(["a", "b"])

    def test_generations_and_widths_are_told_apart(self, gemini):
        """Their spaces have nothing in common."""
        made = [
            gemini(model, dimensions=d)[0]
            for model in ("gemini-embedding-001", "gemini-embedding-2")
            for d in (2, None)
        ]

        assert len({embedder.fingerprint for embedder in made}) == 4


class TestSpecs:
    """Embedders from one line of text."""

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("word2vec:x", "expected sentence-transformers:MODEL"),
            ("qwen3:", "expected sentence-transformers:MODEL"),
            ("minilm:x", "expected sentence-transformers:MODEL"),
            ("python:no_such_module:x", "expected an importable MODULE:NAME"),
            ("python:json:loads?dimensions=x", "expected a number for dimensions"),
            ("cohere:m?url=http://h&colour=red", "expected options .*url.* got colour"),
        ],
    )
    def test_a_wrong_one_is_an_error(self, spec, message):
        """What was expected is said."""
        with pytest.raises(InputError, match=f"embedder: {message}"):
            open_embedder(spec)

    def test_options_reach_the_model(self, qwen_folder):
        """Instruction and width in a line do what they do in Python."""
        by_spec = open_embedder(f"qwen3:{qwen_folder}?instruction={INSTRUCTION.replace(' ', '+')}&dimensions=4&batch=2")
        by_hand = Truncated(local_model(str(qwen_folder), "qwen3", instruction=INSTRUCTION), 4)

        assert by_spec.fingerprint == by_hand.fingerprint
        assert_array_equal(by_spec.embed_queries(TEXTS[:1]), by_hand.embed_queries(TEXTS[:1]))

    def test_what_embeds_is_found_by_name(self, monkeypatch, tmp_path):
        """A framework's object or what makes one, and what can be called with texts; anything else is refused."""
        (tmp_path / "mine_of_test.py").write_text(
            "from functools import partial\n"
            "class Mine:\n"
            "    def embed_query(self, text):\n        return [3.0, 4.0]\n"
            "    def embed_documents(self, texts):\n        return [[3.0, 4.0] for _ in texts]\n"
            "instance = Mine()\n"
            "def make():\n    return Mine()\n"
            "def function(texts, first=3.0):\n    return [[first, 4.0] for _ in texts]\n"
            "class Model:\n"
            "    def encode(self, texts):\n        return function(texts)\n"
            "    __call__ = encode\n"
            "part = partial(function, first=3.0)\n"
            "method = Model().encode\n"
            "model = Model()\n"
            "number = 3\n"
            "class Needy:\n    def __init__(self, path):\n        pass\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        called = ("function", "part", "method", "model", "Model")
        opened = {name: open_embedder(f"python:mine_of_test:{name}") for name in ("instance", "make", "Mine", *called)}

        assert_allclose([model.embed_queries(["a"])[0] for model in opened.values()], [[0.6, 0.8]] * 8)
        assert [opened[name].fingerprint for name in called] == [f"python:mine_of_test:{name}" for name in called]
        with pytest.raises(InputError, match=r"mine_of_test:number to be a function from texts .* got int"):
            open_embedder("python:mine_of_test:number")
        with pytest.raises(InputError, match="embedder: expected mine_of_test:Needy to be made without arguments"):
            open_embedder("python:mine_of_test:Needy")

    @pytest.mark.parametrize(
        ("spec", "name"),
        [
            ("qwen3:Qwen/Qwen3-Embedding-0.6B", "Qwen3-Embedding-0.6B"),
            ("qwen3:Qwen/Qwen3-Embedding-0.6B?batch=8&dimensions=256", "Qwen3-Embedding-0.6B-256"),
            ("minilm", "minilm"),
            ("python:embedding_of_test:embed", "embedding-of-test-embed"),
        ],
    )
    def test_vectors_are_named_after_the_model(self, spec, name):
        """The name is short, fit for a file, and has the width that was asked for."""
        assert name == name_of(spec)
