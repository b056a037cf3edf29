"""What goes into a store is checked at once, and written as it was."""

import numpy as np
import pytest
from sqlalchemy import select

from tttembed_rag.errors import VectorError
from tttembed_rag.rewards.names import cleaned
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.migrating import migrate
from tttembed_rag.stores.records import checked_vectors
from tttembed_rag.stores.rows import insert_all


def bytes_of(*numbers):
    """Numbers as a store keeps them."""
    return np.array(numbers, dtype="<f4").tobytes()


class TestVectors:
    """Of all candidates of a batch at once."""

    def test_each_comes_back_in_its_place(self):
        """Lists and arrays, of any float type, width and byte order of one batch."""
        vectors = [
            [1.0, 2.0],
            np.array([3.0, 4.0, 5.0], dtype=np.float64),
            np.array([6.0, 7.0], dtype=np.float32),
            np.array([8.0, 9.0], dtype=np.float16),
            [10, 11, 12],
            np.arange(10.0)[::5] + 1,
        ]

        found = checked_vectors([("vector", vector) for vector in vectors])

        assert [bytes_of(*vector) for vector in vectors] == found

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (np.array([1.0, np.nan]), "got NaN"),
            (np.array([1e300, 1.0]), "got infinity"),
            (np.zeros(2), "got a zero vector"),
            (np.ones((1, 2)), r"expected a vector \(d,\), got shape \(1, 2\)"),
            ([], r"expected a vector \(d,\), got shape \(0,\)"),
            (["a"], "expected float32 or float64"),
        ],
    )
    def test_one_bad_vector_is_named(self, bad, message):
        """Whatever lies around it is good."""
        named = [("vector", np.ones(2)), ("candidates", bad), ("vector", np.ones(2))]

        with pytest.raises(VectorError, match=f"^candidates: .*{message}"):
            checked_vectors(named)

    def test_tiny_numbers_are_a_vector(self):
        """Squares that are too small for float32 make no zero vector."""
        tiny = np.full(4, 1e-30, dtype=np.float32)

        assert [tiny.tobytes()] == checked_vectors([("vector", tiny)])


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
        migrate(database)
        with database.write("migrating") as connection:
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
