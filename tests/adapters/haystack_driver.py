"""Haystack, as the laws of all adapters drive it: its wrapper turns queries and reads offsets by name."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import haystack_integrations.components.connectors.tttembed as connectors
import haystack_integrations.components.embedders.tttembed as embedders
import haystack_integrations.components.rankers.tttembed as rankers
from haystack_integrations.components.embedders.tttembed import TTTTextEmbedder

from tests.adapters.worlds import Vectors


class Model:
    """Vectors of a test, as Haystack asks for them."""

    def __init__(self, vectors):
        self.vectors = vectors

    def run(self, text):
        return {"embedding": self.vectors.query(text), "meta": {}}


class Driver:
    """Haystack's adapter."""

    wrapper, argument, modules = "TTTTextEmbedder", "embedder", (connectors, embedders, rankers)

    def __init__(self, folder):
        self.folder = folder

    def model(self, vectors=None):
        return Model(vectors or Vectors())

    def wrap(self, model, offsets, **options):
        path = self.folder / "offsets.safetensors"
        offsets.save(path)
        return TTTTextEmbedder(model, store=str(path), **options)

    def embed(self, model, text):
        return model.run(text)["embedding"]

    async def aembed(self, model, text):
        return (await model.run_async(text))["embedding"]
