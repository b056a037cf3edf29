"""LangChain's own suites, with an offset that every query gets."""

import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests, VectorStoreIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests
from langchain_tttembed import TTTEmbeddings

from tests.adapters.worlds import UNGATED
from tttembed_rag import Offset, Offsets

WIDTH = 6  # EMBEDDING_SIZE of the vector store suite
OFFSET = Offsets([Offset("global", np.linspace(-0.1, 0.1, WIDTH), 0.5, 1, UNGATED)], width=WIDTH)


class _Params:
    @property
    def embeddings_class(self):
        return TTTEmbeddings

    @property
    def embedding_model_params(self):
        return {"embeddings": DeterministicFakeEmbedding(size=WIDTH), "offsets": OFFSET}


class TestUnit(_Params, EmbeddingsUnitTests):
    """The unit suite."""


class TestIntegration(_Params, EmbeddingsIntegrationTests):
    """The integration suite."""


class TestVectorStore(VectorStoreIntegrationTests):
    """A vector store's suite over the wrapper."""

    @pytest.fixture
    def vectorstore(self):
        """An empty store that embeds through the wrapper."""
        return InMemoryVectorStore(TTTEmbeddings(self.get_embeddings(), offsets=OFFSET))
