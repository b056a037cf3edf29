"""The tests that every store must pass, by concern."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.suite.forgetting import ForgettingTests
from tests.stores.suite.learning import LearningTests
from tests.stores.suite.observing import ObservingTests
from tests.stores.suite.publishing import PublishingTests
from tttembed_rag.stores import Store, open_store


class StoreSuite(ObservingTests, LearningTests, PublishingTests, ForgettingTests):
    """All tests of a store; a subclass brings the fixture `store_url`."""

    @pytest.fixture
    def store(self, store_url: str) -> Iterator[Store]:
        """An open store without content."""
        with open_store(store_url) as store:
            yield store
