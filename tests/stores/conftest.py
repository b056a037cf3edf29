"""Databases for the tests of stores: SQLite files, and a PostgreSQL of our own or of the environment."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid

import pytest
from sqlalchemy import create_engine, make_url, text

pytest.register_assert_rewrite("tttembed_rag.testing")


@pytest.fixture(scope="session")
def postgres():
    """The URL of a running PostgreSQL; skips, and says so, where there is none and none can be started."""
    if url := os.environ.get("TTTEMBED_TEST_POSTGRES"):
        yield make_url(url).set(drivername="postgresql+psycopg")
        return
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL: pgserver is not installed")
    # Not below pytest's own folder, which the server's user may not enter where root runs the tests.
    folder = tempfile.mkdtemp(prefix="tttembed-postgres-")
    try:
        server = pgserver.get_server(folder)
    except Exception as exc:  # noqa: BLE001 - whatever keeps it from starting here
        pytest.skip(f"PostgreSQL could not be started: {exc}")
    yield make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres):
    """The URL of an empty schema, which for a store is a database of its own."""
    name = f"tttembed_{uuid.uuid4().hex}"
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    yield postgres.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    engine.dispose()


@pytest.fixture
def sqlite_url(tmp_path):
    """The URL of a file that is not there yet."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """One after the other."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
