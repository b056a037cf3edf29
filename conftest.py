"""Small seeded reward sets, Eq. 6 written out plainly, databases, and servers that speak the real protocols."""

import json
import os
import shutil
import tempfile
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from tttembed_store.sql import Candidate, Served, open_store, schema

from tttembed_rag import Rewards
from tttembed_rag.testing import word_overlap

# Fixtures that build wheels, start PostgreSQL, measure every experiment, or load a real model in another process.
SLOW_FIXTURES = {"postgres", "wheels", "results", "embedded"}


def pytest_collection_modifyitems(items):
    """Mark what needs a slow fixture as slow, and the trials of tests/faults as slow and faults."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        on_server = any(isinstance(value, str) and value == "postgresql" for value in parameters.values())
        if "faults" in item.path.parts:
            item.add_marker("faults")
        if on_server or "faults" in item.path.parts or SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker("slow")


def unit_rows(vectors):
    """Rows divided by their norm."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def make_rewards(n=6, *, depths=8, width=24, seed=0, dtype=np.float64, tasks=None, query_ids=None):
    """Candidates around their query, as a retriever returns them, with rewards at random."""
    rng = np.random.default_rng(seed)
    queries = unit_rows(rng.normal(size=(n, width)))
    blocks = [
        query + rng.normal(size=(depth, width)) / np.sqrt(width)
        for query, depth in zip(queries, np.broadcast_to(depths, n), strict=True)
    ]
    return Rewards.from_arrays(
        queries.astype(dtype),
        [block.astype(dtype) for block in blocks],
        [rng.uniform(size=len(block)) for block in blocks],
        tasks,
        query_ids,
    )


def make_planted(n=20, *, depth=8, width=16, seed=0, strength=0.6, signs=None, tasks=None, dtype=np.float64):
    """Base query vectors that all lack one common direction; the rewards know the whole query.

    `signs` holds +1 or -1 per query: which way along the direction the base vector is wrong.
    """
    rng = np.random.default_rng(seed)
    direction = unit_rows(rng.normal(size=width))
    meant = unit_rows(rng.normal(size=(n, width)))
    signs = np.ones(n) if signs is None else np.asarray(signs, float)
    queries = unit_rows(meant - strength * signs[:, None] * direction)
    documents = unit_rows(queries[:, None] + 1.2 * rng.normal(size=(n, depth, width)) / np.sqrt(width))
    fit = np.einsum("nkd,nd->nk", documents, meant)
    rewards = 1.0 / (1.0 + np.exp(-12.0 * (fit - np.median(fit))))
    return Rewards.from_arrays(queries.astype(dtype), documents.astype(dtype), rewards, tasks)


def eq6(v, rewards, weights, recipe):
    """Objective and gradient of Eq. 6 of the paper at *v*, query by query in float64.

    Softmax-GRPO is the paper's own, its corners sharp.
    """
    value, gradient = recipe.ridge * v @ v, 2.0 * recipe.ridge * v
    for q, weight in enumerate(weights):
        mine = slice(rewards.starts[q], rewards.starts[q + 1])
        x = unit_rows(rewards.query_vectors[q].astype(np.float64))
        z = unit_rows(rewards.doc_vectors[rewards.candidates[mine]].astype(np.float64))
        r = rewards.values[mine]
        length = np.linalg.norm(x + v)
        u = (x + v) / length
        pi = softmax(z @ u / recipe.student_temperature)
        if recipe.objective.name == "softmax_grpo":
            advantage = (r - r.mean()) / (r.std() + 1e-4)
            ratio = pi / softmax(z @ x / recipe.student_temperature)
            kept = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
            loss = -kept.mean()
            inside = np.where(advantage >= 0, ratio < 1.2, ratio > 0.8)
            pull = np.where(inside, ratio * advantage, 0.0) / len(r)
            in_logits = pi * pull.sum() - pull
        else:
            p = softmax(r / recipe.teacher_temperature)
            log_ratio = np.log(pi) - np.log(p)
            loss = p @ -log_ratio if recipe.objective.name == "kd" else pi @ log_ratio
            in_logits = pi - p if recipe.objective.name == "kd" else pi * (log_ratio - loss)
        value += weight * loss
        in_u = z.T @ in_logits / recipe.student_temperature
        gradient = gradient + weight * (in_u - u * (u @ in_u)) / length
    return value, gradient


def softmax(values):
    exponentials = np.exp(values - values.max())
    return exponentials / exponentials.sum()


@pytest.fixture(scope="session")
def some_rewards():
    """The builder of seeded random reward sets."""
    return make_rewards


@pytest.fixture(scope="session")
def planted():
    """The builder of reward sets in which one shared offset truly helps."""
    return make_planted


@pytest.fixture(scope="session")
def reference():
    """Eq. 6 as a function of (v, rewards, weights, recipe), to compare with."""
    return eq6


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """Puts a copy of a folder into the cache of a hub that is away, and gives the name of the model there."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(folder):
        copies, commit = tmp_path / "hub" / "models--some--tiny", "0" * 40
        shutil.copytree(folder, copies / "snapshots" / commit)
        (copies / "refs").mkdir()
        (copies / "refs" / "main").write_text(commit)
        return "some/tiny"

    return put


@dataclass
class Endpoint:
    """A running server: its address and what it was asked."""

    url: str
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture
def serve():
    """Starts servers: `serve(answer)` with answer(path, body, n) -> (status, headers, JSON or bytes)."""
    running = []

    def start(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers.get("content-length", 0))
                sent = self.rfile.read(length)
                if len(sent) < length:  # by a process that was killed meanwhile: not asked
                    self.close_connection = True
                    return
                body = json.loads(sent or "null")
                with lock:
                    endpoint.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                    number = len(endpoint.asked)
                status, headers, reply = answer(self.path, body, number)
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.do_POST()

            def log_message(self, *_):
                """Say nothing."""

        lock = threading.Lock()
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        running.append((server, thread))
        return endpoint

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def postgres():
    """The URL of a running PostgreSQL; skips, and says so, where there is none and none can be started."""
    if url := os.environ.get("TTTEMBED_TEST_POSTGRES"):
        yield make_url(url).set(drivername="postgresql+psycopg")
        return
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL: pgserver is not installed")
    # Not below pytest's own folder, which the server's user may not enter where root runs the tests.
    folder = tempfile.mkdtemp(prefix="tttembed-postgres-")
    try:
        server = pgserver.get_server(folder)
    except Exception as exc:  # noqa: BLE001 - whatever keeps it from starting here
        pytest.skip(f"PostgreSQL could not be started: {exc}")
    url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    with connected(url, isolation_level="AUTOCOMMIT") as connection:  # no test cuts the power of this one
        connection.execute(text("ALTER SYSTEM SET fsync = off"))
        connection.execute(text("SELECT pg_reload_conf()"))
    yield url
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def connected(url, **options):
    """A transaction on a database, which is left alone afterwards."""
    engine = create_engine(url, poolclass=NullPool, **options)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def new_postgres_url(postgres):
    """The URL of an empty schema, which for a store is a database of its own."""
    with made_schema(postgres) as url:
        yield url


@contextmanager
def made_schema(postgres):
    """The URL of a schema that lasts for the block."""
    name = f"tttembed_{uuid.uuid4().hex}"
    with connected(postgres) as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    yield postgres.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)
    with connected(postgres) as connection:
        connection.execute(text(f"DROP SCHEMA {name} CASCADE"))


@pytest.fixture(scope="session")
def postgres_store(postgres):
    """The URL of a schema with the tables of a store, and by table the rows that a new store has, ids aside."""
    with made_schema(postgres) as url:
        open_store(url).close()
        with connected(url) as connection:
            rows = {
                table: connection.execute(table.select()).mappings().all() for table in schema.metadata.sorted_tables
            }
        yield (
            url,
            {
                table: [{k: v for k, v in row.items() if k != "id"} for row in some]
                for table, some in rows.items()
                if some
            },
        )


@pytest.fixture
def postgres_url(postgres_store):
    """The URL of a store on PostgreSQL without content; its tables are made once and emptied for each test."""
    url, rows = postgres_store
    with connected(url) as connection:
        connection.execute(END_OTHERS)
        connection.execute(text(f"TRUNCATE {', '.join(schema.metadata.tables)} RESTART IDENTITY CASCADE"))
        for table, some in rows.items():
            connection.execute(table.insert(), some)
    return url


# Those of the test before, which it may have left behind within a transaction.
END_OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = relation "
    "WHERE c.relnamespace = current_schema()::regnamespace AND l.pid <> pg_backend_pid()) others"
)


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory):
    """A store without content."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def new_sqlite_url(tmp_path):
    """The URL of a file that is not there yet, in a folder of its own that can be moved away."""
    (tmp_path / "data").mkdir()
    return f"sqlite:///{tmp_path / 'data' / 'store.db'}"


@pytest.fixture
def sqlite_url(new_sqlite_url, sqlite_file):
    """The URL of a store without content: a copy, as making the tables takes longer than most tests."""
    shutil.copy(sqlite_file, new_sqlite_url.removeprefix("sqlite:///"))
    return new_sqlite_url


@pytest.fixture
def store(sqlite_url):
    with open_store(sqlite_url) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """Of a store without content, one after the other."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")


@pytest.fixture(params=["sqlite", "postgresql"])
def new_store_url(request):
    """Of a database without tables, one after the other."""
    return request.getfixturevalue("new_sqlite_url" if request.param == "sqlite" else "new_postgres_url")


class World:
    """Queries that all lack one direction, with texts, and a judge that knows better.

    Args:
        rewards: What the judge says.
        first: Number of the first query, in another world than that of lower ones.
    """

    def __init__(self, rewards, first=0):
        self.rewards = rewards
        self.first = first
        self.scores = {
            (f"query {first + i}", f"document {first}-{j}"): float(rewards.values[j])
            for i in range(len(rewards))
            for j in self.shown(i)
        }

    def shown(self, i):
        """Rows of the documents of query i."""
        return range(self.rewards.starts[i], self.rewards.starts[i + 1])

    def served(self, rows, *, judged=False, values=None, text=True, name="q", **facts):
        """Some queries as they were served, with their rewards or to be judged."""
        values = self.rewards.values if values is None else values
        for i in rows:
            candidates = [
                Candidate(
                    f"d{self.first}-{j}",
                    self.rewards.doc_vectors[j],
                    f"document {self.first}-{j}" if text else "",
                    float(values[j]) if judged else None,
                )
                for j in self.shown(i)
            ]
            number = self.first + i
            query = f"query {number}" if text else ""
            yield Served(f"{name}{number}", self.rewards.query_vectors[i], candidates, query, **facts)

    def best(self, rows, offsets=None):
        """Mean reward of the first document of some queries, under offsets."""
        found = []
        for i in rows:
            query = self.rewards.query_vectors[i]
            query = query if offsets is None else offsets.apply(query)
            shown = list(self.shown(i))
            found.append(self.rewards.values[shown[int(np.argmax(self.rewards.doc_vectors[shown] @ query))]])
        return np.mean(found)

    def judged(self, query, documents):
        """The judge's scores; of texts that are not of this world, such as a probe, the share of the query's words."""
        return [self.scores.get((query, document), word_overlap(query, document)) for document in documents]

    @staticmethod
    def reply(scores):
        """*scores* as Cohere's rerank protocol says them."""
        items = [{"index": i, "relevance_score": score} for i, score in enumerate(scores)]
        return {"results": items, "meta": {"billed_units": {"search_units": 1}}}


@pytest.fixture(scope="session")
def world(planted):
    """120 queries with 8 candidates each."""
    return World(planted(120, strength=0.9, dtype=np.float32))


@pytest.fixture
def reranker(world, serve):
    """Starts servers that speak Cohere's rerank protocol: `reranker(answer)`, answer(scores, n) -> what is said."""

    def start(answer=None):
        def respond(_, body, number):
            scores = world.judged(body["query"], body["documents"])
            outcome = answer(scores, number) if answer else scores
            if isinstance(outcome, int):
                return outcome, {}, b"{}"
            return 200, {}, outcome if isinstance(outcome, bytes) else world.reply(outcome)

        endpoint = serve(respond)
        return endpoint.url.removeprefix("http://"), endpoint.asked

    return start
