"""`POST /v1/search/NAME` and `POST /v1/used`: a search over tools that learns, for clients in any language."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tttembed_store.proxy import Caller, Callers, FeedbackWriter
from tttembed_store.sql import open_store
from tttembed_tools import LearnedToolSearch

from tests.catalogues import CATALOG, TOPICS
from tttembed_rag import context
from tttembed_rag.testing import FakeEmbedder, eventually

LEARNED = TOPICS[:12]
USED = {"catalogue": "office", "query": "q", "used": [{"name": "zeta_redmail", "succeeded": True}]}


@pytest.fixture
def search(sqlite_url):
    """A search that keeps what it learns in a store."""
    return LearnedToolSearch(CATALOG, FakeEmbedder(), store=sqlite_url)


def tools_of(client, query, **more):
    answer = client.post("/v1/search/office", json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["tools"]


def test_tools_are_found(proxied, search):
    """Names of the best tools come back, best first, among those that may be found."""
    client = proxied(searches={"office": search})

    assert tools_of(client, "handle my redmail", k=2) == search("handle my redmail", 2)
    assert tools_of(client, "handle my redmail", among=["zeta_redmail", "acme_bluefile"])[0] == "zeta_redmail"
    assert tools_of(client, "handle my redmail", among=["zeta_redmail"] * 3) == ["zeta_redmail"]


def test_what_worked_is_learned_from(proxied, search, sqlite_url):
    """Calls of two named agents move the tools of requests that nobody made, and are in the store at once."""
    client = proxied(searches={"office": search})
    for topic, source in itertools.product(LEARNED, ("ada", "ben")):
        used = [{"name": f"zeta_{topic}", "succeeded": True}, {"name": f"acme_{topic}", "succeeded": False}]
        body = {"catalogue": "office", "query": f"handle my {topic} for {source}", "used": used, "source": source}
        answer = client.post("/v1/used", json=body)
        assert (answer.status_code, answer.json()) == (200, {"kept": 2, "source": source})

    with open_store(sqlite_url) as store:
        assert store.counts("").rewards == 4 * len(LEARNED)
    lesson = search.learn()

    assert lesson.requests == 2 * len(LEARNED)
    new = [tools_of(client, f"a new {topic}", k=1)[0] for topic in LEARNED]
    assert sum(name.startswith("zeta") for name in new) >= 0.8 * len(LEARNED)


def test_callers_without_a_name_teach_nothing(proxied, search):
    """They are one voice, and what one alone says is not learned from."""
    client = proxied(searches={"office": search})
    for topic in LEARNED:
        used = [{"name": f"zeta_{topic}", "succeeded": True}]
        client.post("/v1/used", json=USED | {"query": f"my {topic}", "used": used})

    lesson = search.learn()

    assert not lesson.moves


def test_a_key_says_the_tenant(proxied, search):
    client = proxied(searches={"office": search}, callers=Callers({"k1": Caller("acme")}))

    known = client.post("/v1/used", json=USED, headers={"x-api-key": "k1"})
    stranger = client.post("/v1/search/office", json={"query": "q"})

    assert (known.status_code, stranger.status_code) == (200, 401)
    with context(tenant="acme"):
        assert search.learn().requests == 1
    assert search.learn().requests == 0


def test_without_a_key_no_tenant_is_made(proxied, search, sqlite_url):
    """Who names one that way could stop others who share the store without naming any."""
    client = proxied(searches={"office": search})

    answer = client.post("/v1/used", json=USED, headers={"x-ttt-tenant": "typo"})

    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400,
        "tttembed: X-TTT-Tenant: expected a key for calls of a tenant, got 'typo' alone",
    )
    with open_store(sqlite_url) as store:
        assert store.tenants() == [""]


def test_a_tool_that_worked_once_is_a_success(proxied, search, sqlite_url):
    """Whatever a later call of it did, as in a `Turn`."""
    calls = [{"name": "zeta_redmail", "succeeded": succeeded} for succeeded in (True, False)]

    proxied(searches={"office": search}).post("/v1/used", json=USED | {"used": calls})

    with open_store(sqlite_url) as store:
        assert list(store.history.verdicts("", judge="tool use").values()) == [1.0]


def test_nothing_is_said_to_be_kept_that_is_not(proxied, sqlite_url):
    """Where the embedding model is away, 503 says so."""
    away = FakeEmbedder()
    search = LearnedToolSearch(CATALOG, away, store=sqlite_url)
    away.embed_queries = None

    answer = proxied(searches={"office": search}).post("/v1/used", json=USED)

    assert (answer.status_code, search.used("q", "zeta_redmail")) == (503, False)
    assert answer.json()["error"]["message"].startswith("tttembed: expected the request to be embedded")


def test_a_store_that_is_locked_holds_up_its_own_calls_alone(proxied, search, store_url, monkeypatch):
    """Sixty calls wait in one thread; searches, and feedback into another store, are answered meanwhile."""
    go, held = threading.Event(), threading.Event()
    monkeypatch.setattr(search, "flush", lambda: held.set() or go.wait(300))
    client = proxied(searches={"office": search}, feedback=FeedbackWriter(store_url))
    search("q")

    with ThreadPoolExecutor(60) as threads:
        waiting = [threads.submit(client.post, "/v1/used", json=USED) for _ in range(60)]
        eventually(lambda: held.is_set() and all(request.running() for request in waiting))
        tools_of(client, "handle my redmail")
        feedback = client.post("/v1/feedback", json={"query": "q", "documents": [{"id": "d", "thumb": 1}]})
        go.set()  # both were answered before

    assert (feedback.status_code, {request.result().status_code for request in waiting}) == (200, {200})
