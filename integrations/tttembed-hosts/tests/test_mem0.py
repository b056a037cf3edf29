"""mem0: searches steered, what is stored as it was."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from tttembed_hosts.mem0 import steer

from tests.adapters.worlds import BILLING, WIDTH
from tttembed_rag import InputError
from tttembed_rag.testing import FakeEmbedder


class Model:
    """An embedding model as mem0 calls it."""

    config = "its own"

    def embed(self, text, memory_action=None):
        return FakeEmbedder(width=WIDTH).embed_queries([text])[0].tolist()


def test_searches_alone_are_steered():
    """What is added and updated keeps its vector, bit for bit; whatever else the model has is its own."""
    memory = SimpleNamespace(embedding_model=Model())
    base = Model().embed("a red door")

    assert steer(memory, offsets=BILLING, task="billing") is memory

    model = memory.embedding_model
    assert [model.embed("a red door", role) for role in ("add", "update", None)] == [base] * 3
    expected = BILLING.apply(np.array(base), task="billing")
    np.testing.assert_allclose(model.embed("a red door", "search"), expected)
    assert isinstance(model.embed("a red door", "search"), list)
    assert model.config == "its own"
    assert copy.copy(model).embed("a red door", "search") == model.embed("a red door", "search")


def test_a_memory_is_steered_once():
    """A second time, and what is no memory, are refused."""
    memory = steer(SimpleNamespace(embedding_model=Model()), offsets=BILLING)
    for wrong in (memory, SimpleNamespace(), SimpleNamespace(embedding_model="a name")):
        with pytest.raises(InputError, match=r"^memory: expected "):
            steer(wrong, offsets=BILLING)


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
    memory = steer(memory, offsets=BILLING, task="billing")

    memory.add("a red door", user_id="ada", infer=False)
    (memorised,) = memory.search("a red door", user_id="ada")["results"]
    memory.vector_store.client.close()

    base = np.array(Model().embed("a red door"))
    moved = BILLING.apply(base, task="billing")
    assert memorised["score"] == pytest.approx(float(base @ moved) / float(np.linalg.norm(moved)), abs=1e-3)
    assert memorised["score"] < 0.99
