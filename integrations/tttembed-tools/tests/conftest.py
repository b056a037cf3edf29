"""The world of tools of these tests."""

from tests.catalogues import search, stored

__all__ = ["search", "stored"]
