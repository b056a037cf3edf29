"""The published suite, on both databases."""

from tests.stores.suite import StoreSuite


class TestStore(StoreSuite):
    """Every test of it; `store_url` is of both kinds."""
