"""LangChain's own suites, with and without an offset."""

import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests, VectorStoreIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests
from langchain_tttembed import TTTEmbeddings

from tttembed_rag import Evidence, Offset, Offsets

WIDTH = 6  # EMBEDDING_SIZE of the vector store suite
NO_OFFSET = Offsets([], width=WIDTH)
OFFSET = Offsets(
    [
        Offset(
            scope="global",
            vector=np.linspace(-0.1, 0.1, WIDTH),
            alpha=0.5,
            n=1,
            evidence=Evidence(1, None, None, "ungated", "made for a test"),
        )
    ],
    width=WIDTH,
)


class _Params:
    offsets = NO_OFFSET

    @property
    def embeddings_class(self):
        return TTTEmbeddings

    @property
    def embedding_model_params(self):
        return {"embeddings": DeterministicFakeEmbedding(size=WIDTH), "offsets": self.offsets}


class TestUnitWithoutOffset(_Params, EmbeddingsUnitTests):
    """The unit suite at dose 0."""


class TestUnitWithOffset(_Params, EmbeddingsUnitTests):
    """The unit suite with an offset."""

    offsets = OFFSET


class TestIntegrationWithoutOffset(_Params, EmbeddingsIntegrationTests):
    """The integration suite at dose 0."""


class TestIntegrationWithOffset(_Params, EmbeddingsIntegrationTests):
    """The integration suite with an offset."""

    offsets = OFFSET


class TestVectorStoreWithoutOffset(VectorStoreIntegrationTests):
    """A vector store's suite over the wrapper at dose 0."""

    offsets = NO_OFFSET

    @pytest.fixture
    def vectorstore(self):
        """An empty store that embeds through the wrapper."""
        return InMemoryVectorStore(TTTEmbeddings(self.get_embeddings(), offsets=self.offsets))


class TestVectorStoreWithOffset(TestVectorStoreWithoutOffset):
    """A vector store's suite over the wrapper with an offset."""

    offsets = OFFSET
