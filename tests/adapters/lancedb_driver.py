"""An embedding function of LanceDB; run as a program with a folder, it searches its table in another process."""

import os
import sys

import lancedb
import numpy as np
import tttembed_hosts.lancedb  # noqa: F401 - importing it registers the function
from lancedb.embeddings import TextEmbeddingFunction, register

from tttembed_rag.testing import FakeEmbedder


@register("words")
class Words(TextEmbeddingFunction):
    """Word vectors."""

    width: int

    def ndims(self):
        return self.width

    def generate_embeddings(self, texts):
        return [np.asarray(FakeEmbedder(width=self.width).embed_query(text), np.float32) for text in texts]


if __name__ == "__main__":
    table = lancedb.connect(sys.argv[1]).open_table("manuals")
    (nearest,) = table.search("wool").limit(1).to_list()
    metadata = table.schema.metadata[b"embedding_functions"].decode().replace("\n", "")
    sys.stdout.write(f"{nearest['_distance']}\n{metadata}")
    sys.stdout.flush()
    os._exit(0)  # a thread of LanceDB aborts, now and then, an interpreter that comes to its end
