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
from tttembed_rag import InputError, Known
from tttembed_rag.testing import eventually

UP = {"query": "wash wool", "documents": [{"text": "Wash wool cold.", "thumb": 1}]}
JUDGE = "user feedback"


@pytest.fixture
def kept(store_url):
    """`kept(tenant)`: the rewards of users in the store, by the texts or ids of query and document, and source."""

    def read(tenant=""):
        q, d, r, t, j = schema.queries, schema.documents, schema.rewards, schema.tenants, schema.judges
        joined = r.join(q, r.c.query == q.c.id).join(d, r.c.document == d.c.id)
        joined = joined.join(t, q.c.tenant == t.c.id).join(j, r.c.judge == j.c.id)
        columns = (q.c.text, d.c.text, d.c.name, r.c.source, r.c.value)
        said = select(*columns).select_from(joined).where(t.c.name == tenant, j.c.name == JUDGE)
        with open_store(store_url, create=False) as store, store._database.read() as connection:
            rows = connection.execute(said).all()
        return {(query, text or name, source): round(value, 4) for query, text, name, source, value in rows}

    return read


def test_it_is_in_the_store_when_the_answer_is_sent(proxied, store_url, kept):
    """A thumb is a reward of the source that the body names, else of the one anonymous voice."""
    client = proxied(feedback=FeedbackWriter(store_url))

    answers = [client.post("/v1/feedback", json=UP | more) for more in ({}, {"source": "user-7"})]

    assert [(one.status_code, one.json()) for one in answers] == [
        (200, {"kept": 1, "source": "anonymous"}),
        (200, {"kept": 1, "source": "user-7"}),
    ]
    pair = ("wash wool", "Wash wool cold.")
    assert kept() == {(*pair, "anonymous"): 0.75, (*pair, "user-7"): 0.75}


def test_without_a_name_all_callers_are_one_voice(proxied, store_url, kept):
    """A thousand callers without a source are one source, whose last word counts."""
    client = proxied(feedback=FeedbackWriter(store_url))

    for thumb in (1, 1, -1):
        client.post("/v1/feedback", json={"query": "q", "documents": [{"id": "d", "thumb": thumb}]})

    assert kept() == {("q", "d", "anonymous"): 0.25}


def test_a_thumb_may_be_a_word(proxied, store_url, kept):
    """As in a file of votes."""
    client = proxied(feedback=FeedbackWriter(store_url))
    for document, said in (("a", "UP"), ("b", "down"), ("c", True), ("d", False)):
        client.post("/v1/feedback", json={"query": "q", "documents": [{"id": document, "thumb": said}]})

    rewards = {"a": 0.75, "b": 0.25, "c": 0.75, "d": 0.25}
    assert kept() == {("q", document, "anonymous"): reward for document, reward in rewards.items()}


def test_what_was_not_clicked_replaces_no_word(proxied, store_url, kept):
    """A page that is seen again says nothing against a thumb; a click counts that comes after its page was shown."""
    client = proxied(feedback=FeedbackWriter(store_url))
    for document, said in (("a", {"thumb": 1}), ("b", {"click": 0}), ("a", {"click": 0}), ("b", {"click": 1})):
        client.post("/v1/feedback", json={"query": "q", "documents": [{"id": document, **said}]})

    assert kept() == {("q", "a", "anonymous"): 0.75, ("q", "b", "anonymous"): 0.75}


@pytest.mark.parametrize(
    ("documents", "scale", "expected"),
    [
        ([{"id": "a", "thumb": 1}, {"id": "b", "thumb": -1}, {"id": "c", "thumb": 0}], None, [0.75, 0.25, 0.5]),
        ([{"id": "a", "thumb": 0}], None, [0.5]),
        ([{"id": "a", "click": 1}, {"id": "b", "click": 0, "position": 3}], None, [0.75, 0.375]),
        ([{"id": "a", "success": True}, {"text": "b", "success": False}], None, [0.75, 0.25]),
        ([{"id": "a", "grade": 3}, {"id": "b", "grade": 0}], "rubric:0,3", [1.0, 0.0]),
        ([{"id": "a", "score": 0.4}], None, [0.4]),
        ([{"id": "a", "thumb": 1}, {"id": "a", "click": 1}], None, [2.5 / 3]),
        ([{"id": "a", "thumb": 1}, {"text": "a", "thumb": -1}], None, [0.75, 0.25]),
        ([{"id": "a", "thumb": 1}, {"id": "a", "thumb": 0}, {"id": "b", "thumb": 0}], None, [0.5, 0.5]),
        ([{"id": "a", "thumb": 1}, {"id": "a", "thumb": -1}], None, [0.25]),
        ([{"id": "a", "thumb": True}, {"id": "b", "thumb": False}], None, [0.75, 0.25]),
        ([{"id": "a", "thumb": "up"}, {"id": "b", "thumb": "No"}, {"id": "c", "thumb": "-"}], None, [0.75, 0.25, 0.25]),
        ([{"id": "a", "thumb": "\U0001f44d"}, {"id": "b", "thumb": "thumbs_down"}], None, [0.75, 0.25]),
        ([{"id": "a", "click": "yes"}, {"id": "b", "click": "no"}], None, [0.75, 0.25]),
    ],
)
def test_what_is_said_becomes_a_reward(documents, scale, expected):
    """By the rules for files of votes; a thumb that was taken back is the middle."""
    assert list(rewards_of("q", documents, scale).values()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("documents", "scale", "message"),
    [
        ([{"id": "a", "grade": 3}], None, "scale: expected one for grades, such as rubric:0,3, got none"),
        ([{"id": "a", "grade": 3}], "stars", "scale: expected probability, logit, unbounded or rubric:LOW,HIGH"),
        ([{"id": "a", "grade": 9}], "rubric:0,3", "expected"),
        ([{"id": "a", "grade": 1}, {"id": "b", "click": 1}], "rubric:0,3", "events: expected judgments or behaviour"),
    ],
)
def test_what_means_nothing_is_refused(documents, scale, message):
    """Grades have a scale, and lie on it; they do not mix with what users do."""
    with pytest.raises(InputError, match=message):
        rewards_of("q", documents, scale)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "body: expected a JSON object, got list"),
        ({"query": "q"}, "body: expected query, documents, got query"),
        (UP | {"user": "ada"}, "body: expected no more than query, documents, scale, source, got query, documents"),
        (UP | {"query": " "}, "query: expected the text of the query, got ' '"),
        (UP | {"query": "x" * 20_001}, "query: expected the text of the query, got 20001, more than 20000"),
        (UP | {"documents": []}, "documents: expected a list of documents, each with one of thumb, click"),
        (UP | {"documents": ["d"]}, "documents[0]: expected what is said of one document, got 'd'"),
        (UP | {"documents": [{"thumb": 1}]}, "documents[0]: expected at least one of id, text, got thumb"),
        (
            UP | {"documents": [{"id": "d"}]},
            "documents[0]: expected one of thumb, click, success, grade, score, got id",
        ),
        (
            UP | {"documents": [{"id": "d", "thumb": 2}]},
            "documents[0].thumb: expected 1 up, -1 down, or 0 taken back, got 2",
        ),
        (UP | {"documents": [{"id": "d", "thumb": "maybe"}]}, "documents[0].thumb: expected 1 up"),
        (UP | {"documents": [{"id": "d", "score": 1.5}]}, "documents[0].score: expected a number in [0, 1], got 1.5"),
        (UP | {"source": "x" * 600}, "source: expected at most 512 bytes of UTF-8, got 600"),
        (UP | {"documents": [{"id": "x" * 600, "thumb": 1}]}, "doc_id: expected at most 512 bytes of UTF-8, got 600"),
    ],
)
def test_a_bad_body_gets_one_line(proxied, sqlite_url, body, message):
    """Status 400, and what was expected and came, in the shape of the proxy's errors; the next body is taken."""
    client = proxied(feedback=FeedbackWriter(sqlite_url))

    refused, taken = client.post("/v1/feedback", json=body), client.post("/v1/feedback", json=UP)

    assert (refused.status_code, taken.status_code) == (400, 200)
    assert refused.json()["error"]["message"].startswith(f"tttembed: {message}")
    assert refused.json()["error"]["type"] == "tttembed_error"
    assert "\n" not in refused.json()["error"]["message"]


def test_no_json_and_too_much_are_refused(proxied, sqlite_url):
    """What was expected is said."""
    client = proxied(feedback=FeedbackWriter(sqlite_url), limit=1000)

    broken, long = client.post("/v1/feedback", content=b"{"), client.post("/v1/feedback", content=b"x" * 2000)

    assert (broken.status_code, long.status_code) == (400, 413)
    assert broken.json()["error"]["message"].startswith("tttembed: expected JSON (")
    assert long.json()["error"]["message"] == "tttembed: expected a body of at most 1000 bytes, got more"


def test_a_key_says_the_tenant_and_strangers_are_refused(proxied, sqlite_url, store_url, kept):
    callers = Callers({"k1": Caller("acme", "billing")})
    client = proxied(feedback=FeedbackWriter(store_url), callers=callers)

    known = client.post("/v1/feedback", json=UP, headers={"authorization": "Bearer k1", "x-ttt-tenant": "other"})
    stranger = client.post("/v1/feedback", json=UP, headers={"authorization": "Bearer k2"})

    assert (known.status_code, stranger.status_code) == (200, 401)
    assert stranger.json()["error"]["message"] == "tttembed: expected one of the keys that the server was given"
    assert (len(kept("acme")), len(kept())) == (1, 0)


def test_the_header_of_a_gateway_comes_before_the_body(proxied, store_url, kept):
    """Who authenticates users names the source, and no user can name another; two that differ name none."""
    client = proxied(feedback=FeedbackWriter(store_url))

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


def test_requests_wait_up_to_a_number_of_bytes(proxied, store_url, kept, monkeypatch):
    """What comes beyond them is told so at once, what waits is kept, and there is room again afterwards."""
    go, written = threading.Event(), FeedbackWriter._written
    monkeypatch.setattr(FeedbackWriter, "_written", lambda self, batch: go.wait(60) and written(self, batch))
    monkeypatch.setattr("tttembed_store.proxy.feedback._MOST_BYTES", 1200)
    client = proxied(feedback=FeedbackWriter(store_url))

    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(client.post, "/v1/feedback", json=UP | {"source": f"u{number}"}) for number in range(2)]
        eventually(lambda: any(one.done() for one in sent))
        go.set()
        answers = sorted(one.result().status_code for one in sent)
    later = client.post("/v1/feedback", json=UP | {"source": "later"})

    assert (answers, later.status_code, len(kept())) == ([200, 503], 200, 2)


def test_in_a_store_with_tenants_each_caller_names_one(proxied, store_url, kept):
    """Whose feedback without a tenant is, nobody knows; others of the same moment are kept."""
    with open_store(store_url) as store:
        store.states.set("named", True, tenant="acme")
    client = proxied(feedback=FeedbackWriter(store_url))

    def send(number):
        headers = {"x-ttt-tenant": "acme"} if number % 2 else {}
        return client.post("/v1/feedback", json=UP | {"source": f"u{number}"}, headers=headers)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(send, range(16)))

    assert [one.status_code for one in answers] == [400, 200] * 8
    assert answers[0].json()["error"]["message"].startswith("tttembed: X-TTT-Tenant: expected whose feedback this is")
    assert len(kept("acme")) == 8


def test_it_joins_what_was_captured(proxied, store_url):
    """A thumb on a document that the application captured with its vectors is learned from as it is."""
    with StoreLog(store_url, JUDGE, embedder="e") as log:
        log.observe("wash wool", ["Wash wool cold.", "Boil it."], known=Known([0.6, 0.8], [[1.0, 0.0], [0.0, 1.0]]))
    client = proxied(feedback=FeedbackWriter(store_url))

    client.post("/v1/feedback", json=UP | {"source": "user-7"})

    with open_store(store_url, create=False) as store:
        rewards = store.rewards(JUDGE)
    assert (rewards.sources.tolist(), rewards.values.tolist()) == (["user-7"], [0.75])
    assert rewards.query_vectors.tolist() == [pytest.approx([0.6, 0.8])]


def test_many_at_once_are_all_kept(proxied, store_url, kept):
    """Requests that come while another is written share a transaction, and none is lost."""
    client = proxied(feedback=FeedbackWriter(store_url))

    with ThreadPoolExecutor(16) as threads:
        sent = threads.map(lambda n: client.post("/v1/feedback", json=UP | {"source": f"u{n}"}).status_code, range(32))

    assert set(sent) == {200}
    assert len(kept()) == 32


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


def test_a_stranger_destroys_nothing(proxied, store_url, kept):
    """Invented candidates, texts of documents and queries, and tenants that nobody has: what was paid for stays."""
    captured = traffic(1)[0]
    with open_store(store_url) as store:
        store.observe([captured], judge="reranker")
        before = store.history.texts(""), store.counts("").rewards
    client = proxied(feedback=FeedbackWriter(store_url))
    invented = [{"id": f"x{number}", "thumb": 1} for number in range(200)]
    own = [{"id": captured.candidates[0].doc_id, "text": "ATTACK", "thumb": 1}]
    headers = {"x-ttt-query-id": captured.query_id, "x-ttt-task": captured.task}

    sent = [client.post("/v1/feedback", json={"query": "ATTACK", "documents": invented}, headers=headers)]
    sent += [client.post("/v1/feedback", json={"query": "ATTACK", "documents": own}, headers=headers)]
    typo = client.post("/v1/feedback", json=UP, headers={"x-ttt-tenant": "typo"})

    assert [one.status_code for one in (*sent, typo)] == [200, 200, 400]
    assert typo.json()["error"]["message"].endswith("a tenant of the store, got 'typo'")
    with open_store(store_url, create=False) as store:
        assert store.tenants() == [""]
        assert store.history.texts("") == before[0]
        assert len(store.rewards("reranker").values) == before[1]
        assert store.counts("").pairs == 200
    assert len(kept()) == 200 - before[1] + 1


def test_a_caller_who_leaves_takes_nothing_with_him(proxied, store_url, kept, monkeypatch, leaving):
    """What was sent is written whether its caller waits or not, and the next caller is answered."""
    client = proxied(feedback=FeedbackWriter(store_url))
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
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()
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
