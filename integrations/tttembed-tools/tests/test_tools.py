"""The learned search: what it finds, before and after it was told which tools worked."""

import logging
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import httpx
import numpy as np
import pytest
from tttembed_store import open_store
from tttembed_store.sql.records import TOOL_CALLS
from tttembed_store.worker.tenant import read_memory
from tttembed_tools import LearnedToolSearch, Turns, is_outage
from tttembed_tools.index import WEIGHT, best, fused
from tttembed_tools.learning import learn, rewards_of_outcomes, usable

import tttembed_rag
from tests.catalogues import CATALOG, LEARNED, TOPICS, UNSEEN, first, request, teach
from tttembed_rag.errors import InputError, StoreUnavailable
from tttembed_rag.gate.fit import fit
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.testing import FakeEmbedder

# Searching


def test_a_tool_is_found_by_its_words(search):
    """The tools that share words with the request come first, at most k of them."""
    assert search("handle a redmail in the acme suite", k=1) == ["acme_redmail"]
    assert set(search(request("bluefile"), k=2)) == {"acme_bluefile", "zeta_bluefile"}
    assert len(search("anything", k=1000)) == len(CATALOG)


def test_only_allowed_tools_are_found(search):
    """`among` names the tools that may be found; names that are no tools are passed over."""
    assert search(request("redmail"), among=["zeta_bluefile", "acme_redmail", "gone"]) == [
        "acme_redmail",
        "zeta_bluefile",
    ]
    assert search(request("redmail"), among=[]) == []


def test_a_tool_that_is_named_to_the_letter_is_found(search):
    """It takes the last place where the search would not list it; a plain word in a request is no name."""
    query = f"{request('redmail')}, then zeta_bluefile. (not Acme_redmail)"
    search.add([{"name": "handle", "description": "turns a door"}, {"name": "sendMail.now", "description": "posts"}])
    unnamed = search(request("redmail"), k=2)

    assert "zeta_bluefile" not in unnamed
    assert search(query, k=2) == ["acme_redmail", "zeta_bluefile"]
    assert {"sendMail.now", "zeta_bluefile"} == set(search("run sendMail.now, and zeta_bluefile", k=2))
    assert search("zeta_bluefile", k=1, among=["acme_redmail"]) == ["acme_redmail"]
    assert "handle" not in search(f"handle {request('redmail')}", k=1)


def test_nothing_is_found_where_there_is_nothing(search):
    """A blank request, and an empty catalogue, find no tools."""
    assert search("  ") == []
    assert LearnedToolSearch([], FakeEmbedder())("a request") == []


def test_bm25_finds_tools_while_the_model_is_down(search, caplog):
    """Where the embedding model fails, that is logged, and keywords alone find the tools."""
    search._embedder.error = ConnectionError("down")

    with caplog.at_level(logging.ERROR, "tttembed_rag"):
        found = search("a redmail for zeta", k=1)

    assert found == ["zeta_redmail"]
    assert "BM25 alone" in caplog.text


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [
        (None, 5, "query: expected a text"),
        (b"by", 5, "query: expected a text"),
        ("x", 0, "k: expected at least 1"),
        ("x", "2", "k: expected at least 1"),
    ],
)
def test_wrong_arguments_are_refused(search, query, k, message):
    """Requests that are no texts and counts below one are refused in one line."""
    with pytest.raises(InputError, match=message):
        search(query, k)


def test_the_best_scores_come_in_order():
    """The k best places, of equal scores the first, are those of a full stable sort."""
    scores = np.random.default_rng(0).integers(0, 9, 50).astype(np.float32)

    assert [best(scores, k).tolist() for k in range(1, 60)] == [
        np.argsort(-scores, kind="stable")[:k].tolist() for k in range(1, 60)
    ]


def test_a_leg_that_says_nothing_counts_nothing():
    """A leg with equal scores leaves the order to the other one; no score is NaN."""
    dense, nothing = np.array([0.1, 0.9, 0.3], dtype=np.float32), np.zeros(3, dtype=np.float32)

    assert best(fused(dense, nothing, WEIGHT), 3).tolist() == [1, 2, 0]
    assert best(fused(nothing, dense, WEIGHT), 3).tolist() == [1, 2, 0]
    assert fused(nothing, nothing, WEIGHT).tolist() == [0, 0, 0]


def test_the_application_decides_what_is_logged():
    """An application that logs from INFO on sees nothing of how an index is built."""
    code = (
        "import logging; logging.basicConfig(level='INFO')\n"
        "from tttembed_rag.testing import FakeEmbedder\n"
        "from tttembed_tools import LearnedToolSearch\n"
        "print(LearnedToolSearch({'a': 'one'}, FakeEmbedder())('one'))"
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("['a']\n", "")


# The catalogue changes


def test_only_new_and_changed_tools_are_embedded(search):
    """Adding a catalogue embeds the tools that are new or have another text, and no others."""
    model = search._embedder
    model.documents.clear()

    added = search.add({**CATALOG, "acme_redmail": "Something else.", "new": "A new tool."})

    assert added == 2
    assert model.documents == ["acme_redmail: Something else.", "new: A new tool."]
    assert search("something else", k=1) == ["acme_redmail"]
    assert (search.add(CATALOG | {"new": "A new tool."}), search.add({"new": "A new tool."})) == (1, 0)


def test_tools_go_away(search):
    """A tool that was removed is not found, also where it was learned that it works."""
    teach(search, LEARNED)
    search.learn()
    search.remove(["zeta_redmail"])

    assert "zeta_redmail" not in search(request("redmail"), k=1000)
    search.learn()
    assert search(request("bluefile"), k=1) == ["zeta_bluefile"]


# Learning


def test_requests_of_tools_never_called_get_better(search):
    """What worked for thirty requests brings the right suite to the front for requests and tools never seen."""
    before = first(search, UNSEEN)
    teach(search, LEARNED)

    lesson = search.learn()

    assert lesson.published
    assert lesson.requests == len(LEARNED)
    assert before < 0.8
    assert first(search, UNSEEN) > 0.6


@pytest.mark.parametrize("failures", [True, False])
@pytest.mark.parametrize("k", [2, 5, 10])
def test_failures_are_learned_from_beside_successes(search, k, failures):
    """An agent that reports everything that it was shown teaches as much as one that reports what worked."""
    for topic in LEARNED:
        for name in search(request(topic), k):
            works = name == f"zeta_{topic}"
            if works or failures:
                search.used(request(topic), name, works)

    assert search.learn().moves
    assert first(search, UNSEEN) > 0.9


def rewarded(search):
    """Each request that is learned from, with the rewards of items by their names and the source that they are of."""
    requests = usable(search.requests(), search._index)
    rewards = rewards_of_outcomes(requests, search._index)
    rows = [slice(*rewards.starts[row : row + 2]) for row in range(len(requests))]
    names = [rewards.doc_ids[rewards.candidates[pairs]] for pairs in rows]
    worths = [dict(zip(ids, rewards.values[pairs], strict=True)) for ids, pairs in zip(names, rows, strict=True)]
    return list(zip(requests, worths, rewards.sources.tolist(), strict=True))


def test_what_was_not_listed_was_not_refused(search):
    """A tool is compared with those of its own list: of one search, of several, and of one that was made elsewhere."""
    lists = [search(request(LEARNED[0]), k=3), search(request(LEARNED[1]), k=2), search(request(LEARNED[1]), k=4)]
    lists.append(search.listed(request(LEARNED[2]), ["acme_redmail", "zeta_redmail"]))
    for topic in LEARNED[:3]:
        search.used(request(topic), f"zeta_{topic}")
        search.used(request(topic), f"acme_{topic}", False)
    listed = {request(LEARNED[0]): lists[0], request(LEARNED[1]): lists[2], request(LEARNED[2]): lists[3]}
    for past, worth, _ in rewarded(search):
        assert set(worth) == {*listed[past.query], *past.outcomes}
        assert {name: reward for name, reward in worth.items() if reward} == past.outcomes


def test_one_source_learns_where_nobody_else_is_served(search):
    """Alone in its tenant it is believed like a user of his own search; beside another source it is one voice."""
    for topic in LEARNED:
        search.used(request(topic), f"zeta_{topic}", source="ada")
    alone = search.learn()
    by_alone = first(search, UNSEEN)
    search.used(request(UNSEEN[0]), f"zeta_{UNSEEN[0]}", source="bob")

    assert alone.moves
    assert by_alone > 0.6
    assert not search.learn().moves


@pytest.mark.parametrize(("source", "tenant"), [("anonymous", ""), ("ada", "other")])
def test_one_source_moves_nobody_else(search, source, tenant):
    """Callers over HTTP whom nobody named may be many, and tenants without offsets are served the shared ones."""
    with tttembed_rag.context(tenant=tenant):
        search.used(request(UNSEEN[0]), f"zeta_{UNSEEN[0]}", source=source)
        search.flush()
    for topic in LEARNED:
        search.used(request(topic), f"zeta_{topic}", source=source)

    lesson = search.learn()

    assert not lesson.moves
    assert "one source alone" in lesson.reason


def test_a_call_joins_no_search_of_another_client(search):
    """It belongs to the searches of its own session, tenant and source; without a session it credits nothing."""
    turns, topic = Turns(search), LEARNED[0]
    for key, tenant, source, called in (
        ("", "", "ann", ""),
        ("first", "", "ann", "second"),
        ("third", "", "ann", ""),
        ("fourth", "acme", "ann", "fourth"),
        ("fifth", "", "ann", "fifth"),
    ):
        with tttembed_rag.context(tenant=tenant, source=source):
            turns.search(key, request(topic), 4, search.names)
        for other in ("eve", "ann"):
            with tttembed_rag.context(source=other):
                turns.used(called, f"zeta_{topic}", succeeded=True)
        kept = [past.source for past in search.requests()]
        assert kept == (["ann"] if key == "fifth" else [])


@pytest.mark.parametrize("named", [True, False])
def test_one_caller_takes_no_place_of_others(named):
    """Of more requests than are learned from, those of who calls most go first, with a name or without one."""
    with LearnedToolSearch(CATALOG, FakeEmbedder(), last=6) as search:
        for place, topic in enumerate(TOPICS[:12]):
            source = ("ann", "bob")[place] if place < 2 else "eve" * named
            search.used(request(topic), f"zeta_{topic}", source=source)
            search.flush()  # the order is that of the calls

        sources = [past.source for past in search.requests()]

    assert sorted(sources) == sorted(["ann", "bob", *["eve" * named] * 4])


def test_callers_without_a_name_are_sources(search):
    """No judge vouches for what they say: each request is a source, and none of them the judge."""
    teach(search, LEARNED[:3])
    search.used(request(LEARNED[0]), f"acme_{LEARNED[0]}", source="ada")

    sources = [(past.source, source) for past, _, source in rewarded(search)]

    assert len({source for _, source in sources}) == 4
    assert {past for past, _ in sources} == {"", "ada"}
    assert all(source and source == (past or source) for past, source in sources)


def test_a_tool_that_one_user_called_is_no_contrast_for_another(search):
    """Two tools that each worked for a user of one request: neither counts as worse for the user of the other."""
    for topic in LEARNED[:2]:
        search.used(request(topic), f"zeta_{topic}", source="ada")
        search.used(request(topic), f"acme_{topic}", source="bob")

    for past, worth, _ in rewarded(search):
        topic = past.query.removeprefix("please handle my ")
        suite, other = ("zeta", "acme") if past.source == "ada" else ("acme", "zeta")
        assert len(worth) == 9
        assert worth[f"{suite}_{topic}"] == 1
        assert f"{other}_{topic}" not in worth


def test_outcomes_at_random_teach_nothing(search):
    """Where the tool that works is drawn at random, nothing is served."""
    rng = np.random.default_rng(0)
    for topic in LEARNED:
        search.used(request(topic), str(rng.choice(list(CATALOG))))

    before = [search(request(topic)) for topic in UNSEEN]
    search.learn()

    assert [search(request(topic)) for topic in UNSEEN] == before


def test_failures_alone_teach_nothing(search):
    """Tools that failed say little of what would have worked: at least two requests with a success are needed."""
    for topic in LEARNED:
        search.used(request(topic), f"acme_{topic}", False)

    lesson = search.learn()

    assert str(lesson) == (
        f"nothing new: 0 requests, weight of BM25 {WEIGHT}; expected at least 2 requests for which an item helped"
    )


def test_nothing_is_learned_twice(search):
    """A second pass over the same outcomes fits nothing."""
    teach(search, LEARNED)
    search.learn()

    assert search.learn().reason == "nothing is new"


def test_learning_goes_on_beyond_the_last_requests():
    """Where as many requests are kept as are learned from, new ones are learned from, once they are a tenth."""
    with LearnedToolSearch(CATALOG, FakeEmbedder(), last=20) as search:
        teach(search, TOPICS[:20])
        search.learn()
        teach(search, TOPICS[20:21])
        few = search.learn_for_all(growth=0.1)[""]
        teach(search, LEARNED[21:])

        assert few.reason == "2 rewards are new, 4 are needed"
        assert search.learn_for_all(growth=0.1)[""].published


def test_the_weight_of_keywords_is_learned():
    """Where keywords mislead in every request, BM25 weighs less after learning."""
    rng = np.random.default_rng(1)
    vectors = {}
    catalog = {}
    for i in range(60):
        catalog[f"tool{i}"] = f"word{i}"
        vectors[f"tool{i}: word{i}"] = rng.standard_normal(16)
    # The request lies near its tool, and names another one.
    for i in range(60):
        vectors[f"word{(i + 7) % 60}"] = vectors[f"tool{i}: word{i}"] + 0.3 * rng.standard_normal(16)
    search = LearnedToolSearch(catalog, FakeEmbedder(16, vectors=vectors))
    for i in range(40):
        search.used(f"word{(i + 7) % 60}", f"tool{i}")

    assert search.learn().weight < WEIGHT


def test_an_offset_that_gains_nothing_in_the_fused_list_is_not_served():
    """What moves dense lists only, where BM25 beside them finds every tool first, is withheld at the end of both."""
    rng = np.random.default_rng(1)
    side, vectors, catalog = 3 * np.eye(16)[0], {}, {}
    for i in range(60):
        catalog[f"tool{i}"], topic = f"word{i}", rng.standard_normal(16)
        vectors[f"tool{i}: word{i}"] = topic + side * (-1) ** i
        vectors[f"word{i}"] = topic - side / 5
    search = LearnedToolSearch(catalog, FakeEmbedder(16, vectors=vectors))
    for i in range(0, 60, 2):
        search.used(f"word{i}", f"tool{i}")
    requests, items = usable(search.requests(), search._index), search._index

    alone = fit(rewards_of_outcomes(requests, items), scope="task")
    both = learn(requests, items)

    assert any(offset.served for offset in alone.values())
    assert [search(past.query, k=1) for past in requests] == [list(past.outcomes) for past in requests]
    assert not any(offset.served for offset in both.values())


def test_copies_of_a_request_prove_nothing(search):
    """A request of five agents is one question, held out as one: random outcomes are not learned."""
    rng = np.random.default_rng(3)
    for topic in LEARNED:
        tool = str(rng.choice(list(CATALOG)))
        for number in range(5):
            search.used(request(topic), tool, source=f"agent {number}")

    assert not search.learn().moves


def test_tasks_learn_apart(search):
    """Two servers whose users need opposite suites each get their own."""
    with tttembed_rag.context(task="mail"):
        teach(search, LEARNED)
    with tttembed_rag.context(task="files"):
        for topic in LEARNED:
            search.used(request(topic), f"acme_{topic}")
    search.learn()

    with tttembed_rag.context(task="mail"):
        assert first(search, UNSEEN) > 0.6
    with tttembed_rag.context(task="files"):
        assert first(search, UNSEEN) < 0.2


def test_tenants_learn_apart(search):
    """What one tenant teaches moves no other tenant, and not the shared one."""
    before = first(search, UNSEEN)
    with tttembed_rag.context(tenant="ada"):
        teach(search, LEARNED)
        search.learn()
        assert first(search, UNSEEN) > 0.6
    with tttembed_rag.context(tenant="bob"):
        assert first(search, UNSEEN) == before

    assert first(search, UNSEEN) == before


def test_outcomes_of_nobody_are_kept_by_no_store_with_tenants(tmp_path):
    """A thread of a pool knows no context, and of generators that take turns each has its own."""

    def calls(tenant):
        with tttembed_rag.context(tenant=tenant):
            for number in range(2):
                search.used(f"{tenant}'s {number}", "acme_redmail")
                yield

    with (
        open_store(f"sqlite:///{tmp_path}/tools.db") as store,
        LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search,
    ):
        ada, bob = calls("ada"), calls("bob")
        for caller in (ada, bob, ada, bob):
            next(caller)
        search.used("whose?", "acme_redmail")
        ada.close()
        bob.close()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(search.used, "whose?", "acme_redmail").result()
        search.flush()
        kept = [sorted(past.query for past in search._outcomes.requests(tenant, 64)) for tenant in ("", "ada", "bob")]

    assert kept == [[], ["ada's 0", "ada's 1"], ["bob's 0", "bob's 1"]]


def test_a_tenant_without_evidence_keeps_what_is_shared(search):
    """Two requests of a tenant support nothing: it goes on being served what the shared tenant learned."""
    teach(search, LEARNED)
    search.learn()
    with tttembed_rag.context(tenant="ada"):
        teach(search, UNSEEN[:2])

        assert not search.learn().published
        assert first(search, UNSEEN) > 0.6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "gone"}, r"name: expected one of \d+ tools, got 'gone'"),
        ({"query": ""}, "query: expected the text of the request, got ''"),
        ({"query": 7}, "query: expected a text, got int"),
        ({"succeeded": "no"}, "succeeded: expected True or False, got 'no'"),
        ({"succeeded": 5}, "succeeded: expected True or False, got 5"),
        ({"succeeded": None}, "succeeded: expected True or False, got None"),
    ],
)
def test_outcomes_of_nothing_are_refused(search, wrong, message):
    """In one line that names the argument; a word that is no answer would count as a success."""
    with pytest.raises(InputError, match=f"^{message}$"):
        search.used(**{"query": "a request", "name": "zeta_redmail"} | wrong)


# Nothing fits


def many(count, sources):
    """A search that abstains, with vectors of its own, and the nearest tool of each of *count* requests at .5 to .9."""
    rng, vectors = np.random.default_rng(0), {}
    texts = {f"tool{i}": f"number{i}" for i in range(20)}
    axes = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    vectors |= {f"{name}: {text}": axes[i] for i, (name, text) in enumerate(texts.items())}
    for i in range(count):
        near = 0.5 + 0.4 * i / count
        vectors[f"request {i}"] = near * axes[i % 20] + np.sqrt(1 - near**2) * axes[20 + i % 20]
    vectors |= {"far away": 0.1 * axes[0] - np.sqrt(1 - 0.01) * axes[39], "call_me tool3_now": axes[39]}
    search = LearnedToolSearch(texts, FakeEmbedder(40, vectors=vectors), abstain=True)
    for i in range(count):
        search.used(f"request {i}", f"tool{i % 20}", source=f"source {i % sources}" if sources else None)
    search.learn()
    return search


@pytest.mark.parametrize(("count", "sources"), [(44, 0), (320, 20)])
def test_it_finds_something_until_it_is_certain(count, sources):
    """Too few requests, or requests of too few sources, prove no floor."""
    assert len(many(count, sources)("far away")) == 5


def test_nothing_is_found_where_nothing_fits():
    """Below the floor of requests for which a tool worked nothing is found but what is named."""
    search = many(60, 0)
    search.add({"tool3_now": "does it now"})

    assert search("far away") == []
    assert search("call_me tool3_now") == ["tool3_now"]
    assert len(search("request 5")) == 5


# Turns


def test_repeated_searches_are_one_request(search):
    """Searches in other words are one request, known by its first words, until a tool has worked."""
    turn = search.turn()
    turn.search("handle redmail")
    turn.search("something about red mail")
    turn.used("acme_redmail", False)
    turn.used("zeta_redmail")
    turn.used("zeta_redmail", False)  # it has worked already
    turn.search("now the bluefile")
    turn.used("zeta_bluefile")

    outcomes = {past.query: dict(past.outcomes) for past in search.requests()}

    assert outcomes == {
        "handle redmail": {"acme_redmail": 0.2, "zeta_redmail": 1.0},
        "now the bluefile": {"zeta_bluefile": 1.0},
    }


def test_calls_before_any_search_say_nothing(search):
    """A tool that is called without a search before it is no outcome of a search."""
    search.turn().used("zeta_redmail")

    assert search.requests() == []


def test_an_outcome_of_a_forgotten_request_is_not_kept(tmp_path):
    """A turn that goes on brings nothing back; a request that is searched anew is another one."""
    with (
        open_store(f"sqlite:///{tmp_path}/tools.db") as store,
        LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search,
    ):
        turn, kept = search.turn(), []
        turn.search(request("redmail"))
        store.forget(tenant="", query_id=request("redmail"), by="ann")
        for ask in (None, "in other words", request("redmail")):
            if ask:
                turn.search(ask)
            turn.used("zeta_redmail", False)
            kept.append([past.query for past in search.requests()])
        turn.used("zeta_redmail")  # a later outcome of the same tool and search counts
        outcomes = [dict(past.outcomes) for past in search.requests()]

    assert kept == [[], [], [request("redmail")]]
    assert [list(rewards.values()) for rewards in outcomes] == [[1.0]]


# Explaining


def test_an_explanation_names_ranks_reasons_and_earlier_requests(search):
    """Ranks before and after, the offset with its evidence, and the requests for which an item helped."""
    assert search.explain(request("redmail"), 1).startswith(
        "'please handle my redmail': nothing was learned yet; BM25 weighs 0.35 as at first\n#1 "
    )
    teach(search, LEARNED)
    search.used("something else", f"zeta_{LEARNED[0]}")
    search.learn()

    reason, found, _ = search.explain(request(UNSEEN[0]), 2).splitlines()
    _, near = search.explain(request(LEARNED[0]), 1).splitlines()

    assert reason.startswith(f"'{request(UNSEEN[0])}': moved by ")
    assert "published" in reason
    assert found.startswith(f"#1 zeta_{UNSEEN[0]} (")
    assert f"; helped with '{request(LEARNED[0])}' (1.00)" in near


# Stores


@pytest.mark.slow
def test_what_was_learned_survives(tmp_path):
    """Another search on the same store serves what this one learned, at once."""
    url = f"sqlite:///{tmp_path}/tools.db"
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=url) as search:
        teach(search, LEARNED)
        assert search.learn().published
        assert first(search, UNSEEN) > 0.6

    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=url) as again:
        assert first(again, UNSEEN) > 0.6


def test_tools_that_were_not_called_stay_unjudged(tmp_path):
    """The store holds a reward for each call and for nothing else: what was listed beside it has none, and no 0."""
    with open_store(f"sqlite:///{tmp_path}/tools.db") as store:
        with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
            for topic in LEARNED:
                search(request(topic), k=10)
                search.used(request(topic), f"zeta_{topic}")
            search.learn()

        rewards = store.rewards(TOOL_CALLS)

        assert rewards.values.tolist() == [1.0] * len(LEARNED)
        assert (store.counts().rewards, store.counts().pairs) == (len(LEARNED), 10 * len(LEARNED))


@pytest.mark.slow
def test_two_processes_lose_no_outcome(tmp_path):
    """Outcomes of another process are learned from here."""
    url = f"sqlite:///{tmp_path}/tools.db"
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from tests.catalogues import *\n"
        "with LearnedToolSearch(CATALOG, FakeEmbedder(), store=sys.argv[1]) as search:\n"
        "    teach(search, LEARNED[:15])"
    )
    here = str(Path(__file__).resolve().parents[3])
    subprocess.run([sys.executable, "-c", code, url, here], check=True)

    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=url) as search:
        teach(search, LEARNED[15:])

        assert search.learn().requests == len(LEARNED)


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Gives a taught search over a store; what is *meanwhile* happens once while it learns."""
    with open_store(f"sqlite:///{tmp_path}/tools.db") as store, ExitStack() as stack:

        def interrupted(meanwhile):
            events = [meanwhile]

            def slowly(requests, index):
                if events:
                    events.pop()(store)
                return learn(requests, index)

            monkeypatch.setattr("tttembed_tools.learning.learn", slowly)
            search = LearnedToolSearch(CATALOG, FakeEmbedder(), store=store)
            teach(stack.enter_context(search), LEARNED)
            return search, store

        yield interrupted


@pytest.mark.slow
def test_one_process_learns_for_a_tenant_at_a_time(interrupted):
    """While one is at it, the other one gives way, and says so."""
    lessons = []

    def learn_too(store):
        with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as other:
            lessons.append(other.learn())

    search, store = interrupted(learn_too)

    assert search.learn().published
    assert [lesson.reason for lesson in lessons] == ["another worker is at work for it"]
    assert search.learn().reason == "nothing is new"
    assert len(store.registry.versions()) == 1


def test_what_is_forgotten_while_it_is_learned_from_is_not_served(interrupted):
    """Nothing of it is published, and nothing is kept of what was learned from."""
    search, store = interrupted(lambda store: store.forget(tenant="", by="ann"))
    lesson = search.learn()

    assert not lesson.published
    assert "nothing was changed" in lesson.reason
    assert store.registry.versions() == []
    assert read_memory(store, "").learned == 0


@pytest.mark.slow
def test_what_gave_way_is_learned_by_the_next_pass(interrupted):
    """Requests of which the lesson was not served, as a person published meanwhile, stay new."""
    search, store = interrupted(lambda store: store.registry.publish(Offsets([], width=64), by="ann"))

    assert not search.learn().published
    assert search.learn().published
    assert search.learn().reason == "nothing is new"
    assert [version.by for version in store.registry.versions()] == ["worker", "ann"]


def test_a_store_keeps_who_called_a_tool(tmp_path):
    """Outcomes of two agents for one request are two, and each counts for its own."""
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=f"sqlite:///{tmp_path}/tools.db") as search:
        search.used(request("redmail"), "zeta_redmail", source="ada")
        search.used(request("redmail"), "zeta_redmail", False, source="bob")
        search.used(request("redmail"), "acme_redmail", source="bob")
        worth = {past.source: sorted(past.outcomes.values()) for past in search.requests()}

    assert worth == {"ada": [1.0], "bob": [0.2, 1.0]}


def test_a_store_that_goes_away_costs_no_search(tmp_path):
    """Searches and outcomes go on while the store is out of reach; learning says so."""
    url = f"sqlite:///{tmp_path}/tools.db"
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=url) as search:
        teach(search, LEARNED)
        search.learn()
        search._outcomes.store.close()
        for file in tmp_path.iterdir():
            file.unlink()
        (tmp_path / "tools.db").mkdir()

        assert first(search, UNSEEN) > 0.6
        search.used(request("redmail"), "zeta_redmail")
        with pytest.raises(StoreUnavailable):
            search.learn()
        search._outcomes._log.close(0)  # else the end waits 30 s for the store


def test_a_store_without_texts_is_refused(tmp_path):
    """BM25 reads the texts of requests: a store that keeps none is refused in one line."""
    with (
        open_store(f"sqlite:///{tmp_path}/tools.db", texts=False) as store,
        pytest.raises(InputError, match="store: expected one that keeps texts"),
    ):
        LearnedToolSearch(CATALOG, FakeEmbedder(), store=store)


def test_learning_goes_on_in_the_background(tmp_path):
    """Within `learning`, every tenant's outcomes are learned from without being asked."""
    with (
        LearnedToolSearch(CATALOG, FakeEmbedder(), store=f"sqlite:///{tmp_path}/tools.db") as search,
        tttembed_rag.context(tenant="ada"),
    ):
        teach(search, LEARNED)
        with search.learning(every=0.05):
            for _ in range(400):
                if first(search, UNSEEN) > 0.6:
                    break
                time.sleep(0.02)

        assert first(search, UNSEEN) > 0.6


# Threads and loops


@pytest.mark.slow
def test_threads_search_add_and_learn_at_once(search):
    """Searches, outcomes, new tools and learning from many threads disturb one another nowhere."""

    def work(number):
        search.add({f"extra{number}": f"Extra tool {number}"})
        teach(search, LEARNED[number::8])
        found = [search(request(topic), k=3) for topic in TOPICS]
        search.learn()
        return all(len(names) == 3 for names in found)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    search.learn()

    assert len(search.names) == len(CATALOG) + 8
    assert len(search.requests()) == len(LEARNED)
    assert first(search, UNSEEN) > 0.6


# What a source found out for itself


def test_what_helped_a_source_comes_first_for_it_alone(search):
    """The same request, and one a typo away, finds it first at once; for others, and for other tasks, nothing moves."""
    query, last = request("redmail"), search(request("redmail"), k=len(CATALOG))[-1]
    near = query.replace("please", "pleasse")
    search._embedder._vectors[near] = search._vector(query) + 0.01
    for source in ("ada", "", "anonymous"):
        search.used(query, last, source=source)
    search.used(query, search(query, k=1)[0], False, source="bob")

    with tttembed_rag.context(source="ada"):
        assert search(query, k=1) == search(near, k=1) == [last]
        assert search(query, k=1, among=search.names) == [last]
        assert last in search.explain(query, k=1)
        assert search(request("bluefile"), k=1) != [last]
        with tttembed_rag.context(task="other"):
            assert search(query, k=1) != [last]
        with tttembed_rag.context(tenant="other"):
            assert search(query, k=1) != [last]
    for source in ("bob", "", "anonymous"):
        with tttembed_rag.context(source=source):
            assert last not in search(query, k=5)


def test_what_helped_a_source_outlives_the_process_and_is_forgotten_with_it(tmp_path):
    """Another process puts it first too; a source that was forgotten has nothing of its own any more."""
    query, url = request("redmail"), f"sqlite:///{tmp_path}/tools.db"
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=url) as search:
        last = search(query, k=len(CATALOG))[-1]
        search.used(query, last, source="ada")
    with open_store(url) as store, tttembed_rag.context(source="ada"):
        with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
            assert search(query, k=1) == [last]
        store.forget(tenant="", source="ada", by="me")
        with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
            assert search(query, k=1) != [last]


@pytest.mark.parametrize("fetch", [httpx.Client(trust_env=False).get, build_opener(ProxyHandler({})).open])
def test_an_error_of_a_client_of_http_may_be_an_outage(fetch):
    """Each has errors of its own for a server that is not there."""
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(Exception, match="refused") as error:
            fetch(f"http://localhost:{unused.getsockname()[1]}/")

    assert is_outage(error.value)


def test_an_error_that_a_tool_raises_is_no_outage():
    """Nor is one that came of another of its own, or of itself."""
    error = ValueError("no such customer")
    error.__cause__ = KeyError("customer")
    error.__cause__.__cause__ = error

    assert not is_outage(error)


def test_a_request_that_was_given_up_ends(search, monkeypatch):
    """The session of a client goes on for hours: what is searched long after is no repetition in other words."""
    turn = search.turn()
    turn.search(request("redmail"))
    monkeypatch.setattr("tttembed_tools.tools._PAUSE", 0.0)
    turn.search(request("bluefile"))
    turn.used("zeta_bluefile")

    assert [past.query for past in search.requests()] == [request("bluefile")]
