"""What goes into a store is checked at once, and written as it was."""

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.making import prepare
from tttembed_store.sql.records import checked_vector
from tttembed_store.sql.rows import insert_all

from tttembed_rag.errors import VectorError
from tttembed_rag.rewards.names import cleaned


def bytes_of(*numbers):
    """Numbers as a store keeps them."""
    return np.array(numbers, dtype="<f4").tobytes()


class TestVectors:
    """Of a query or a candidate."""

    @pytest.mark.parametrize(
        ("vector", "kept"),
        [
            ([1.0, 2.0], (1, 2)),
            (np.array([3.0, 4.0, 5.0], dtype=np.float64), (3, 4, 5)),
            (np.array([6.0, 7.0], dtype=np.float16), (6, 7)),
            ([10, 11, 12], (10, 11, 12)),
            (np.arange(10.0)[::5] + 1, (1, 6)),
            (np.full(4, 1e-30, dtype=np.float32), [1e-30] * 4),  # squares too small for float32 make no zero vector
        ],
    )
    def test_numbers_of_any_kind_are_kept(self, vector, kept):
        """Lists and arrays, of any float type."""
        assert bytes_of(*kept) == checked_vector("vector", vector)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (np.array([1.0, np.nan]), "got NaN"),
            (np.array([1e300, 1.0]), "got infinity"),
            (np.zeros(2), "got a zero vector"),
            (np.ones((1, 2)), r"expected a vector \(d,\), got shape \(1, 2\)"),
            ([], r"expected a vector \(d,\), got shape \(0,\)"),
            (["a"], "expected float16, float32 or float64"),
        ],
    )
    def test_a_bad_vector_is_named(self, bad, message):
        """With the argument, what was expected and what came."""
        with pytest.raises(VectorError, match=f"^candidates: .*{message}"):
            checked_vector("candidates", bad)


class TestTexts:
    """As a database can hold them."""

    def test_only_what_cannot_be_held_is_replaced(self):
        """NUL and lone surrogates, and nothing else."""
        kept = "plain \U0001f600 ü \ud7ff\ue000\uffff\n"

        assert kept == cleaned(kept)
        assert cleaned("a\0b\ud800\udfff") == "a\ufffdb\ufffd\ufffd"


class TestRows:
    """Many at once."""

    @pytest.fixture
    def connection(self, store_url):
        """A transaction on tables of ours."""
        database = Database(store_url)
        prepare(database)
        with database.write("making") as connection:
            yield connection
        database.close()

    def test_a_row_that_is_there_stays_or_is_replaced(self, connection):
        """By its primary key; the others of its batch are written either way."""
        judges = schema.judges
        insert_all(connection, judges, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        insert_all(connection, judges, [{"id": 2, "name": "kept out"}, {"id": 3, "name": "c"}])
        stayed = connection.execute(select(judges.c.name).order_by(judges.c.id)).scalars().all()
        insert_all(connection, judges, [{"id": 1, "name": "A"}, {"id": 4, "name": "d"}], replace=True)

        replaced = connection.execute(select(judges.c.name).order_by(judges.c.id)).scalars().all()
        assert (stayed, replaced) == (["a", "b", "c"], ["A", "b", "c", "d"])

    def test_nothing_is_no_statement(self, connection):
        """A batch without such rows writes none."""
        insert_all(connection, schema.judges, [])

        assert connection.execute(select(schema.judges.c.name)).scalars().all() == []
