"""The databases and servers of the tests of the package, which a run from the root of the repository finds."""

from tests.conftest import new_sqlite_url, postgres, postgres_store, postgres_url, serve, sqlite_file, sqlite_url, store

__all__ = [
    "new_sqlite_url",
    "postgres",
    "postgres_store",
    "postgres_url",
    "serve",
    "sqlite_file",
    "sqlite_url",
    "store",
]
