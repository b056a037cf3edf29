"""The tests that every store must pass, by concern."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tttembed_rag.stores import Store, open_store
from tttembed_rag.testing.suite.forgetting import ForgettingTests
from tttembed_rag.testing.suite.learning import LearningTests
from tttembed_rag.testing.suite.observing import ObservingTests
from tttembed_rag.testing.suite.publishing import PublishingTests


class StoreSuite(ObservingTests, LearningTests, PublishingTests, ForgettingTests):
    """All tests of a store; a subclass brings the fixture `store_url`."""

    @pytest.fixture
    def store(self, store_url: str) -> Iterator[Store]:
        """An open store without content."""
        with open_store(store_url) as store:
            yield store
