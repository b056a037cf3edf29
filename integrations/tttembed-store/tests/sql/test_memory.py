"""A store in the memory of a process."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tttembed_store.sql import Candidate, Served, memory_store
from tttembed_store.sql.records import TOOL_CALLS


def served(name):
    """A query with one candidate that was rewarded."""
    return Served(name, np.ones(4), [Candidate("tool", np.ones(4), "a tool", 1.0)], f"query {name}")


def test_two_stores_in_memory_are_two(tmp_path, monkeypatch):
    """Each has what was written to it from any thread, nothing of it is in a file, and what is forgotten is gone."""
    monkeypatch.chdir(tmp_path)
    with memory_store() as store, memory_store() as other, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.observe([served(str(number))], judge="use"), range(20)))
        counts = store.counts().queries, other.counts().queries
        store.forget(tenant="", by="ann")

        assert counts == (20, 0)
        assert store.counts().queries == 0
        assert list(tmp_path.iterdir()) == []


def test_calls_of_tools_wait_for_no_judge():
    """A judge is given the queries that no call rewarded."""
    with memory_store() as store:
        store.observe([served("called")], judge=TOOL_CALLS)
        store.observe([served("shown")], judge="clicks")
        waiting = store.judge_queue.waiting("judge")

        assert [pairs.query for pairs in waiting] == ["query shown"]
