"""Thumbs on answers from Langfuse and LangSmith, by their own clients, from servers of the shape that they document."""

import base64
import gzip
import json
import uuid
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from sqlalchemy import select
from tttembed_store.sql import open_store, schema

from tttembed_rag import InputError
from tttembed_rag.cli import main

WOOL = ["wash wool cold", "boil the kettle"]
WHEN = "2026-11-20T09:00:00.000Z"
TRACES = [str(uuid.UUID(int=number)) for number in (1, 2, 3)]


def run(*arguments):
    """The command's exit code and output."""
    result = CliRunner().invoke(main, ["store", "import", *map(str, arguments)])
    return result.exit_code, result.output


def votes_in(url):
    """What is in a store: the reward by query, document and source, of the judge that votes are kept under."""
    q, d, r, j = schema.queries, schema.documents, schema.rewards, schema.judges
    joined = r.join(q, r.c.query == q.c.id).join(d, r.c.document == d.c.id).join(j, r.c.judge == j.c.id)
    votes = select(q.c.text, d.c.text, r.c.source, r.c.value).select_from(joined).where(j.c.name == "votes")
    with open_store(url) as store, store._database.read() as connection:
        assert store.trusted("votes") is None
        return {(query, text, source): round(value, 4) for query, text, source, value in connection.execute(votes)}


class Langfuse:
    """Observations v2 and Scores v3 of one project, a page of two rows at a time."""

    def __init__(self):
        documents = [{"page_content": text, "metadata": {}, "type": "Document"} for text in WOOL]
        self.observations = [
            self.observation(0, "wool", documents, userId="ada"),
            self.observation(1, json.dumps({"query": "kettle"}), json.dumps({"documents": [WOOL[1]]})),
            self.observation(2, "nobody judged this", [{"text": "a page", "id": "p1"}]),
        ]
        self.scores = [
            self.score(0, True),
            self.score(1, False, authorUserId="annotator"),
            self.score(1, "a category", dataType="CATEGORICAL"),
        ]
        self.pages, self.reply = [], None

    @staticmethod
    def observation(number, query, documents, **more):
        """A retriever of a trace, as the API shows it."""
        fields = {"id": f"o{number}", "traceId": TRACES[number], "startTime": WHEN, "projectId": "p"}
        return fields | {"parentObservationId": None, "type": "RETRIEVER", "input": query, "output": documents, **more}

    @staticmethod
    def score(number, value, **more):
        """A score of a trace, or of an observation of it."""
        kind = {"kind": "trace", "id": TRACES[number]}
        if number:
            kind = {"kind": "observation", "id": f"o{number}", "traceId": TRACES[number]}
        kinds = {bool: "BOOLEAN", str: "CATEGORICAL"}
        fields = {"id": f"s{number}{value}", "projectId": "p", "name": "thumb", "value": value, "subject": kind}
        fields |= {"dataType": kinds.get(type(value), "NUMERIC"), "source": "API", "environment": "default"}
        return fields | {"timestamp": WHEN, "createdAt": WHEN, "updatedAt": WHEN, **more}

    def __call__(self, path, _, __):
        """One page."""
        parts = urlsplit(path)
        options = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.pages.append((parts.path, options))
        if self.reply is not None:
            return self.reply
        if parts.path == "/api/public/v2/observations":
            rows = self.observations if options["type"] == "RETRIEVER" else []
        elif parts.path == "/api/public/v3/scores":
            rows = [score for score in self.scores if score["name"] == options["name"]]
        else:
            return 404, {}, {"message": "not here"}
        begin = int(options.get("cursor", 0))
        end = begin + min(2, int(options["limit"]))
        meta = {"limit": 2} | ({"cursor": str(end)} if end < len(rows) else {})
        return 200, {}, {"data": rows[begin:end], "meta": meta}


@pytest.fixture
def langfuse(serve, monkeypatch):
    """A project of Langfuse, with its address and what its server was asked."""
    pytest.importorskip("langfuse", reason="the extra langfuse: langfuse is not installed")
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")
    project = Langfuse()
    project.server = serve(project)
    project.url = f"langfuse+{project.server.url}"
    return project


def test_thumbs_of_langfuse_are_weak_votes(langfuse, sqlite_url):
    """A thumb credits all documents of its trace a little, by its annotator, else the user of the trace."""
    code, output = run(langfuse.url, "--store", sqlite_url, "--scores-of", "thumb", "--json")

    assert (code, json.loads(output)) == (0, {"queries": 3, "without_vectors": 6, "left_out": 0, "without_query": 0})
    up, down = (2 / 2 + 1) / 3, (1 / 2) / 2
    assert votes_in(sqlite_url) == {
        ("wool", WOOL[0], "ada"): round(up, 4),
        ("wool", WOOL[1], "ada"): round(up, 4),
        ("kettle", WOOL[1], "annotator"): down,
    }
    login = {headers["authorization"] for _, headers, _ in langfuse.server.asked}
    assert login == {f"Basic {base64.b64encode(b'pk:sk').decode()}"}


def test_without_a_name_only_what_was_retrieved_is_read(langfuse, sqlite_url):
    """The queries wait for a judge, and nobody asks for scores."""
    code, _ = run(langfuse.url, "--store", sqlite_url)

    assert code == 0
    assert votes_in(sqlite_url) == {}
    assert {path for path, _ in langfuse.pages} == {"/api/public/v2/observations"}


def test_what_langfuse_decorates_is_read(langfuse, sqlite_url):
    """The query and the documents of a function, as `@observe` writes them; an input that is hidden makes no query."""
    pairs = [[{"page_content": text, "metadata": {"source": "a"}}, 0.5] for text in WOOL]
    langfuse.observations = [
        langfuse.observation(0, {"args": ["wool"], "kwargs": {"k": 4}}, pairs),
        langfuse.observation(1, None, WOOL),
        langfuse.observation(2, "null", WOOL),
        langfuse.observation(2, {"args": [], "kwargs": {"query": "tea"}}, [{"node": {"text": "a page"}, "score": 1}]),
    ]

    langfuse.scores = [langfuse.score(number, True) for number in range(3)]

    code, output = run(langfuse.url, "--store", sqlite_url, "--scores-of", "thumb")

    shown = {(query, text) for query, text, _ in votes_in(sqlite_url)}
    assert (code, shown) == (0, {("wool", WOOL[0]), ("wool", WOOL[1]), ("tea", "a page")})
    assert "2 retrievals whose query was not understood" in output


def test_numbers_are_on_the_scale_that_is_said(langfuse, sqlite_url):
    """Four of one to five stars is three quarters; what lies off the scale is refused with one line."""
    langfuse.scores = [langfuse.score(1, 4)]

    refused = run(langfuse.url, "--store", sqlite_url, "--scores-of", "thumb")
    taken = run(langfuse.url, "--store", sqlite_url, "--scores-of", "thumb", "--scale", "rubric:1,5")

    assert (refused[0], taken[0]) == (2, 0)
    assert "expected" in refused[1].splitlines()[-1]
    assert votes_in(sqlite_url) == {("kettle", WOOL[1], "langfuse"): (1 / 2 + 0.75) / 2}


def test_what_was_forgotten_stays_forgotten(langfuse, sqlite_url):
    """A thumb on an answer of before brings nothing back."""
    run(langfuse.url, "--store", sqlite_url, "--scores-of", "thumb")
    with open_store(sqlite_url) as store:
        store.forget(tenant="", by="test")

    code, _ = run(langfuse.url, "--store", sqlite_url, "--scores-of", "thumb")

    assert code == 0
    assert votes_in(sqlite_url) == {}


def test_the_limit_is_one_of_spans(langfuse, sqlite_url):
    """The newest are read, and no page beyond."""
    code, output = run(langfuse.url, "--store", sqlite_url, "--limit", 1, "--json")

    assert (code, json.loads(output)["queries"]) == (0, 1)
    assert [options["limit"] for _, options in langfuse.pages] == ["1"]


@pytest.mark.parametrize(("rows", "pages"), [(0, 1), (1, 2)])
def test_pages_that_never_end_are_the_end(langfuse, sqlite_url, rows, pages):
    """One that is empty and names another, and one that comes a second time."""
    langfuse.reply = 200, {}, {"data": langfuse.observations[:rows], "meta": {"limit": 1, "cursor": "next"}}

    run(langfuse.url, "--store", sqlite_url)

    assert len(langfuse.pages) == pages


LONG = json.dumps({"data": [{"input": "a" * 1000}], "meta": {"limit": 1}}).encode()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ((200, {}, LONG), "ReadError: expected at most 1000 bytes"),
        ((200, {"content-encoding": "gzip"}, gzip.compress(LONG)), ""),
        ((401, {}, {"message": "Invalid credentials"}), "UnauthorizedError"),
    ],
    ids=["of any size", "that unfolds to any size", "that is a refusal"],
)
def test_an_answer_that_cannot_be_read_is_one_line(langfuse, sqlite_url, monkeypatch, reply, error):
    """Exit code 2, and what the server said."""
    monkeypatch.setattr("tttembed_hosts.tracing._MOST_BYTES", 1000)
    langfuse.reply = reply

    code, output = run(langfuse.url, "--store", sqlite_url)

    assert (code, output.count("\n")) == (2, 1)
    assert output.startswith(f"Error: project: expected an answer of Langfuse ({error}")


@pytest.fixture
def langsmith(serve, monkeypatch):
    """A project of LangSmith, with its address."""
    pytest.importorskip("langsmith", reason="the extra langsmith: langsmith is not installed")
    monkeypatch.setenv("LANGSMITH_API_KEY", "key")
    session = str(uuid.UUID(int=99))
    documents = [{"page_content": text, "metadata": {}, "type": "Document"} for text in WOOL]
    retrieval = {"id": str(uuid.UUID(int=11)), "trace_id": TRACES[0], "parent_run_ids": [TRACES[0]], "start_time": WHEN}
    retrieval |= {"inputs": {"query": "wool"}, "outputs": {"documents": documents}}
    retrieval |= {"metadata": {"tttembed_task": "washing"}}
    who = {"type": "api", "user_id": "ada"}
    thumb = {"id": str(uuid.UUID(int=21)), "run_id": TRACES[0], "trace_id": TRACES[0], "key": "thumb"}
    thumb |= {"created_at": WHEN, "modified_at": WHEN, "score": 1, "feedback_source": who}
    feedback = [thumb, thumb | {"key": "other", "score": 0}]

    def answer(path, body, _):
        parts = urlsplit(path)
        options = parse_qs(parts.query)
        if parts.path == "/sessions":
            known = {
                "id": session,
                "start_time": WHEN,
                "tenant_id": session,
                "name": "demo",
                "reference_dataset_id": None,
            }
            return 200, {}, [known] if options["name"] == ["demo"] else []
        if parts.path == "/api/v2/runs/query" and body["project_ids"] == [session] and body["run_type"] == "RETRIEVER":
            return 200, {}, {"items": [retrieval], "next_cursor": None}
        if parts.path == "/feedback":
            return (
                200,
                {},
                [row for row in feedback if row["run_id"] in options["run"] and row["key"] in options["key"]],
            )
        return 200, {}, {"version": "0.16.20"}

    server = serve(answer)
    server.project = f"langsmith+{server.url}"
    return server


def test_feedback_of_langsmith_is_a_weak_vote(langsmith, sqlite_url):
    """A score on the run around a retriever credits its documents, by the user who gave it, in the task of the run."""
    code, output = run(f"{langsmith.project}/demo", "--store", sqlite_url, "--scores-of", "thumb", "--json")

    assert (code, json.loads(output)["queries"]) == (0, 1)
    assert votes_in(sqlite_url) == {("wool", text, "ada"): round(2 / 3, 4) for text in WOOL}
    with open_store(sqlite_url) as store:
        assert list(store.history.tasks("").values()) == [["washing"]]
    assert {headers["x-api-key"] for _, headers, _ in langsmith.asked} == {"key"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nobody", " 'nobody': expected an answer of LangSmith (LangSmithNotFoundError: Project nobody not found"),
        ("", ": expected langsmith+http://HOST/PROJECT, or https, got 'langsmith+http"),
    ],
)
def test_a_project_that_is_not_there_is_one_line(langsmith, sqlite_url, path, message):
    """Exit code 2, the project, and what the server said."""
    code, output = run(f"{langsmith.project}{path}", "--store", sqlite_url)

    assert code == 2
    assert output.splitlines()[-1].startswith(f"Error: project{message}")


def test_keys_are_not_in_addresses(sqlite_url, monkeypatch):
    """A login is refused and not shown; a key that is missing is named."""
    pytest.importorskip("langfuse", reason="the extra langfuse: langfuse is not installed")
    from tttembed_hosts.langfuse import spans_at

    monkeypatch.delenv("LANGFUSE_PUBLIC_KEY", raising=False)
    with pytest.raises(InputError, match="expected no login in the address") as refused:
        spans_at("langfuse+https://pk:secret@host", limit=1)
    with pytest.raises(InputError, match="expected the keys of a project in LANGFUSE_PUBLIC_KEY"):
        spans_at("langfuse+https://host", limit=1)

    assert "secret" not in str(refused.value)


def test_a_server_of_langfuse_may_stand_behind_a_path(serve, sqlite_url, monkeypatch):
    """All of the path is the server's: no project is named in it."""
    pytest.importorskip("langfuse", reason="the extra langfuse: langfuse is not installed")
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")
    paths = []
    server = serve(lambda path, *_: paths.append(urlsplit(path).path) or (200, {}, {"data": [], "meta": {}}))

    run(f"langfuse+{server.url}/tools/traces/", "--store", sqlite_url)

    assert paths == ["/tools/traces/api/public/v2/observations"]
