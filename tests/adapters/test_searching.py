"""Real stores: a wrapper steers their searches, leaves what they hold, and gets vectors back from them."""

import asyncio
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest
from sqlalchemy import NullPool, create_engine

from tests.adapters.conftest import driver_of
from tests.adapters.worlds import CARRYING, POINTING, TASKS, TEXTS, WIDTH, Vectors, drawn, everywhere, knowing
from tttembed_rag import LiveOffsets, Offsets, RewardLog, TextVectors, context

QUERIES = [f"question {i}" for i in range(8)]
STORES = [
    *(("langchain", kind) for kind in ("in_memory", "faiss", "chroma", "qdrant")),
    pytest.param(("langchain", "pgvector"), marks=pytest.mark.slow),
    *(("llama_index", kind) for kind in ("simple", "faiss")),
]


class World:
    """A store of all passages that was built through a wrapper."""

    def __init__(self, name, kind, folder, postgres):
        self.adapter, self.kind, self.postgres = driver_of(name, folder), kind, postgres
        self.vectors, self.live = Vectors(), LiveOffsets(Offsets([], width=WIDTH))
        self.model = self.adapter.wrap(self.adapter.model(self.vectors), self.live)
        self.store = self.build(self.model)

    def build(self, model):
        """Another store, of the same kind."""
        return self.adapter.build(model, TEXTS, self.kind, self.postgres)

    def answers(self, store=None):
        """Texts and scores of all queries."""
        return [self.adapter.search(store or self.store, query, 5) for query in QUERIES]

    def contents(self):
        """A digest of every passage's stored vector, by text."""
        ids = self.adapter.ids(self.store, len(TEXTS))
        vectors = self.adapter.stored(self.store)(list(ids.values()))
        return {text: sha256(np.asarray(vectors[key], np.float32).tobytes()).hexdigest() for text, key in ids.items()}


@pytest.fixture(params=STORES, ids="-".join)
def world(request, tmp_path):
    """One store after the other."""
    return World(
        *request.param, tmp_path, lambda: create_engine(request.getfixturevalue("postgres"), poolclass=NullPool)
    )


def test_without_an_offset_a_store_answers_as_unwrapped(world):
    """At dose 0, and without an offset, results and scores are those of a store that the bare model built."""
    expected = world.answers(world.build(world.model.base))
    alone = world.answers()
    world.live.publish(everywhere(0.0))

    assert expected == alone == world.answers()


def test_an_offset_moves_the_search_and_nothing_in_the_store(world):
    """Bit for bit; rolling back restores the answers."""
    before, stored = world.answers(), world.contents()

    way_back = world.live.publish(everywhere(0.8))
    moved = world.answers()
    held = world.contents()
    world.live.publish(way_back)

    assert sum(one != other for one, other in zip(before, moved, strict=True)) == len(QUERIES)
    assert held == stored
    assert len(stored) == len(TEXTS)
    assert world.answers() == before


def test_a_store_gives_its_vectors(world):
    """By id, in the direction that was embedded; ids that it lacks are left out."""
    ids = world.adapter.ids(world.store, 7)

    vectors = world.adapter.stored(world.store)([*ids.values(), str(uuid.uuid4())])

    def direction(vector):
        return (np.asarray(vector, float) / np.linalg.norm(vector)).tolist()

    assert {key: direction(vector) for key, vector in vectors.items()} == {
        key: pytest.approx(direction(drawn(text)), abs=1e-6) for text, key in ids.items()
    }
    assert len(ids) == 7


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_two_passes_embed_no_document_again(world, asynchronous):
    """A retriever that judges takes the vectors of judged documents from the store, and counts them."""
    if asynchronous and world.kind == "pgvector":
        pytest.skip("a sync PGVector has no async search")
    retriever = world.adapter.retriever(world.store, world.model, knowing(), depth=6)
    before = world.vectors.embedded

    ask = world.adapter.aask if asynchronous else world.adapter.ask
    answer = await ask(retriever, "q") if asynchronous else ask(retriever, "q")

    assert len(answer) == 4
    assert world.vectors.embedded == before
    assert (retriever.vectors.supplied, retriever.vectors.embedded) == (6, 0)


def test_observed_documents_are_not_embedded_again(world):
    """What was noted is learned from with the store's own vectors."""
    log, vectors = RewardLog.of(knowing()), TextVectors(stored=world.adapter.stored(world.store))
    observer = world.adapter.observer(log, vectors=vectors)
    for query in QUERIES:
        world.adapter.observe(observer, world.store, query)
    world.adapter.off(observer)
    log.score_waiting(knowing())
    before = world.vectors.embedded

    rewards = world.model.rewards(log, vectors=vectors)

    assert world.vectors.embedded == before
    assert (vectors.supplied, vectors.embedded) == (len(rewards.doc_vectors), 0)


def test_a_store_that_fails_costs_an_embedding(adapter, caplog):
    """Where the lookup raises, texts are embedded, and the log says why."""

    def away(ids):
        raise TimeoutError

    vectors = TextVectors(stored=away)
    vectors.note([("passage 1", "id")])
    wrapped = adapter.wrap(adapter.model(), Offsets([], width=WIDTH))

    assert wrapped.document_vectors(["passage 1"], vectors=vectors).shape == (1, WIDTH)
    assert (vectors.supplied, vectors.embedded) == (0, 1)
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("tttembed_rag.capture.textvectors", logging.ERROR)
    ]


def test_documents_of_an_unknown_store_are_embedded_again(adapter):
    assert adapter.stored(SimpleNamespace(vector_store=object())) is None


# Many callers


@pytest.fixture
def shared(adapter):
    """A store of one document per task."""
    return adapter.build(adapter.wrap(adapter.model(POINTING), CARRYING), TASKS)


def test_threads_search_under_their_own_task(adapter, shared):
    """32 threads on one store each find their task's document, every time."""
    together = Barrier(32)

    def ask(number):
        with context(task=TASKS[number % WIDTH]):
            together.wait()
            return {adapter.texts(adapter.hits(shared, "q", 1))[0] for _ in range(10)}

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, range(32))) == [{TASKS[number % WIDTH]} for number in range(32)]


async def test_asyncio_tasks_search_under_their_own_task(adapter, shared):
    """200 asyncio tasks on one store each find their task's document; without a task the base vector is served."""

    async def ask(number):
        task = TASKS[number % WIDTH] if number % 5 else None
        with context(task=task):
            await asyncio.sleep(0)
            return task or TASKS[0], adapter.texts(await adapter.ahits(shared, "q", 1))[0]

    answers = await asyncio.gather(*(ask(number) for number in range(200)))

    assert [hit for _, hit in answers] == [expected for expected, _ in answers]
