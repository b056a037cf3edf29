"""Connections of a process: those of a forked child, and those of a store that is closed; `faults` has many at once."""

import sqlite3

import psycopg
import pytest
from sqlalchemy import func, select
from tttembed_store.sql import open_store, schema
from tttembed_store.sql.database import Database

from tests.traffic import JUDGE, traffic

pytestmark = pytest.mark.slow


def test_a_transaction_of_a_store_that_is_closed_ends_and_leaves_no_connection(store_url):
    """What a thread reads or writes is done; its connection closes then, and the store can be used again."""
    with open_store(store_url) as store:
        store.observe(traffic(5), judge=JUDGE)
    database = Database(store_url)
    with database.read() as connection:
        used = connection.connection.dbapi_connection
        database.close()
        assert connection.execute(select(func.count()).select_from(schema.queries)).scalar() == 5

    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        used.execute("SELECT 1")
    with database.read() as first:
        kept = first.connection.dbapi_connection
    with database.read() as second:
        assert second.connection.dbapi_connection is kept
    database.close()
