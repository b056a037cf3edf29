"""The adapters that the laws of this folder are told of; one that is not installed is skipped."""

from importlib import import_module

import pytest

# The module of each adapter, without which its driver cannot be imported.
MODULES = {
    "langchain": "langchain_tttembed",
    "llama_index": "llama_index.embeddings.tttembed",
    "haystack": "haystack_integrations.components.embedders.tttembed",
}


def driver_of(name, folder, kind="Driver"):
    """The driver of an adapter, of one *kind* where it has several, which keeps its files in *folder*."""
    try:
        return getattr(import_module(f"tests.adapters.{name}_driver"), kind)(folder)
    except ModuleNotFoundError as exc:
        pytest.skip(f"{MODULES[name]} cannot be imported: {exc}")


@pytest.fixture(params=MODULES)
def embedder(request, tmp_path):
    """An adapter that turns query vectors."""
    return driver_of(request.param, tmp_path)


@pytest.fixture(params=["langchain", "llama_index"])
def adapter(request, tmp_path):
    """An adapter whose wrapper is a model of its framework, which searches, records and judges."""
    return driver_of(request.param, tmp_path)


# The parts that sort what a search found and are handed their cascade.
CASCADING = [("langchain", "Driver"), ("langchain", "Retrieving"), ("llama_index", "Driver")]


@pytest.fixture(params=[*CASCADING, ("haystack", "Driver")], ids="-".join)
def sorting(request, tmp_path):
    """Each part that sorts what a search found."""
    name, kind = request.param
    return driver_of(name, tmp_path, kind)


@pytest.fixture(params=CASCADING, ids="-".join)
def cascading(request, tmp_path):
    """Each of them that asks a judge where need be, whose cascade the test makes."""
    name, kind = request.param
    return driver_of(name, tmp_path, kind)
