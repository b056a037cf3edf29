"""`POST /v1/feedback`: what users say of documents is in the store when the answer is sent, under the house's rules."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select
from tttembed_store import StoreLog
from tttembed_store.proxy import Caller, Callers, FeedbackWriter
from tttembed_store.proxy.feedback import rewards_of
from tttembed_store.sql import open_store, schema

from tests.traffic import traffic
from tttembed_rag import Known
from tttembed_rag.testing import eventually

UP = {"query": "wash wool", "documents": [{"text": "Wash wool cold.", "thumb": 1}]}
JUDGE = "user feedback"


@pytest.fixture
def client(proxied, store_url):
    """A client of a proxy that writes feedback into the store."""
    return proxied(feedback=FeedbackWriter(store_url))


@pytest.fixture
def kept(store_url):
    """`kept(tenant)`: the rewards of users in the store, by the texts or ids of query and document, and source."""

    def read(tenant=""):
        q, d, r, t, j = schema.queries, schema.documents, schema.rewards, schema.tenants, schema.judges
        joined = r.join(q, r.c.query == q.c.id).join(d, r.c.document == d.c.id)
        joined = joined.join(t, q.c.tenant == t.c.id).join(j, r.c.judge == j.c.id)
        columns = (q.c.text, d.c.text, d.c.name, r.c.source, r.c.value)
        rewards = select(*columns).select_from(joined).where(t.c.name == tenant, j.c.name == JUDGE)
        with open_store(store_url, create=False) as store, store._database.read() as connection:
            rows = connection.execute(rewards).all()
        return {(query, text or name, source): round(value, 4) for query, text, name, source, value in rows}

    return read


def test_it_is_in_the_store_when_the_answer_is_sent(client, kept):
    """A thumb is a reward of the source that the body names, else of the one anonymous voice."""
    answers = [client.post("/v1/feedback", json=UP | more) for more in ({}, {"source": "user-7"})]

    assert [answer.json() for answer in answers] == [
        {"kept": 1, "source": "anonymous"},
        {"kept": 1, "source": "user-7"},
    ]
    pair = ("wash wool", "Wash wool cold.")
    assert kept() == {(*pair, "anonymous"): 0.75, (*pair, "user-7"): 0.75}


@pytest.mark.parametrize(
    ("words", "rewards"),
    [
        ([("d", {"thumb": 1}), ("d", {"thumb": 1}), ("d", {"thumb": -1})], {"d": 0.25}),
        ([("a", {"thumb": 1}), ("a", {"click": 0})], {"a": 0.75}),
        ([("b", {"click": 0}), ("b", {"click": 1})], {"b": 0.75}),
    ],
    ids=["last word", "no click", "click"],
)
def test_the_last_word_of_a_source_counts(client, kept, words, rewards):
    """All callers without a source are one; a page that is seen again without a click replaces no word."""
    for document, word in words:
        client.post("/v1/feedback", json={"query": "q", "documents": [{"id": document, **word}]})

    assert kept() == {("q", document, "anonymous"): reward for document, reward in rewards.items()}


@pytest.mark.parametrize(
    ("documents", "scale", "expected"),
    [
        ([{"id": "a", "thumb": 1}, {"id": "b", "thumb": -1}, {"id": "c", "thumb": 0}], None, [0.75, 0.25, 0.5]),
        ([{"id": "a", "click": 1}, {"id": "b", "click": 0, "position": 3}], None, [0.75, 0.375]),
        ([{"id": "a", "success": True}, {"text": "b", "success": False}], None, [0.75, 0.25]),
        ([{"id": "a", "grade": 3}, {"id": "b", "grade": 0}], "rubric:0,3", [1.0, 0.0]),
        ([{"id": "a", "score": 0.4}], None, [0.4]),
        ([{"id": "a", "thumb": 1}, {"id": "a", "click": 1}], None, [2.5 / 3]),
        ([{"id": "a", "thumb": 1}, {"text": "a", "thumb": -1}], None, [0.75, 0.25]),
        ([{"id": "a", "thumb": 1}, {"id": "a", "thumb": 0}, {"id": "b", "thumb": 0}], None, [0.5, 0.5]),
        ([{"id": "a", "thumb": "UP"}, {"id": "b", "thumb": "No"}, {"id": "c", "thumb": "-"}], None, [0.75, 0.25, 0.25]),
        ([{"id": "a", "thumb": "down"}, {"id": "b", "thumb": True}], None, [0.25, 0.75]),
        ([{"id": "a", "thumb": "\U0001f44d"}, {"id": "b", "click": "no"}], None, [0.75, 0.25]),
    ],
)
def test_what_is_said_becomes_a_reward(documents, scale, expected):
    """By the rules for files of votes; a thumb that was taken back is the middle."""
    assert list(rewards_of("q", documents, scale).values()) == pytest.approx(expected)


def test_a_key_says_the_tenant_and_strangers_are_refused(proxied, sqlite_url, store_url, kept):
    callers = Callers({"k1": Caller("acme", "billing")})
    client = proxied(feedback=FeedbackWriter(store_url), callers=callers)

    known = client.post("/v1/feedback", json=UP, headers={"authorization": "Bearer k1", "x-ttt-tenant": "other"})
    stranger = client.post("/v1/feedback", json=UP, headers={"authorization": "Bearer k2"})

    assert (known.status_code, stranger.status_code) == (200, 401)
    assert stranger.json()["error"]["message"] == "tttembed: expected one of the keys that the server was given"
    assert (len(kept("acme")), len(kept())) == (1, 0)


def test_the_header_of_a_gateway_comes_before_the_body(client, kept):
    """Who authenticates users names the source, and no user can name another; two that differ name none."""
    client.post("/v1/feedback", json=UP | {"source": "somebody else"}, headers={"x-ttt-source": "user-7"})
    differing = [("x-ttt-source", "user-8"), ("x-ttt-source", "user-9")]
    client.post("/v1/feedback", json=UP | {"source": "somebody else"}, headers=differing)
    client.post("/v1/feedback", json=UP, headers={"x-ttt-source": "Zoë".encode()})
    client.post("/v1/feedback", json=UP | {"source": "Zoë"})

    assert {source for *_, source in kept()} == {"user-7", "anonymous", "Zoë"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin", "host": "evil.example"}, 403),
        ({"origin": "http://evil.example", "host": "evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://app.example", "authorization": "Bearer key"}, 200),
    ],
)
def test_a_page_without_a_key_says_nothing(proxied, sqlite_url, headers, status):
    """A browser sends what any page asks it to, also one whose name was made to lead here; it has no key of ours."""
    callers = Callers({"key": Caller("acme")}) if "authorization" in headers else Callers()
    client = proxied(feedback=FeedbackWriter(sqlite_url), callers=callers)

    assert client.post("/v1/feedback", json=UP, headers=headers).status_code == status


def test_requests_wait_up_to_a_number_of_bytes(client, kept, monkeypatch):
    """What comes beyond them is told so at once, what waits is kept, and there is room again afterwards."""
    go, written = threading.Event(), FeedbackWriter._written
    monkeypatch.setattr(FeedbackWriter, "_written", lambda self, batch: go.wait(60) and written(self, batch))
    monkeypatch.setattr("tttembed_store.proxy.feedback._MOST_BYTES", 1200)
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(client.post, "/v1/feedback", json=UP | {"source": f"u{number}"}) for number in range(2)]
        eventually(lambda: any(request.done() for request in sent))
        go.set()
        answers = sorted(request.result().status_code for request in sent)
    later = client.post("/v1/feedback", json=UP | {"source": "later"})

    assert (answers, later.status_code, len(kept())) == ([200, 503], 200, 2)


def test_in_a_store_with_tenants_each_caller_names_one(client, store_url, kept):
    """Whose feedback without a tenant is, nobody knows; others of the same moment share a transaction and are kept."""
    with open_store(store_url) as store:
        store.states.set("named", True, tenant="acme")

    def send(number):
        headers = {"x-ttt-tenant": "acme"} if number % 2 else {}
        return client.post("/v1/feedback", json=UP | {"source": f"u{number}"}, headers=headers)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(send, range(16)))

    assert [answer.status_code for answer in answers] == [400, 200] * 8
    assert answers[0].json()["error"]["message"].startswith("tttembed: X-TTT-Tenant: expected whose feedback this is")
    assert len(kept("acme")) == 8


def test_it_joins_what_was_captured(client, store_url):
    """A thumb on a document that the application captured with its vectors is learned from as it is."""
    with StoreLog(store_url, JUDGE, embedder="e") as log:
        log.observe("wash wool", ["Wash wool cold.", "Boil it."], known=Known([0.6, 0.8], [[1.0, 0.0], [0.0, 1.0]]))
    client.post("/v1/feedback", json=UP | {"source": "user-7"})

    with open_store(store_url, create=False) as store:
        rewards = store.rewards(JUDGE)
    assert (rewards.sources.tolist(), rewards.values.tolist()) == (["user-7"], [0.75])
    assert rewards.query_vectors.tolist() == [pytest.approx([0.6, 0.8])]


def test_a_store_that_is_away_is_told(proxied, tmp_path):
    """Status 503 as long as the store cannot be opened, and 200 as soon as it can."""
    folder = tmp_path / "later"
    client = proxied(feedback=FeedbackWriter(f"sqlite:///{folder}/a.db"))

    before = client.post("/v1/feedback", json=UP)
    folder.mkdir()
    open_store(f"sqlite:///{folder}/a.db").close()

    assert before.status_code == 503
    assert before.json()["error"]["type"] == "tttembed_error"
    eventually(lambda: client.post("/v1/feedback", json=UP).status_code == 200)


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("POST", "feedback", "expected a server with --store, got one without"),
        ("POST", "search/office", "expected a server with --catalog, got one without"),
        ("POST", "feedback/", "expected a path and a method of /v1/openapi.json, got POST /v1/feedback/"),
        ("PUT", "used", "expected a path and a method of /v1/openapi.json, got PUT /v1/used"),
    ],
)
def test_what_is_meant_for_us_never_reaches_the_service(proxied, method, path, message):
    """Whatever the options are, nothing passes; the document lists what is there."""
    client = proxied()

    answer = client.request(method, f"/v1/{path}", json=UP if path == "feedback" else {"query": "q"})

    assert (answer.status_code, answer.json()["error"]["message"]) == (404, f"tttembed: {message}")
    assert client.get("/v1/openapi.json").json()["paths"].keys() == {"/v1/steer"}
    assert client.request("FOO", "/v1/steer").headers["allow"] == "POST"


def test_a_stranger_destroys_nothing(client, store_url, kept):
    """Invented candidates, texts of documents and queries, and tenants that nobody has: what was paid for stays."""
    captured = traffic(1)[0]
    with open_store(store_url) as store:
        store.observe([captured], judge="reranker")
        before = store.history.texts(""), store.counts("").rewards
    invented = [{"id": f"x{number}", "thumb": 1} for number in range(200)]
    own = [{"id": captured.candidates[0].doc_id, "text": "ATTACK", "thumb": 1}]
    headers = {"x-ttt-query-id": captured.query_id, "x-ttt-task": captured.task}

    sent = [
        client.post("/v1/feedback", json={"query": "ATTACK", "documents": documents}, headers=headers)
        for documents in (invented, own)
    ]
    typo = client.post("/v1/feedback", json=UP, headers={"x-ttt-tenant": "typo"})

    assert [answer.status_code for answer in (*sent, typo)] == [200, 200, 400]
    assert typo.json()["error"]["message"].endswith("a tenant of the store, got 'typo'")
    with open_store(store_url, create=False) as store:
        assert store.tenants() == [""]
        assert store.history.texts("") == before[0]
        assert len(store.rewards("reranker").values) == before[1]
        assert store.counts("").pairs == 200
    assert len(kept()) == 200 - before[1] + 1


def test_a_caller_who_leaves_takes_nothing_with_him(client, kept, monkeypatch, leaving):
    """What was sent is written whether its caller waits or not, and the next caller is answered."""
    client.post("/v1/feedback", json=UP)
    go, came = threading.Event(), threading.Event()
    written = FeedbackWriter._written
    monkeypatch.setattr(
        FeedbackWriter, "_written", lambda self, batch: came.set() or (go.wait(300) and written(self, batch))
    )

    with leaving(client.base_url, "/v1/feedback", UP | {"source": "gone"}):
        assert came.wait(60)
    go.set()
    after = client.post("/v1/feedback", json=UP | {"source": "next"})

    assert after.status_code == 200
    assert {source for *_, source in kept()} == {"anonymous", "gone", "next"}


def test_a_store_that_was_replaced_is_opened_anew(proxied, sqlite_url):
    """One request is told so; the next is kept in the store that is there now."""
    with open_store(sqlite_url) as store:
        store.states.set("named", True, tenant="acme")
    client, file = proxied(feedback=FeedbackWriter(sqlite_url)), Path(sqlite_url.removeprefix("sqlite:///"))
    assert client.post("/v1/feedback", json=UP, headers={"x-ttt-tenant": "acme"}).status_code == 200
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()
    open_store(sqlite_url).close()

    eventually(lambda: client.post("/v1/feedback", json=UP).status_code == 200)

    with open_store(sqlite_url) as store:
        assert store.counts("").rewards == 1


def test_it_is_of_the_task_that_follows_from_the_text(proxied, store_url):
    """What users say is learned from where their queries are served."""
    client = proxied(feedback=FeedbackWriter(store_url), task=lambda text: "de" if "Wolle" in text else "en")
    for query in ("Wolle waschen", "wash wool"):
        client.post("/v1/feedback", json=UP | {"query": query})

    with open_store(store_url, create=False) as store, store._database.read() as connection:
        named = select(schema.queries.c.text, schema.queries.c.task)
        tasks = {row.text: row.task for row in connection.execute(named)}

    assert tasks == {"Wolle waschen": "de", "wash wool": "en"}
