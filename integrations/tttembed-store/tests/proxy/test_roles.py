"""Which vectors the proxy steers, and that all others pass bit for bit."""

import base64

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from tttembed_store.proxy import Caller, Callers

from tests.traffic import frozen
from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.embedders import Bridge
from tttembed_rag.offsets.floor import Floor

QUERY = {"x-ttt-role": "query"}


def ask(client, headers=None, **fields):
    """An answer to an OpenAI request."""
    return client.post("/v1/embeddings", json={"model": "small", "input": "wash wool", **fields}, headers=headers)


def version(client, headers=None, **fields):
    """The version that steered such an answer."""
    return ask(client, headers, **fields).headers["x-ttt-version"]


def private(tools, query_id):
    evidence = Evidence(1, 0.1, (0.05, 0.15), "published", "made up")
    vector = np.ones(tools.WIDTH, np.float32)
    offset = Offset("query", vector, 0.9, 1, evidence, task="default", query_id=query_id)
    return frozen(Offsets([offset], width=tools.WIDTH))


def vectors(answer):
    return [row["embedding"] for row in sorted(answer.json()["data"], key=lambda row: row["index"])]


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        (QUERY, {}),
        ({}, {"input_type": "query"}),
        ({}, {"input_type": "search_query"}),
        ({}, {"model": "small@query"}),
        (QUERY, {"input_type": "document", "model": "small@document"}),
    ],
)
def test_a_query_is_steered(proxied, tools, headers, fields):
    """A header, an input type or an alias makes a query of it; the header comes first."""
    answer = ask(proxied(), headers, **fields)

    expected = tools.offsets_of().apply(tools.vector_of("wash wool"))
    assert vectors(answer) == [pytest.approx(expected)]
    assert answer.headers["x-ttt-version"] == "file"


@pytest.mark.parametrize(
    ("path", "fields", "quantised"),
    [
        ("/openai/deployments/small/embeddings?api-version=2024-10-21", {"model": "small"}, False),
        ("/openai/deployments/small/embeddings?api-version=2024-10-21", {}, False),
        ("/v1beta/openai/embeddings", {"model": "small"}, False),
        ("/embeddings", {"model": "small"}, True),
        ("/v1/embeddings/", {"model": "small"}, False),
        ("/v1/embed", {"model": "small", "texts": ["wash wool"]}, False),
        ("/v1/embed", {"model": "small", "texts": ["wash wool"]}, True),
    ],
)
def test_a_query_is_steered_by_whatever_path_embeddings_have(proxied, tools, path, fields, quantised):
    """Azure's, Gemini's and the older one of Cohere; a vector in whole numbers stays as it came."""
    vector = [round(9 * number) for number in tools.vector_of("x")] if quantised else tools.vector_of("x")

    async def embed(request):
        is_cohere = request.url.path.endswith("/embed")
        return JSONResponse({"embeddings": [vector]} if is_cohere else {"data": [{"index": 0, "embedding": vector}]})

    with tools.running(Starlette(routes=[Route("/{path:path}", embed, methods=["POST"])])) as url:
        answer = proxied(upstream=url).post(path, json={"input": "wash wool"} | fields, headers=QUERY)
    body = answer.json()
    served = body["embeddings"][0] if "embeddings" in body else body["data"][0]["embedding"]

    assert served == (vector if quantised else pytest.approx(tools.offsets_of().apply(vector)))
    assert all(isinstance(number, int) for number in served) == quantised
    assert answer.headers["x-ttt-version"] == ("base" if quantised else "file")


def test_a_query_at_a_path_of_no_embeddings_is_told_that_it_is_not_steered(proxied):
    answer = proxied().post("/v1beta/models/small:embedContent", json={"content": "wash wool"}, headers=QUERY)

    assert answer.headers["x-ttt-version"] == "base"


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {}),
        ({"x-ttt-role": "document"}, {"input_type": "query"}),
        ({"x-ttt-role": "qurey"}, {"model": "small@query"}),
        ({}, {"input_type": "classification", "model": "small@query"}),
        ({}, {"model": "small@document"}),
        (QUERY, {"model": "another"}),
        (QUERY, {"model": "wide"}),
        ({}, {"model": "small@fast"}),
    ],
)
def test_all_else_is_the_answer_of_the_service(proxied, bare, headers, fields):
    """Without a role, with another role, for another model or width: the bytes of the service."""
    answer = ask(proxied(model="wide" if fields == {"model": "wide"} else "small"), headers, **fields)

    model = fields.get("model", "small").removesuffix("@query").removesuffix("@document")
    direct = ask(bare, **fields | {"model": model})
    assert answer.content == direct.content
    assert answer.headers["x-ttt-version"] == "base"


def test_the_service_never_sees_an_alias(proxied, service):
    """The upstream is asked for the model itself, and all other fields arrive as they were."""
    ask(proxied(), model="small@query", dimensions=16, user="me")

    ((_, body),) = service.asked
    assert body == {"model": "small", "input": "wash wool", "dimensions": 16, "user": "me"}


def test_each_text_gets_its_own_offset(proxied, tools):
    """A private offset is that of its text, by the number in the answer, whose order is another."""
    answer = ask(proxied(private(tools, "one")), QUERY, input=["one", "two", "three"])

    steered = [vectors(answer)[place] != tools.vector_of(text) for place, text in enumerate(("one", "two", "three"))]
    assert steered == [True, False, False]


def test_base64_stays_base64(proxied, tools):
    """Vectors in base64 come back steered, in base64 and in single precision."""
    answer = ask(proxied(), QUERY, encoding_format="base64")

    (text,) = vectors(answer)
    expected = tools.offsets_of().apply(np.array(tools.vector_of("wash wool"), np.float32))
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(text), "<f4"), expected, rtol=1e-5)


def test_usage_and_headers_are_unchanged(proxied, bare):
    """All of a steered answer but its vectors is what the service said."""
    answer, direct = ask(proxied(), QUERY), ask(bare)

    kept, sent = ({key: value for key, value in body.json().items() if key != "data"} for body in (answer, direct))
    assert kept == sent
    assert answer.headers["x-request-id"] == "r1"
    assert answer.headers["content-type"] == direct.headers["content-type"]


def test_cohere_says_its_role_itself(proxied, bare, tools):
    """`input_type` of Cohere is enough: queries are steered, documents and whole numbers are not."""
    fields = {"model": "small", "texts": ["wash wool"], "embedding_types": ["float", "int8"]}
    client = proxied()

    query = client.post("/v2/embed", json=fields | {"input_type": "search_query"}).json()["embeddings"]
    document = client.post("/v2/embed", json=fields | {"input_type": "search_document"})

    direct = bare.post("/v2/embed", json=fields | {"input_type": "search_document"})
    assert query["float"] == [pytest.approx(tools.offsets_of().apply(tools.vector_of("wash wool")))]
    assert query["int8"] == direct.json()["embeddings"]["int8"]
    assert document.content == direct.content


def test_the_task_comes_from_the_key_then_the_header_then_the_default(proxied, tools):
    """A caller leaves the task that its key names no more than its tenant."""
    live = frozen(tools.offsets_of(task="billing"))
    callers = Callers({"k1": Caller(task="billing"), "k2": Caller(task="other"), "k3": Caller()}, task="billing")
    client = proxied(live, callers=callers)

    second = QUERY | {"authorization": "Bearer k2"}

    assert version(client, QUERY) == version(client, QUERY | {"authorization": "Bearer k1"}) == "file"
    assert version(client, second) == version(client, QUERY | {"api-key": "k2"}) == "base"
    assert version(client, second | {"x-ttt-task": "billing"}) == "base"
    assert version(client, QUERY | {"x-ttt-task": "other", "api-key": "k3"}) == "base"


def test_a_tenant_comes_from_its_key_alone(proxied, tools):
    """Where keys are mapped no header reaches another tenant's offsets; without keys the header names the tenant."""
    live = frozen(acme=tools.offsets_of())
    mapped, open_ = proxied(live, callers=Callers({"k1": Caller("acme")})), proxied(live)
    named = QUERY | {"x-ttt-tenant": "acme"}

    assert version(mapped, QUERY | {"authorization": "Bearer k1"}) == version(open_, named) == "file"
    assert version(mapped, named) == version(mapped, named | {"authorization": "Bearer k2"}) == "base"


def test_two_tenants_in_one_request_are_none(proxied, tools):
    """A gateway that appends the tenant to what its client sent is not overruled by its client."""
    live = frozen(acme=tools.offsets_of())
    client = proxied(live)

    first = [*QUERY.items(), ("x-ttt-tenant", "acme")]
    versions = [version(client, [*first, ("x-ttt-tenant", second)]) for second in ("bob", "", "acme")]

    assert versions == ["base", "base", "file"]


@pytest.mark.parametrize(("header", "value"), [("authorization", "Bearer {}"), ("api-key", "{}"), ("x-api-key", "{}")])
def test_the_key_of_the_service_is_lent_to_known_callers_only(proxied, service, header, value):
    """A known key stays with the proxy, which sends the service's; an unknown one is for the service to refuse."""
    client = proxied(callers=Callers({"k1": Caller("acme")}), upstream_key="secret")

    for key in ("k1", "k2"):
        ask(client, QUERY | {header: value.format(key), "x-ttt-task": "billing"})

    known, unknown = (headers for headers, _ in service.asked)
    assert known["authorization"] == "Bearer secret"
    assert "k1" not in str(known)
    assert unknown[header] == value.format("k2")
    assert not [name for name in (*known, *unknown) if name.startswith("x-ttt-")]


def test_private_offsets_are_found_by_the_id_in_the_header(proxied, tools):
    """`X-TTT-Query-Id` names the query of a request with one text."""
    client = proxied(private(tools, "q7"))

    assert version(client, QUERY | {"x-ttt-query-id": "q7"}) == "file"
    assert version(client, QUERY | {"x-ttt-query-id": "q8"}) == "base"
    assert version(client, QUERY | {"x-ttt-query-id": "q7"}, input=["one", "two"]) == "base"


class TestVectorsIn:
    """`/v1/steer`: vectors in, vectors out."""

    def test_vectors_come_back_steered(self, proxied, tools):
        """Each vector gets its offset; the answer says how many, and which version."""
        sent = [tools.vector_of("one"), tools.vector_of("two")]

        answer = proxied().post("/v1/steer", json={"vectors": sent, "texts": []})

        assert answer.json()["vectors"] == [pytest.approx(tools.offsets_of().apply(vector)) for vector in sent]
        assert {key: answer.json()[key] for key in ("steered", "version")} == {"steered": 2, "version": "file"}

    def test_a_vector_that_cannot_be_steered_comes_back(self, proxied):
        """Another width: the base vector, and no error."""
        answer = proxied().post("/v1/steer", json={"vectors": [[1.0, 2.0]], "texts": ["one"]})

        assert answer.json() == {"vectors": [[1.0, 2.0]], "steered": 0, "version": "base"}

    def test_the_state_can_be_asked_for(self, proxied):
        """GET says which version is served, or why none is."""
        answer = proxied(frozen()).get("/v1/steer")

        assert answer.json() == {"version": None, "reason": "nothing was published", "age": None, "error": None}


def test_the_task_may_follow_from_the_text(proxied, tools):
    """As `language_of` gives it, where the caller names none."""
    live = frozen(tools.offsets_of(task="de"))
    client = proxied(live, task=lambda text: "de" if "Wolle" in text else "en")

    assert [version(client, QUERY, input=text) for text in ("Wolle waschen", "wash wool")] == ["file", "base"]
    assert version(client, QUERY | {"x-ttt-task": "en"}, input="Wolle waschen") == "base"


@pytest.fixture
def bridge(tools):
    """A bridge from the service's model to an index of another width."""
    new = [tools.vector_of(f"passage {number}") for number in range(60)]
    return Bridge.learn(new, np.random.default_rng(0).normal(size=(60, 8)))


def test_all_vectors_cross_a_bridge_and_those_of_queries_are_steered(proxied, tools, bridge):
    """What no request calls a query fills the old index."""
    offsets = tools.offsets_of(width=8)
    client = proxied(frozen(offsets), bridge=bridge)
    vector = tools.vector_of("wash wool")
    query, document = ask(client, QUERY), ask(client)
    steered = client.post("/v1/steer", json={"vectors": [vector]})

    expected = offsets.apply(bridge.apply(vector).tolist())
    assert vectors(query) == [pytest.approx(expected)]
    assert vectors(document) == [pytest.approx(bridge.apply(vector, documents=True).tolist())]
    assert steered.json()["vectors"] == [pytest.approx(expected)]
    assert ask(client, QUERY, model="wide").headers["x-ttt-version"] == "base"


def test_what_cannot_cross_a_bridge_is_refused(proxied, tools, bridge):
    """A vector of the new model means nothing in the old index: no caller gets one."""
    narrow = Bridge.learn(np.random.default_rng(1).normal(size=(60, 5)), np.random.default_rng(0).normal(size=(60, 8)))

    assert ask(proxied(frozen(tools.offsets_of(width=8)), bridge=narrow), QUERY).status_code == 502
    assert ask(proxied(frozen(tools.offsets_of(width=8)), bridge=bridge, limit=100), QUERY).status_code == 502


FLOORED = Evidence(60, 0.1, (0.05, 0.15), "published", "made up")


def floored(tools, task):
    """A local offset of a task with a floor: its search finds nothing below a cosine of .43217."""
    zero = np.zeros(tools.WIDTH, np.float32)
    floor = Floor((0.0,) * 5, np.zeros((1, tools.WIDTH)), 0.0, 60, (0.1,), 1.0, (0.43217,), (0.04,))
    return Offset("local", zero, 0.5, 60, FLOORED, task=task, floor=floor)


@pytest.mark.parametrize(
    ("task", "query", "fields", "expected"),
    [
        ("default", QUERY, {}, "0.4321"),
        ("default", QUERY, {"input": ["one", "two"]}, "0.4321"),
        ("default", {}, {}, None),
        ("default", QUERY, {"model": "wide"}, None),
        ("billing", QUERY, {}, None),
        ("billing", QUERY | {"x-ttt-task": "billing"}, {}, "0.4321"),
    ],
)
def test_a_query_comes_with_the_cosine_below_which_nothing_answers_it(proxied, tools, task, query, fields, expected):
    """Rounded down, where its task has a floor; not where offsets refuse the vector, nor for documents."""
    model = fields.get("model", "small")
    live = frozen(Offsets([floored(tools, task)], width=tools.WIDTH))

    assert ask(proxied(live, model=model), query, **fields).headers.get("x-ttt-floor") == expected


def test_vectors_that_are_there_already_come_with_it_too(proxied, tools):
    """`/v1/steer` has the floor in its header."""
    client = proxied(frozen(Offsets([floored(tools, "default")], width=tools.WIDTH)))
    body = {"vectors": [tools.vector_of("wash wool")], "texts": ["wash wool"]}

    assert client.post("/v1/steer", json=body).headers["x-ttt-floor"] == "0.4321"


def test_queries_of_several_floors_come_with_none(proxied, tools):
    """A private offset has no floor: of a request with its text and another nothing is certified of both."""
    own = Offset("query", np.ones(tools.WIDTH, np.float32), 0.9, 1, FLOORED, task="default", query_id="one")
    client = proxied(frozen(Offsets([own, floored(tools, "default")], width=tools.WIDTH)))

    assert "x-ttt-floor" not in ask(client, QUERY, input=["one", "two"]).headers
