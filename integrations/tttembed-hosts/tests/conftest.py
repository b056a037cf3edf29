"""The databases and servers of the tests of the package, which a run from the root of the repository finds."""

from tests.conftest import postgres, postgres_url, serve, sqlite_url, store

__all__ = ["postgres", "postgres_url", "serve", "sqlite_url", "store"]
