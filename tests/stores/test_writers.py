"""Two writers at the same time, and the texts of documents that both show."""

from threading import Thread

import numpy as np
import pytest

from tttembed_rag.stores import Candidate, Served, observing, open_store
from tttembed_rag.stores.observing import Batch

VECTOR = np.ones(8, np.float32)


@pytest.fixture
def store(store_url):
    """An open store without content."""
    with open_store(store_url) as store:
        yield store


def shown(query, *documents, text=None):
    """A query that was shown *documents*, all with one text."""
    return Served(query, VECTOR, [Candidate(one, VECTOR, text) for one in documents], query=f"text of {query}")


def test_a_text_that_another_writer_gives_makes_all_pairs_wait(store):
    """A query that is shown a document without a text, while somebody gives it one, is asked about too."""
    store.observe([shown("old", "d")])
    store.waiting("judge")
    with store._database.write("observing") as connection:
        observing.observe(connection, Batch([shown("a", "d")], ""), store._salt)
        other = Thread(target=store.observe, args=([shown("b", "d", text="now known")],))
        other.start()
        other.join(0.3)
    other.join()

    assert sorted(one.query for one in store.waiting("judge")) == ["text of a", "text of b", "text of old"]


def test_writers_that_change_the_same_texts_are_not_refused(store):
    """Each writes its own queries and other texts of the same documents."""
    documents = [f"d{number}" for number in range(5)]
    store.observe([shown(f"q{number}", *documents, text="first") for number in range(40)])
    refused = []

    def write(seed):
        rng = np.random.default_rng(seed)
        for turn in range(15):
            some = np.sort(rng.choice(40, 8, replace=False))
            try:
                store.observe([shown(f"q{number}", *documents, text=f"{seed} {turn}") for number in some])
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                refused.append(error)

    writers = [Thread(target=write, args=(seed,)) for seed in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert refused == []
