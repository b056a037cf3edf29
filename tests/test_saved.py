"""Live offsets for hosts that save their configuration."""

import numpy as np
import pytest
from tttembed_store import open_store

from tttembed_rag import Evidence, InputError, Offset, Offsets
from tttembed_rag.serving.saved import checked_store, steering_of
from tttembed_rag.testing import FakeEmbedder

WIDTH = 16
FAKE = FakeEmbedder(width=WIDTH)


def offsets_of(width=WIDTH, *, task=None, seed=0):
    """Offsets with one vector, for all tasks or one."""
    vector = np.random.default_rng(seed).normal(size=width).astype(np.float32) / 4
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    return Offsets([Offset("global" if task is None else "task", vector, 0.9, 9, evidence, task=task)], width=width)


def vector_of(text):
    return np.asarray(FAKE.embed_query(text), np.float32)


@pytest.fixture
def published(sqlite_url):
    """The URL of a store with a live version for the task billing."""
    with open_store(sqlite_url) as store:
        store.registry.publish(offsets_of(task="billing"), by="test")
    return sqlite_url


@pytest.mark.parametrize(
    "store",
    [
        "",
        "env:",
        None,
        "postgresql://me:secret@host/name",
        "postgresql://me:secret/with#strokes?@host/name",
        "postgresql://host/name?user=me&password=secret",
        "postgresql://host/name?sslpassword=secret",
    ],
)
def test_secrets_and_nonsense_are_refused(store):
    """A password never gets into a table or a collection, and the message does not repeat it."""
    with pytest.raises(InputError, match="store: expected") as caught:
        checked_store(store)

    assert "secret" not in str(caught.value)


def test_a_store_can_be_named_by_a_variable(published, monkeypatch):
    """`env:NAME` is looked up where it is used."""
    monkeypatch.setenv("MY_STORE", published)
    expected = offsets_of(task="billing").apply(vector_of("wool").tolist(), task="billing")

    assert steering_of("env:MY_STORE", task="billing").apply(vector_of("wool").tolist(), "wool") == expected


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    """One line says which."""
    monkeypatch.delenv("MY_STORE", raising=False)

    with pytest.raises(InputError, match="environment variable MY_STORE, got none"):
        steering_of("env:MY_STORE")


@pytest.mark.parametrize("store", ["env:MY_STORE", "gone.safetensors"])
def test_a_query_is_answered_without_its_store(store, monkeypatch, tmp_path, caplog):
    """A variable that is not set, or a file that is not there, costs the offsets alone, and is logged."""
    monkeypatch.delenv("MY_STORE", raising=False)
    monkeypatch.chdir(tmp_path)

    steering = steering_of(store, task="billing", or_base=True)

    assert steering.apply(vector_of("wool").tolist(), "wool") == vector_of("wool").tolist()
    assert steering.request("wool").reason.endswith("found none" if store != "env:MY_STORE" else "got none")
    assert "base vectors are served" in caplog.text


def test_a_task_that_is_none_costs_the_offsets_alone(tmp_path, caplog):
    """A query is answered with its base vector, and the log says what was expected."""
    offsets_of().save(tmp_path / "o")

    steering = steering_of(str(tmp_path / "o"), task=5, or_base=True)

    assert steering.apply(vector_of("wool").tolist(), "wool") == vector_of("wool").tolist()
    assert "base vectors are served until this process starts again: task" in caplog.text


def test_a_file_of_another_model_is_not_served(tmp_path):
    vectors = list(offsets_of().values())
    Offsets(vectors, width=WIDTH, settings={"embedder": "a"}).save(tmp_path / "o")
    reasons = [steering_of(str(tmp_path / "o"), embedder=name).request("wool").reason for name in ("a", "b", "")]

    assert reasons == ["", "learned for a, not for b", ""]
