"""The store of the tests in this folder: both databases, one after the other."""

import pytest
from tttembed_store.sql import open_store


@pytest.fixture
def store(store_url):
    """An open store without content."""
    with open_store(store_url) as opened:
        yield opened
