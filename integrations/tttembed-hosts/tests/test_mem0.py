"""mem0: searches steered, what is stored as it was."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from tttembed_hosts.mem0 import steer

from tttembed_rag import Evidence, InputError, Offset, Offsets
from tttembed_rag.testing import FakeEmbedder

WIDTH = 16


def offsets_of(task):
    vector = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32) / 2
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    return Offsets([Offset("task", vector, 0.9, 9, evidence, task=task)], width=WIDTH)


class Model:
    """An embedding model as mem0 calls it."""

    config = "its own"

    def embed(self, text, memory_action=None):
        return FakeEmbedder(width=WIDTH).embed_queries([text])[0].tolist()


def test_searches_alone_are_steered():
    """What is added and updated keeps its vector, bit for bit; whatever else the model has is its own."""
    memory = SimpleNamespace(embedding_model=Model())
    base = Model().embed("a red door")

    assert steer(memory, offsets=offsets_of("memories"), task="memories") is memory

    model = memory.embedding_model
    assert [model.embed("a red door", role) for role in ("add", "update", None)] == [base] * 3
    expected = offsets_of("memories").apply(np.array(base), task="memories")
    np.testing.assert_allclose(model.embed("a red door", "search"), expected)
    assert isinstance(model.embed("a red door", "search"), list)
    assert model.config == "its own"
    assert copy.copy(model).embed("a red door", "search") == model.embed("a red door", "search")


def test_a_memory_is_steered_once():
    """A second time, and what is no memory, are refused."""
    memory = steer(SimpleNamespace(embedding_model=Model()), offsets=offsets_of("memories"))
    for wrong in (memory, SimpleNamespace(), SimpleNamespace(embedding_model="a name")):
        with pytest.raises(InputError, match=r"^memory: expected "):
            steer(wrong, offsets=offsets_of("memories"))


@pytest.mark.slow
def test_a_memory_of_mem0_is_steered(tmp_path, monkeypatch):
    """A real one, on disk: what it stores is found by the steered query and not by the vector that was its own."""
    monkeypatch.setenv("MEM0_TELEMETRY", "False")
    monkeypatch.setenv("MEM0_DIR", str(tmp_path))
    mem0 = pytest.importorskip("mem0", reason="mem0 is not installed")
    key = {"api_key": "none", "model": "none"}
    where = {"path": str(tmp_path / "vectors"), "embedding_model_dims": WIDTH, "on_disk": True}
    config = {
        "llm": {"provider": "openai", "config": key},
        "embedder": {"provider": "openai", "config": key},
        "vector_store": {"provider": "qdrant", "config": where},
        "history_db_path": str(tmp_path / "history.db"),
    }
    memory = mem0.Memory.from_config(config)
    memory.embedding_model.embed = Model().embed  # in the place of OpenAI's
    memory = steer(memory, offsets=offsets_of("memories"), task="memories")

    memory.add("a red door", user_id="ada", infer=False)
    (found,) = memory.search("a red door", user_id="ada")["results"]
    memory.vector_store.client.close()

    base = np.array(Model().embed("a red door"))
    moved = offsets_of("memories").apply(base, task="memories")
    assert found["score"] == pytest.approx(float(base @ moved) / float(np.linalg.norm(moved)), abs=1e-3)
    assert found["score"] < 0.99
