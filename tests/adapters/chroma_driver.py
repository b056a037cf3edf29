"""An embedding function of Chroma; run as a program with a folder, it says how near a search of another process is."""

import sys

import chromadb
import numpy as np
from chromadb.api.types import EmbeddingFunction
from chromadb.utils.embedding_functions import register_embedding_function

from tttembed_rag.testing import FakeEmbedder


@register_embedding_function
class Words(EmbeddingFunction):
    """Word vectors."""

    def __init__(self, width):
        self.width = width

    def __call__(self, input):  # noqa: A002 - Chroma's name
        return [np.asarray(FakeEmbedder(width=self.width).embed_query(text), np.float32) for text in input]

    @staticmethod
    def name():
        return "words"

    def get_config(self):
        return {"width": self.width}

    @staticmethod
    def build_from_config(config):
        return Words(config["width"])


if __name__ == "__main__":
    import tttembed_hosts.chroma  # noqa: F401 - importing it registers the function

    collection = chromadb.PersistentClient(sys.argv[1]).get_collection("manuals")
    sys.stdout.write(str(collection.query(query_texts=["wool"], n_results=1)["distances"][0][0]))
