"""Document vectors of stores' clients: real stores where one can run here, else the real client over the real wire.

Neither Weaviate nor Elasticsearch can be installed beside the tests. Their clients speak to servers on loopback that
answer as theirs are documented to, defaults that lose vectors included.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

import numpy as np
import psycopg
import pytest
from tttembed_hosts.stored_vectors import from_chroma, from_elasticsearch, from_pgvector, from_qdrant, from_weaviate

from tttembed_rag import TextVectors

VECTORS = {"1": [1.0, 0.0, 0.5], "2": [0.0, 1.0, 0.25]}


def remembered(stored):
    """Vectors of texts that are looked up, and how many had to be embedded."""
    vectors = TextVectors(stored=stored)
    vectors.note([("one", "1"), ("two", "2"), ("three", "3")])
    matches = vectors.of(["one", "two", "three"], lambda texts: [[9.0, 9.0, 9.0] for _ in texts])
    return matches.tolist(), vectors.embedded


EXPECTED = [[*VECTORS["1"]], [*VECTORS["2"]], [9.0, 9.0, 9.0]]


@pytest.mark.parametrize("name", [None, "dense"])
@pytest.mark.filterwarnings("ignore")  # what Qdrant's local mode says of itself
def test_qdrant_gives_its_vectors(name):
    """A real collection, with one vector for a point or several by name; a missing point is embedded."""
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    params = qdrant.models.VectorParams(size=3, distance=qdrant.models.Distance.DOT)
    client = qdrant.QdrantClient(":memory:")
    client.create_collection("manuals", params if name is None else {name: params})
    points = [
        qdrant.models.PointStruct(id=int(key), vector=vector if name is None else {name: vector})
        for key, vector in VECTORS.items()
    ]
    client.upsert("manuals", points)

    assert remembered(from_qdrant(client, "manuals", vector=name)) == (EXPECTED, 1)


def test_qdrant_is_not_asked_for_ids_that_it_cannot_have(serve):
    """A server refuses a whole request for one id that is neither a number nor a UUID."""
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")

    def answer(path, body, number):
        if body["ids"] != [1]:
            return 400, {}, {"status": {"error": "Format error in JSON body: value is not a valid point ID"}, "time": 0}
        return 200, {}, {"result": [{"id": 1, "payload": None, "vector": VECTORS["1"]}], "status": "ok", "time": 0}

    client = qdrant.QdrantClient(serve(answer).url, check_compatibility=False)

    impossible = ["page-7", str(2**64), "9" * 5000, "007", "\u0661"]

    assert from_qdrant(client, "manuals")(["1", *impossible]) == {"1": VECTORS["1"]}


def test_chroma_gives_its_vectors():
    """A real collection; a missing document is embedded."""
    chromadb = pytest.importorskip("chromadb", reason="Chroma is not installed")
    collection = chromadb.EphemeralClient().create_collection("tttembed-stored", embedding_function=None)
    collection.add(ids=list(VECTORS), embeddings=list(VECTORS.values()), documents=["one", "two"])

    assert remembered(from_chroma(collection)) == (EXPECTED, 1)


def test_pgvector_gives_its_vectors(postgres_url):
    """A real table in a schema of its own, ids as numbers; a missing row is embedded."""
    url = postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except psycopg.Error as error:
            pytest.skip(f"PostgreSQL has no pgvector: {error}")
        schema = connection.execute("SELECT current_schema()").fetchone()[0]
        connection.execute("CREATE TABLE manuals (id bigint PRIMARY KEY, embedding public.vector(3))")
        for key, vector in VECTORS.items():
            connection.execute("INSERT INTO manuals VALUES (%s, %s::public.vector)", [int(key), str(vector)])

        assert remembered(from_pgvector(connection, "manuals")) == (EXPECTED, 1)
        assert remembered(from_pgvector(lambda: connection, f"{schema}.manuals")) == (EXPECTED, 1)
        assert np.shape(from_pgvector(connection, "manuals")(["1"])["1"]) == (3,)

    with psycopg.connect(url) as connection:
        matches = from_pgvector(connection, "manuals")(["1"])
        after = [connection.info.transaction_status]
        with pytest.raises(psycopg.errors.UndefinedTable):
            from_pgvector(connection, "none")(["1"])
        after.append(connection.info.transaction_status)
        again = from_pgvector(connection, "manuals")(["1"])
        connection.rollback()

    assert matches == again == {"1": VECTORS["1"]}
    assert after == [psycopg.pq.TransactionStatus.IDLE] * 2


@pytest.mark.parametrize("field", ["embedding", "page.vector"])
def test_elasticsearch_gives_its_vectors(serve, field):
    """Its client against what ``_search`` is documented to answer: ten hits unless told, vectors as fields alone."""
    elasticsearch = pytest.importorskip("elasticsearch", reason="the client of Elasticsearch is not installed")
    vectors = VECTORS | {f"page {n}": [float(n), 0.0, 1.0] for n in range(600)}

    def answer(path, body, number):
        assert path == "/manuals/_search"
        hits = [{"_index": "manuals", "_id": name, "_score": 1.0} for name in body["query"]["ids"]["values"]]
        for hit in hits:
            if body.get("_source", True):
                hit["_source"] = {"text": "wool"}
            if field in body.get("fields", ()) and hit["_id"] != "bare":
                hit["fields"] = {field: vectors.get(hit["_id"])}
        matches = [hit for hit in hits if hit["_id"] in [*vectors, "bare"]][: body.get("size", 10)]
        reply = {"took": 1, "timed_out": False, "hits": {"total": {"value": len(matches)}, "hits": matches}}
        kind = "application/vnd.elasticsearch+json;compatible-with=9"
        return 200, {"x-elastic-product": "Elasticsearch", "content-type": kind}, reply

    with elasticsearch.Elasticsearch(serve(answer).url) as client:
        stored = from_elasticsearch(client, "manuals", field=field)

        assert remembered(stored) == (EXPECTED, 1)
        assert stored([*vectors, "bare", "gone"]) == vectors


def weaviate_answers(name, vectors):
    """What ``weaviate.v1.Weaviate/Search`` answers to a filter of ids: ten objects unless told, vectors in bytes."""
    from weaviate.proto.v1.base_pb2 import Vectors
    from weaviate.proto.v1.search_get_pb2 import MetadataResult, SearchReply, SearchResult

    def search(request, context):
        assert (request.collection, request.metadata.vector) == ("Manuals", True)
        wanted = {uuid.UUID(clause.value_text) for clause in request.filters.filters or [request.filters]}
        results = []
        for key in sorted(wanted & vectors.keys())[: request.limit or 10]:
            result = MetadataResult(id=str(key), id_as_bytes=key.bytes)
            packed = np.asarray(vectors[key], "<f4").tobytes()
            if name is None:  # a collection from before vectors had names
                result.vector_bytes = packed
            else:
                kind = Vectors.VECTOR_TYPE_SINGLE_FP32
                result.vectors.append(Vectors(name=name, vector_bytes=packed, type=kind))
            results.append(SearchResult(metadata=result))
        return SearchReply(results=results)

    return search


@pytest.fixture
def weaviate_client(serve):
    """`weaviate_client(search)` is a real client that is connected to a server with that procedure."""
    weaviate = pytest.importorskip("weaviate", reason="the client of Weaviate is not installed")
    import grpc
    from weaviate.proto.v1.search_get_pb2 import SearchReply, SearchRequest

    def pages(path, *_):
        """What a client asks for as it connects: the version, and whether there is a login."""
        return (200, {}, {"version": "1.32.0", "modules": {}}) if path == "/v1/meta" else (404, {}, b"")

    with ExitStack() as ended:

        def connected(search):
            server = grpc.server(ThreadPoolExecutor(1))
            procedure = grpc.unary_unary_rpc_method_handler(
                search,
                request_deserializer=SearchRequest.FromString,
                response_serializer=SearchReply.SerializeToString,
            )
            service = grpc.method_handlers_generic_handler("weaviate.v1.Weaviate", {"Search": procedure})
            server.add_generic_rpc_handlers([service])
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            ended.callback(lambda: server.stop(0).wait())
            # Without its first checks, one of which asks a package index for the newest client.
            client = weaviate.connect_to_local(
                "127.0.0.1", urlsplit(serve(pages).url).port, port, skip_init_checks=True
            )
            return ended.enter_context(client)

        yield connected


@pytest.mark.parametrize("name", [None, "default", "title"])
def test_weaviate_gives_its_vectors(weaviate_client, name):
    """Its client against what the server is documented to answer; ids that are no UUIDs are those of its own maker."""
    from weaviate.util import generate_uuid5

    own = {f"page {n}": [float(n), 0.0, 1.0] for n in range(600)}
    page_id = str(uuid.uuid4())
    vectors = {uuid.UUID(generate_uuid5(key)): vector for key, vector in (VECTORS | own).items()}
    client = weaviate_client(weaviate_answers(name, vectors | {uuid.UUID(page_id): [2.0, 0.0, 0.0]}))
    stored = from_weaviate(client.collections.get("Manuals"), vector=name or "default")

    assert remembered(stored) == (EXPECTED, 1)
    assert stored([*own, "gone"]) == own
    assert stored([page_id, page_id.upper()]) == {
        page_id: [2.0, 0.0, 0.0],
        page_id.upper(): [2.0, 0.0, 0.0],
    }


def test_a_vector_that_weaviate_has_under_another_name_is_left_out(weaviate_client):
    """Documents whose vectors have other names are embedded."""
    vectors = {uuid.UUID(int=1): [1.0, 0.0, 0.0]}
    collection = weaviate_client(weaviate_answers("title", vectors)).collections.get("Manuals")

    assert from_weaviate(collection)([str(uuid.UUID(int=1))]) == {}
