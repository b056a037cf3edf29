"""A bridge from a new model into an old index: what it is made of, what it refuses, and what verdicts let through."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import save

from tttembed_rag import InputError, Offsets, Scale
from tttembed_rag.cli import main
from tttembed_rag.embedders import Bridge, Bridged, open_embedder
from tttembed_rag.embedders.specs import name_of
from tttembed_rag.errors import DataError, VectorError
from tttembed_rag.evaluate.bridging import Kept, kept_by
from tttembed_rag.evaluate.collection import open_collection
from tttembed_rag.evaluate.files import load_beir, load_vectors, write_beir, write_vectors
from tttembed_rag.testing import FakeEmbedder
from tttembed_rag.vectors.probe import Probe

WIDTH, NEW_WIDTH = 24, 32
TOPICS = 12


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def world():
    """Old vectors of documents and queries about topics, and new ones: turned, moved and wider, with some noise."""
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((TOPICS, WIDTH))
    turn = np.linalg.qr(rng.standard_normal((NEW_WIDTH, NEW_WIDTH)))[0][:WIDTH]
    moved = rng.standard_normal(NEW_WIDTH)

    def of(count, noise):
        base = topics[np.arange(count) % TOPICS] + noise * rng.standard_normal((count, WIDTH)) + 0.5
        return unit(base), unit(base @ turn + moved + 0.1 * rng.standard_normal((count, NEW_WIDTH)))

    return of(180, 0.7), of(60, 0.4)


@pytest.fixture
def bridge(world):
    (old, new), _ = world
    return Bridge.learn(new, old)


@pytest.fixture
def folder(world, tmp_path):
    """The world as a BEIR folder; a document is relevant to the queries of its topic."""
    (old_docs, new_docs), (old, new) = world
    corpus = [(f"d{row}", "", f"document {row}") for row in range(len(old_docs))]
    queries = {f"q{row}": f"query {row}" for row in range(len(old))}
    qrels = {f"q{q}": {f"d{d}": 1.0 for d in range(q % TOPICS, 180, TOPICS)} for q in range(len(old))}
    path = tmp_path / "world"
    write_beir(path, corpus, queries, qrels)
    dataset = load_beir(path)
    write_vectors(path, "old", dataset, old_docs, old, fingerprint="old-model")
    write_vectors(path, "new", dataset, new_docs, new, fingerprint="new-model")
    return path


def first_ten(queries, docs):
    return [set(row) for row in np.argsort(-queries @ docs.T, axis=1)[:, :10].tolist()]


def run(*arguments):
    return CliRunner().invoke(main, ["bridge", *map(str, arguments)])


def test_queries_across_it_find_what_the_old_model_finds(world, bridge):
    (old_docs, _), (old, new) = world
    lists = zip(first_ten(bridge.apply(new), old_docs), first_ten(old, old_docs), strict=True)

    assert np.mean([len(mine & theirs) / 10 for mine, theirs in lists]) > 0.7


def test_a_turned_space_is_turned_back(world):
    """Where the new space is the old one turned, documents cross to where they were."""
    (old, _), _ = world
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((WIDTH, WIDTH)))[0]

    crossed = Bridge.learn(old @ turn, old).apply(old @ turn, documents=True)

    assert np.vecdot(crossed, old).min() > 0.9


def test_one_vector_crosses_as_many_do_whatever_its_length(world, bridge):
    _, (_, new) = world
    crossed = bridge.apply(new)

    assert_allclose(bridge.apply(3 * new[0]), crossed[0], atol=1e-6)
    assert_allclose(np.linalg.norm(crossed, axis=1), 1, atol=1e-6)
    assert bridge.apply(new.astype(np.float32)).dtype == np.float32
    assert bridge.apply(new[0].tolist()).shape == (WIDTH,)


def test_logged_queries_move_the_middle_of_queries_alone(world):
    (old_docs, new_docs), (old, new) = world
    plain, logged = Bridge.learn(new_docs, old_docs), Bridge.learn(new_docs, old_docs, (new, old))

    assert_array_equal(plain.apply(new_docs, documents=True), logged.apply(new_docs, documents=True))
    assert logged.logged == 60
    assert np.linalg.norm(logged.queries.new - new.mean(axis=0)) < np.linalg.norm(plain.queries.new - new.mean(axis=0))
    assert 0 < logged.agreement <= 1


def test_a_file_keeps_everything(bridge, world, tmp_path):
    proven = replace(bridge, proof="keeps 90%", embedder="old", probe=Probe.of(lambda _: np.ones(3)).to_json())
    proven.save(tmp_path / "b.safetensors")
    again = Bridge.load(tmp_path / "b.safetensors")

    assert_allclose(again.apply(world[1][1]), bridge.apply(world[1][1]), atol=1e-6)
    names = ("agreement", "distance", "pairs", "logged", "probe", "embedder", "proof")
    assert [getattr(again, name) for name in names] == [getattr(proven, name) for name in names]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no bridge", "damaged or foreign"),
        (save({"weights": np.ones((2, 2), np.float32)}), "format tttembed-bridge-1, got None"),
        (save({"weights": np.ones((2, 2), np.float32)}, metadata={"format": "tttembed-bridge-1"}), "queries.new"),
    ],
)
def test_other_files_are_refused(bridge, tmp_path, data, reason):
    (path := tmp_path / "b.safetensors").write_bytes(data)
    replace(bridge, weights=bridge.weights * np.nan).save(tmp_path / "nan.safetensors")

    with pytest.raises(DataError, match=reason):
        Bridge.load(path)
    with pytest.raises(DataError, match="finite numbers"):
        Bridge.load(tmp_path / "nan.safetensors")


def test_what_are_no_pairs_is_refused(world):
    (old, new), _ = world

    with pytest.raises(VectorError, match="a row for each of old"):
        Bridge.learn(new[:50], old)
    with pytest.raises(InputError, match="at least 20 documents"):
        Bridge.learn(new[:19], old[:19])
    with pytest.raises(VectorError, match="old: expected finite, non-zero vectors, got a zero vector in row 3"):
        Bridge.learn(new, np.where(np.arange(180)[:, None] == 3, 0.0, old))
    with pytest.raises(VectorError, match=r"X: expected shape \(m, 32\)"):
        Bridge.learn(new, old).apply(old)


@pytest.fixture
def learned(tmp_path):
    """The file of a bridge from one fake model to another, and the new model."""
    old, new = FakeEmbedder(fingerprint="old"), FakeEmbedder(fingerprint="new")
    texts = [f"document {number} of topic{number % 7}" for number in range(60)]
    probe = Probe.of(lambda text: new.embed_queries([text])[0]).to_json()
    Bridge.learn(new.embed_documents(texts), old.embed_documents(texts), probe=probe).save(tmp_path / "b.safetensors")
    return tmp_path / "b.safetensors", new


def test_a_model_across_it_is_an_embedder(learned):
    path, new = learned
    across, bridge = Bridged(new, path), Bridge.load(path)

    assert_array_equal(across.embed_queries(["a b"]), bridge.apply(new.embed_queries(["a b"])))
    assert_array_equal(across.embed_documents(["a b"]), bridge.apply(new.embed_documents(["a b"]), documents=True))
    assert not len(across.embed_queries([]))
    assert across.fingerprint == bridge.name_of("new") != bridge.name_of("other")


def test_a_spec_names_it(learned):
    path, _ = learned
    spec = f"python:tttembed_rag.testing:FakeEmbedder?bridge={path}"

    assert isinstance(open_embedder(spec), Bridged)
    assert name_of(spec).endswith("-bridged")


def test_another_model_is_refused(learned):
    path, _ = learned

    with pytest.raises(InputError, match=r"bridge: .* learned for another embedding model"):
        Bridged(FakeEmbedder(width=7), path)


def test_a_bridge_whose_lists_are_by_chance_keeps_nothing(world, folder):
    (old_docs, new_docs), (_, new) = world
    collection = open_collection(folder, vectors="old", rewards="qrels", scale=Scale())
    blind = Bridge.learn(unit(np.random.default_rng(3).standard_normal(new_docs.shape)), old_docs)
    kept = kept_by(blind, collection, new, np.arange(24), trusted=True)

    assert len(kept.old) == 24
    assert not kept.proof(kept.bridge, 0.7)


def test_few_verdicts_prove_nothing():
    every = np.ones(19)

    assert Kept(every, every, every).proof(every, 0.5) == ""


def test_without_verdicts_nothing_is_written_but_by_a_word(folder, tmp_path):
    out = tmp_path / "b.safetensors"
    refused = run(folder, "--old", "old", "--embed", "new", "--out", out)

    assert refused.exit_code == 2
    assert "no verdicts" in refused.output
    assert not out.exists()
    assert "held-out queries find" in refused.output

    written = run(folder, "--old", "old", "--embed", "new", "--out", out, "--unproven")

    assert written.exit_code == 0
    assert "unproven" in written.output
    assert Bridge.load(out).proof == ""


def test_with_verdicts_what_is_kept_decides(folder, tmp_path):
    """The queries across it stand beside the folder's vectors, and offsets above it know it again."""
    out, above = tmp_path / "across.safetensors", tmp_path / "o.safetensors"
    command = [folder, "--old", "old", "--embed", "new", "--rewards", "qrels", "--trusted", "--out", out]
    written = run(*command, "--keep", "0.6", "--offsets", above)

    assert written.exit_code == 0, written.output
    bridge, dataset = Bridge.load(out), load_beir(folder)
    assert bridge.proof.startswith("keeps 60% of the old model's nDCG@10 on 60 held-out queries")
    docs, queries = load_vectors(folder, "across", dataset)
    assert_allclose(docs, load_vectors(folder, "old", dataset)[0])
    assert_allclose(queries, bridge.apply(load_vectors(folder, "new", dataset)[1]), atol=1e-6)
    assert Offsets.load(above).settings["embedder"] == bridge.name_of("new")

    refused = run(*command, "--keep", "1.5")

    assert refused.exit_code == 2
    assert "no proof that it keeps 150%" in refused.output


def test_feedback_in_a_file_is_enough(tmp_path):
    """Both models are asked then, and each text once."""
    rows = ["query,document,thumb"]
    for number in range(40):
        rows += [
            f"how does topic{number} work,manual on topic{number} and topic{at},{1 if at == number else -1}"
            for at in range(number, number + 3)
        ]
    (votes := tmp_path / "votes.csv").write_text("\n".join(rows), encoding="utf-8")
    fake = "python:tttembed_rag.testing:FakeEmbedder"
    refused = run(votes, "--embed", fake, "--out", tmp_path / "b.safetensors")
    written = run(votes, "--old", fake, "--embed", fake, "--out", tmp_path / "b.safetensors", "--keep", "0.1")

    assert "--old: expected the model" in refused.output
    assert written.exit_code == 0, written.output
    assert json.loads(Bridge.load(tmp_path / "b.safetensors").probe)["name"] == ""
    assert open_embedder(f"{fake}?bridge={tmp_path / 'b.safetensors'}").embed_queries(["topic1"]).shape == (1, 64)
