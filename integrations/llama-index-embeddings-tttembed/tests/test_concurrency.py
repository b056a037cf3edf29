"""One index serves many callers at once, each under its own task."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.embeddings.tttembed import TTTEmbedding

from tttembed_rag import Evidence, Offset, Offsets, context

WIDTH = 32
TASKS = [f"task{i}" for i in range(WIDTH)]


class Axes(BaseEmbedding):
    """One direction for each task's document; every query lies near the first."""

    def _get_query_embedding(self, query):
        return (np.eye(WIDTH)[0] + 0.1).tolist()

    async def _aget_query_embedding(self, query):
        await asyncio.sleep(0)
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text):
        return np.eye(WIDTH)[TASKS.index(text)].tolist()


@pytest.fixture
def retriever():
    """The best node of an index of one document per task, where each task's offset points to its document."""
    evidence = Evidence(4, None, None, "ungated", "made for a test")
    learned = [
        Offset(scope="task", task=task, vector=4 * axis, alpha=0.9, n=4, evidence=evidence)
        for task, axis in zip(TASKS, np.eye(WIDTH), strict=True)
    ]
    wrapped = TTTEmbedding(Axes(), offsets=Offsets(learned, width=WIDTH))
    index = VectorStoreIndex([TextNode(text=task) for task in TASKS], embed_model=wrapped)
    return index.as_retriever(similarity_top_k=1)


def test_threads_retrieve_under_their_own_task(retriever):
    """32 threads on one index each find their task's document, every time."""
    together = Barrier(32)

    def ask(task):
        with context(task=task):
            together.wait()
            return {retriever.retrieve("q")[0].text for _ in range(10)}

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, TASKS)) == [{task} for task in TASKS]


async def test_asyncio_tasks_retrieve_under_their_own_task(retriever):
    """200 asyncio tasks on one index each find their task's document; without a task the base vector is served."""

    async def ask(number):
        task = TASKS[number % 32] if number % 5 else None
        with context(task=task):
            await asyncio.sleep(0)
            found = await retriever.aretrieve("q")
            return task or TASKS[0], found[0].text

    answers = await asyncio.gather(*(ask(number) for number in range(200)))

    assert [found for _, found in answers] == [expected for expected, _ in answers]
