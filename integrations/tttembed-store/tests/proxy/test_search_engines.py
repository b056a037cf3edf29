"""What docs/reference/clients.md shows of engines that embed through the proxy, and of the function in PostgreSQL.

Neither Elasticsearch nor OpenSearch can be installed beside the tests. What they send is made here from the requests of
the page, by the rules that they document for their templates.
"""

import json
import re
from pathlib import Path

import numpy as np
import psycopg
import pytest

from tests.traffic import frozen
from tttembed_rag import Evidence, Offset, Offsets, fit
from tttembed_rag.offsets.kernel import KernelMap

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "clients.md").read_text(encoding="utf-8")
TEXTS = ["wash wool", "dry wool"]


def blocks(head):
    """The blocks of the page that begin so."""
    return re.findall(rf"^```{re.escape(head)}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def filled(template, values):
    """A template with its placeholders filled in; one that nobody knows is refused, as the engines do."""
    return re.sub(r"\$\{([\w.]+)\}", lambda match: values[match[1]], template)


def elasticsearch(client, texts):
    """The vectors of an inference endpoint: JSON in the body, text in headers, and what its path finds."""
    (settings,) = (
        json.loads(block)["service_settings"] for block in blocks('http title="PUT _inference/text_embedding/steered"')
    )
    secrets = settings["secret_parameters"]
    body = filled(
        settings["request"], {name: json.dumps(value) for name, value in secrets.items()} | {"input": json.dumps(texts)}
    )
    headers = {name: filled(value, secrets) for name, value in settings["headers"].items()}
    answer = client.post(settings["url"].partition(":8787")[2], content=body, headers=headers).json()
    assert settings["response"]["json_parser"]["text_embeddings"] == "$.data[*].embedding[*]"
    return [row["embedding"] for row in answer["data"]]


def opensearch(client, texts):
    """The vectors of a connector's prediction: its parameters and its credential stand in the templates as they are."""
    (connector,) = map(json.loads, blocks('http title="POST _plugins/_ml/connectors/_create"'))
    (action,) = connector["actions"]
    values = {f"parameters.{name}": value for name, value in connector["parameters"].items()}
    values |= {f"credential.{name}": value for name, value in connector["credential"].items()}
    values["parameters.input"] = json.dumps(texts)  # by its pre_process_function
    headers = {name: filled(value, values) for name, value in action["headers"].items()}
    body = filled(action["request_body"], values)
    answer = client.post(action["url"].partition(":8787")[2], content=body, headers=headers).json()
    return [row["embedding"] for row in answer["data"]]


@pytest.mark.parametrize("engine", [elasticsearch, opensearch])
def test_an_engine_gets_steered_vectors_of_queries(proxied, service, tools, engine):
    """The service is asked for its own model, with the engine's key; what comes back is steered in the page's task."""
    offsets = tools.offsets_of(task="billing")
    client = proxied(frozen(offsets), model="text-embedding-3-small")

    expected = [offsets.apply(tools.vector_of(text), task="billing") for text in TEXTS]
    assert engine(client, TEXTS)[::-1] == [
        pytest.approx(vector) for vector in expected
    ]  # the tests' service answers backwards
    ((headers, body),) = service.asked
    assert (body["model"], body["input"]) == ("text-embedding-3-small", TEXTS)
    assert headers["authorization"] == "Bearer ..."


def test_postgresql_steers_as_offsets_do(postgres_url, planted):
    """The function gives the direction that `Offsets.apply` gives, of constant and of local offsets; others stay."""
    learned = fit(planted(60, strength=0.9, dtype=np.float32), scope="local", gate=False)
    width, rng = learned.width, np.random.default_rng(0)
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    landmarks = rng.normal(size=(3, width)).astype(np.float32)
    landmarks /= np.linalg.norm(landmarks, axis=1, keepdims=True)
    around = KernelMap(landmarks, rng.normal(size=(3, width)).astype(np.float32) / 8, 0.5)
    some = rng.normal(size=width).astype(np.float32) / 4
    offsets = Offsets(
        [
            Offset("task", some, 0.9, 9, evidence, task="billing"),
            Offset("local", some, 0.8, 9, evidence, task="support", map=around),
            Offset("query", some, 0.9, 1, evidence, task="billing", query_id="left out"),
            *learned.values(),
        ],
        width=width,
    )
    statements, search = blocks("sql")
    names = {}
    exec(blocks('py title="to_postgres.py"')[0], names)  # noqa: S102 - the page's own code
    queries = 3 * rng.normal(size=(4, width)).astype(np.float32)

    with psycopg.connect(postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)) as connection:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except psycopg.Error as error:
            pytest.skip(f"PostgreSQL has no pgvector: {error}")
        connection.execute("SELECT set_config('search_path', current_setting('search_path') || ',public', false)")
        connection.execute(statements)
        names["copy_offsets"](connection, offsets, ["billing", "support", "default", "unknown"])
        for task in ("billing", "support", "default", "unknown"):
            for query in queries:
                (text,) = connection.execute(
                    "SELECT ttt_steer(%s::vector, %s)::text", [str(query.tolist()), task]
                ).fetchone()
                steered, expected = np.array(json.loads(text)), offsets.apply(query, task=task)
                assert steered / np.linalg.norm(steered) == pytest.approx(expected / np.linalg.norm(expected), abs=1e-5)
                assert (task == "unknown") == np.allclose(steered, query)
        connection.execute("CREATE TABLE manuals (id bigint, embedding vector)")
        connection.execute("INSERT INTO manuals SELECT 1, ttt_steer(%s::vector, 'billing')", [str(queries[0].tolist())])
        connection.execute("INSERT INTO manuals VALUES (2, %s::vector)", [str(queries[0].tolist())])
        asked = search.replace("$1", "%s::vector")
        assert connection.execute(asked, [str(queries[0].tolist())]).fetchall() == [(1,), (2,)]
        connection.rollback()
