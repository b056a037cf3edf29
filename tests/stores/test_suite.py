"""The published suite, on both databases."""

from tttembed_rag.testing import StoreSuite


class TestStore(StoreSuite):
    """Every test of it; `store_url` is of both kinds."""
