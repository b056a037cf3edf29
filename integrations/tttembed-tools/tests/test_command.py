"""`tttembed tools learn`, and the worker beside it, on the store of a search."""

import json

import pytest
from click.testing import CliRunner
from tttembed_store import Worker
from tttembed_tools import LearnedToolSearch

from tests.catalogues import CATALOG, LEARNED, UNSEEN, first, teach
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeEmbedder, FakeJudge


@pytest.fixture
def learn(tmp_path, sqlite_url):
    """Runs the command on the store, with a catalogue; its exit code and output."""

    def run(catalog):
        (tmp_path / "tools.json").write_text(json.dumps(catalog), encoding="utf-8")
        options = ["--catalog", str(tmp_path / "tools.json"), "--store", sqlite_url]
        embedder = ["--embed", "python:tttembed_rag.testing:FakeEmbedder"]
        result = CliRunner().invoke(main, ["tools", "learn", *options, *embedder])
        return result.exit_code, result.output

    return run


@pytest.mark.slow
def test_cron_learns_what_agents_did(learn, store, stored):
    """A pass publishes to other processes; the next pass has nothing new."""
    teach(stored, LEARNED)
    stored.flush()

    once, again = learn(CATALOG), learn(CATALOG)
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
        teach(search, UNSEEN[:1])
        after = first(search, UNSEEN)
        few = search.learn_for_all(growth=0.1)[""]

    assert once[0] == again[0] == 0
    assert once[1].startswith(f"the shared tenant: published: {len(LEARNED)} requests")
    assert again[1] == "nothing is new\n"
    assert after > 0.6
    assert few.reason == "2 rewards are new, 6 are needed"
    assert len(store.registry.versions()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("judge", [None, FakeJudge()])
@pytest.mark.parametrize("rewarded", [False, True])
def test_a_worker_without_the_search_leaves_calls_alone(store, stored, judge, rewarded):
    """Its judge is asked about no tool, and what the search serves stays, also where other rewards were written."""
    alone = ["these are calls of tools: `tttembed tools learn` learns from them"]
    teach(stored, LEARNED)
    stored.flush()
    before = Worker(store, judge, min_new=1).round()
    stored.learn()
    if rewarded:
        ids = [("", past.task, past.query_id) for past in stored.requests()]
        store.reward("fake", {query: {"zeta_redmail": 0.5, "acme_redmail": 0.5} for query in ids})

    worker = Worker(store, judge, min_new=1)
    steps = worker.round()

    assert [step.detail for step in before] == (["no rewards yet"] if judge else alone)
    assert [step.action for step in steps] == ["learned nothing"]
    assert worker.round()[0].detail == "nothing is new"
    assert judge is None or judge.asked == []
    assert [version.number for version in store.registry.versions()] == [1]
    assert store.judge_queue.spent().pairs == 0


def test_servers_are_no_tools(learn):
    """The file of `tttembed tools serve` names servers: that is said in one line."""
    code, output = learn({"mcpServers": {"files": {"command": "x"}}})

    assert code == 2
    assert "catalog: expected tools, got mcpServers: `tttembed tools serve` searches their tools" in output
