"""The world of tools of these tests."""

from tests.catalogues import search

__all__ = ["search"]
