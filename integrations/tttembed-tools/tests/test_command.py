"""`tttembed tools learn`, and the worker beside it, on the store of a search."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import LargeBinary, func
from tttembed_store import Worker
from tttembed_store.sql import open_store, schema
from tttembed_store.worker.tenant import is_of_tools
from tttembed_tools import LearnedToolSearch

from tests.catalogues import CATALOG, LEARNED, UNSEEN, first, teach
from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeEmbedder, FakeJudge, eventually


def learn(folder, catalog, *options):
    """The exit code and output of the command on the store of a folder."""
    (folder / "tools.json").write_text(json.dumps(catalog), encoding="utf-8")
    given = ["--catalog", folder / "tools.json", "--store", f"sqlite:///{folder}/tools.db"]
    embedder = ["--embed", "python:tttembed_rag.testing:FakeEmbedder"]
    done = CliRunner().invoke(main, ["tools", "learn", *map(str, given), *embedder, *options])
    return done.exit_code, done.output


@pytest.fixture
def store(tmp_path):
    """The store of the folder."""
    with open_store(f"sqlite:///{tmp_path}/tools.db") as store:
        yield store


@pytest.mark.slow
def test_cron_learns_what_agents_did(tmp_path, store):
    """A pass asks a judge as often as it may, and publishes to other processes; the next pass has nothing new."""
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
        teach(search, LEARNED)

    # 48 of the pairs are its examination.
    judge = ("--judge", "python:tttembed_rag.testing:FakeJudge", "--budget", "pairs=55")
    once, again = learn(tmp_path, CATALOG, *judge), learn(tmp_path, CATALOG)
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
        teach(search, UNSEEN[:1])
        after = first(search, UNSEEN)
        few = search.learn(grown=0.1)

    assert once[0] == again[0] == 0
    assert once[1].startswith(f"the shared tenant: published: {len(LEARNED)} requests")
    assert again[1].endswith("; no request is new\n")
    assert after > 0.6
    assert few.reason == "1 requests are new, too few"
    assert len(store.registry.versions()) == 1
    assert store.judge_queue.spent().pairs == 55


@pytest.mark.slow
def test_the_worker_leaves_calls_alone(store):
    """A worker on the same store learns nothing from calls of tools, and takes nothing back."""
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
        teach(search, LEARNED)
        search.learn()

        done = Worker(store, min_new=1).round()

        assert [step.detail for step in done] == ["these are calls of tools: `tttembed tools learn` learns from them"]
        assert [one.by for one in store.registry.versions()] == ["search"]
        assert store.due.tenants() == []


@pytest.mark.slow
def test_the_worker_reads_no_vectors_to_leave_calls_alone(store_url):
    """The settings of the live version are enough, of any width; a damaged version is none of tools."""
    vector, evidence = np.ones(50_000, np.float32) / 500, Evidence(9, None, None, "ungated", "made up")
    offsets = Offsets([Offset("global", vector, 0.9, 9, evidence)], width=50_000, settings={"bm25_weight": 0.5})
    with open_store(store_url) as store:
        none = [store.registry.settings(), is_of_tools(store, "")]
        store.registry.publish(offsets, by="tools")
        with store._database.write("publishing") as connection:  # the vectors are gone, the settings are there
            start = func.substr(schema.versions.c.content, 1, 2_000, type_=LargeBinary)
            connection.execute(schema.versions.update().values(content=start))
        told = [store.registry.settings(), is_of_tools(store, "")]
        with store._database.write("publishing") as connection:
            connection.execute(schema.versions.update().values(content=b"no offsets"))
        damaged = is_of_tools(store, "")

    assert none == [{}, False]
    assert told == [{"bm25_weight": 0.5}, True]
    assert damaged is False


@pytest.mark.slow
@pytest.mark.parametrize("rewarded", [False, True])
def test_a_worker_with_a_judge_leaves_calls_alone(store, rewarded):
    """Its judge is asked about no tool, and what the search serves stays, also where other rewards were written."""
    judge = FakeJudge()
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
        teach(search, LEARNED)
        eventually(lambda: store.counts().rewards == 2 * len(LEARNED))  # calls are written a moment later
        before_learning = Worker(store, judge, min_new=1).round()
        search.learn()
        if rewarded:
            waiting = store.judge_queue.waiting(judge.fingerprint, limit=10)
            given = {one.query_id: dict.fromkeys([shown.doc_id for shown in one.candidates], 0.5) for one in waiting}
            store.judge_queue.judged(judge.fingerprint, given)

        done = Worker(store, judge, min_new=1).round()

    alone = ["these are calls of tools: `tttembed tools learn` learns from them"]
    # What is published under the tenant's lease is nothing that a worker must look at.
    after = alone if rewarded else ["nothing is new"]
    assert [[step.detail for step in one] for one in (before_learning, done)] == [alone, after]
    assert judge.asked == []
    assert [one.by for one in store.registry.versions()] == ["search"]
    assert store.judge_queue.spent().pairs == 0


def test_servers_are_no_tools(tmp_path, store):
    """The file of `tttembed tools serve` names servers: that is said in one line."""
    code, said = learn(tmp_path, {"mcpServers": {"files": {"command": "x"}}})

    assert code == 2
    assert "catalog: expected tools, got mcpServers: `tttembed tools serve` searches their tools" in said
