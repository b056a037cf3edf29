"""Words beside vectors: a rescorer is BM25 by its book, learned by its loss, published by the gate, and kept in a file.

The planted collection: each document has words of its own, and vectors that tell apart its topic alone. A judge that
reads finds the document by its words, which no offset can.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load, save
from scipy.optimize import check_grad
from tttembed_store import Candidate, Served, follow, open_store
from tttembed_store.worker.learning import staying

from tests.test_offsets import HEADER
from tttembed_rag import InputError, Offset, Offsets, Rewards, Steering, fit
from tttembed_rag.cli import main
from tttembed_rag.errors import OffsetFileError
from tttembed_rag.evaluate.collection import open_collection
from tttembed_rag.evaluate.experiment import ExperimentPlan, run
from tttembed_rag.evaluate.explaining import explain
from tttembed_rag.evaluate.files import load_beir, write_beir, write_vectors
from tttembed_rag.fitting.objectives import softmax
from tttembed_rag.fitting.optima import private_optima
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.wordweights import Weighing
from tttembed_rag.gate.audit import audit_sample
from tttembed_rag.gate.case import Case, Terms, gated
from tttembed_rag.gate.fit import nothing
from tttembed_rag.gate.lists import with_lists
from tttembed_rag.gate.proposals import propose_local
from tttembed_rag.offsets.codes import AUDITED, FALLS, MEANS, PUBLISHED
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary

TOPICS, OF_A_TOPIC, WIDTH = 24, 8, 32
RARE = "zyzzyva"


def corpus(seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Vectors (n, d) and texts of documents: near one another within a topic, each with three words of its own."""
    rng = np.random.default_rng(seed)
    topics = rng.standard_normal((TOPICS, WIDTH))
    vectors = np.repeat(topics, OF_A_TOPIC, axis=0) + 0.35 * rng.standard_normal((TOPICS * OF_A_TOPIC, WIDTH))
    own = [f"topic{row // OF_A_TOPIC} {RARE}{row} own{row} word{row} and the rest" for row in range(len(vectors))]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), own


def questions(vectors: np.ndarray, count: int, seed: int = 1) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Queries: vectors of their documents with noise, two of the words of these, and their places."""
    rng = np.random.default_rng(seed)
    wanted = rng.permutation(len(vectors))[:count]
    queries = vectors[wanted] + 0.3 * rng.standard_normal((count, WIDTH))
    return queries, [f"which own{row} is {RARE}{row}" for row in wanted.tolist()], wanted


def judged(count: int = 48, *, words: bool = True, sources: bool = False) -> Rewards:
    """What a judge says that gives 1 to the wanted document of each query and 0 to the others of its list."""
    vectors, texts = corpus()
    queries, texts_of_queries, wanted = questions(vectors, count)
    lists = np.argsort(-queries @ vectors.T, axis=1)[:, :8]
    return Rewards.from_indexed(
        queries,
        vectors,
        lists,
        (lists == wanted[:, None]).astype(float),
        query_texts=texts_of_queries if words else None,
        doc_texts=texts if words else None,
        sources=[f"user{row % 6}" for row in range(count)] if sources else None,
    )


@cache
def learned() -> Offsets:
    """What a declared judge teaches."""
    return fit(judged(), trusted=True)


class TestRescorer:
    """BM25 and its neighbours, for one list."""

    vocabulary = Vocabulary.of(["red fox", "red red hen house", "blue_whale"])

    def test_bm25_is_okapi_with_the_idf_of_the_judged_documents(self):
        """A word counts by how few of the judged documents have it, saturating, less in long documents."""
        bm25, lengths = self.vocabulary.overlap("Red fox!", ["red fox", "red red hen house", "a cow"])
        red, fox = np.log1p(1.5 / 2.5), np.log1p(2.5 / 1.5)
        length = 8 / 3  # "blue_whale" is two words
        first = (red + fox) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / length))
        second = red * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / length))
        np.testing.assert_allclose(bm25, [first, second, 0.0])
        assert lengths.tolist() == [2, 4, 2]

    def test_a_word_of_no_judged_document_is_the_rarest(self):
        """It is known by nobody, and not by its digest alone."""
        assert self.vocabulary.rarity("unheard") > self.vocabulary.rarity("whale") > self.vocabulary.rarity("red") > 0

    @pytest.mark.parametrize("text", ["狐狸在哪里", "ทดสอบ", "Où est l'été ?", ""])
    def test_any_script_has_words(self, text):
        """A text shares all of its words with itself; scripts without spaces are cut into characters."""
        bm25, _ = Vocabulary.of([text, "fox"]).overlap(text, [text, "1998"])
        assert (bm25[0] > 0) == bool(text)
        assert bm25[1] == 0

    def test_order_and_shared_words(self):
        """Candidates that share the rare word come first; of equals the earlier one."""
        evidence = Evidence(1, None, None, "published", "")
        rescorer = Rescorer(np.array([1.0, 1.0, 0.0, 0.0]), self.vocabulary, evidence)
        texts = ["red hen", "hen", "red fox", "hen"]
        assert rescorer.order("the red fox", texts, [0.9, 0.5, 0.1, 0.5]).tolist() == [2, 0, 1, 3]
        assert rescorer.shared_words("the red fox", "Red fox") == ["fox", "red"]
        for query, documents, scores, line in (
            ("fox", texts, [0.9, np.nan, 0.1, 0.5], "scores: expected finite numbers, got "),
            ("fox", texts, [0.9, 0.1], "scores: expected 4, one per text, got shape"),
            ("fox", texts, ["a", "b", "c", "d"], "scores: expected numbers"),
            ("fox", "hens", [0.9, 0.8, 0.7, 0.6], "texts: expected a list of texts, got one text"),
            ("fox", [{"text": "hen"}], [0.9], "texts: expected texts, got dict"),
            (texts, "fox", [0.9, 0.8, 0.7], "query: expected a text, got list"),
        ):
            with pytest.raises(InputError, match=line):
                rescorer.order(query, documents, scores)


def inverted() -> Rewards:
    """A judge that ranks backwards."""
    rewards = judged()
    near = rewards.documents.similarities(rewards.queries, rewards.candidates.reshape(len(rewards), -1))
    return replace(rewards, values=(1 - near.ravel()) / 2)


class TestWeighing:
    """The problem that weights are the optimum of."""

    def test_the_gradient_is_that_of_the_objective(self):
        """Also where a query has fewer candidates than another."""
        rng = np.random.default_rng(0)
        present = np.arange(4) < np.array([4, 3, 2])[:, None]
        teacher = softmax(np.where(present, rng.standard_normal((3, 4)), -1e30))
        features = np.where(present[..., None], rng.standard_normal((3, 4, 4)), 0.0)
        weights = np.array([1.0, 0.5, 1.0])
        problem = Weighing(features, np.ones(4), present, teacher, weights, np.ones(4), Vocabulary.of(["a"]))
        value, slope = (lambda t, side=side: problem._objective(t, weights)[side] for side in (0, 1))
        assert check_grad(value, slope, rng.standard_normal(4)) < 1e-5
        solved = problem.solved()
        inside = solved > np.array([1.0, 0.0, 0.0, -np.inf]) + 1e-9
        assert np.abs(slope(solved)[inside]).max() < 1e-3
        assert (slope(solved)[~inside] > 0).all()
        without = problem.held_out(np.array([0, 1, 1]))
        np.testing.assert_allclose(without[0], problem.solved(np.array([False, True, True])))

    def test_agreement_is_the_mean_correlation_of_similarity_and_bm25(self):
        """Of three queries one agrees, one contradicts, and one shares no word with its candidates."""
        pairs = [[(1, 2), (0, 0), (-1, -2)], [(1, -1), (0, 0), (-1, 1)], [(1, 0), (0, 0), (-1, 0)]]
        features = np.concatenate([np.array(pairs, dtype=float), np.zeros((3, 3, 2))], axis=2)
        some, vocabulary = np.ones((3, 3)), Vocabulary.of(["a"])
        problem = Weighing(features, np.ones(4), some.astype(bool), some / 3, np.ones(3), np.ones(4), vocabulary)
        assert problem.agreement == pytest.approx(0.0)
        agrees = replace(problem, features=features[[0, 0, 2]])
        assert agrees.agreement == pytest.approx(2 / 3)


class TestGate:
    """When words are served."""

    def test_what_only_words_tell_is_learned(self):
        """Queries that nobody judged find their document first far more often than by their vectors."""
        offsets = learned()
        rescorer = offsets.rescorer()
        vectors, texts = corpus()
        queries, wording, wanted = questions(vectors, 150, seed=7)
        moved = offsets.apply(queries)
        scores = (moved / np.linalg.norm(moved, axis=1, keepdims=True)) @ vectors.T
        lists = np.argsort(-scores, axis=1)[:, :20]
        first = [
            rows[rescorer.order(query, [texts[row] for row in rows], scores[q, rows])[0]]
            for q, (query, rows) in enumerate(zip(wording, lists, strict=True))
        ]
        assert np.mean(first == wanted) > 0.95
        assert np.mean(lists[:, 0] == wanted) < 0.8
        evidence = rescorer.evidence
        assert (evidence.code, evidence.vouched) == (PUBLISHED, "its declaration")
        assert evidence.gain > 0
        assert evidence.interval[0] > 0

    def test_without_texts_nothing_is_learned_and_the_offset_is_the_same(self):
        without = fit(judged(words=False), trusted=True)
        assert without.rescorer() is None
        np.testing.assert_array_equal(*(offsets.apply(judged().query_vectors) for offsets in (learned(), without)))

    @pytest.mark.parametrize("rewards", [judged(words=False), judged(sources=True), inverted()])
    def test_nothing_is_asked_of_words(self, rewards):
        """Without texts, of votes, since whoever writes a document chooses its words, and of an inverted judge."""
        assert fit(rewards, trusted=True)["local:default"].rescorer is None

    def test_labels_that_deny_what_words_do_withhold_them(self):
        """The judge likes shared words, and trusted labels say that they mean nothing."""
        rewards = judged()
        near = 1 - 2 * inverted().values
        names = [np.repeat(rewards.query_ids, rewards.depths).tolist(), rewards.doc_ids[rewards.candidates].tolist()]
        pairs = audit_sample(rewards, 90)
        for values, code in ((rewards.values, PUBLISHED), (near, AUDITED.code)):
            labels = dict(zip(zip(*names, strict=True), np.clip(values, 0.0, 1.0).tolist(), strict=True))
            labels = {pair: labels[pair] for pair in pairs}
            case = Case.of(rewards, gated(Recipe(), rewards), Terms(labels=labels))
            optima = private_optima(case.widened, case.recipe)
            local = nothing(
                case, "local", "default", Evidence(48, None, None, "abstained", "", vouched="trusted labels")
            )
            assert with_lists(local, propose_local(case, optima)).rescorer.evidence.code == code

    def test_shared_words_never_count_against_a_document(self):
        """A judge that dislikes every document with the words of the query teaches to look at similarity alone."""
        rewards = judged()
        listed = rewards.candidates.reshape(len(rewards), -1)
        texts = rewards.doc_texts[listed]
        shares = [
            [bool(set(text.split()) & set(query.split())) for text in of]
            for query, of in zip(rewards.query_texts, texts, strict=True)
        ]
        places = np.tile(np.linspace(1.0, 0.5, listed.shape[1]), (len(rewards), 1))
        against = replace(rewards, values=np.where(shares, 0.0, places).ravel())
        rescorer = fit(against, trusted=True)["local:default"].rescorer
        assert (rescorer.weights[1:3] >= 0).all()
        assert rescorer.evidence.verdict == "abstained"

    def test_rewards_that_words_do_not_explain_abstain(self):
        """Documents that share no word with any query teach nothing, though the weight of similarity is free."""
        rewards = judged()
        foreign = [f"nichts {row}" for row in range(len(rewards.doc_texts))]
        others = replace(rewards, doc_texts=np.array(foreign, dtype=object))
        rescorer = fit(others, trusted=True)["local:default"].rescorer
        assert (rescorer.evidence.verdict, rescorer.evidence.code) == ("abstained", FALLS.code)
        assert fit(others, trusted=True).rescorer() is None

    @pytest.mark.parametrize(("liked", "code"), [(0.7, MEANS.code), (0.5, PUBLISHED)])
    def test_the_data_vouch_for_words_of_a_judge_that_reads_more(self, liked, code):
        """Where BM25 contradicts the similarity, a judge that nobody declares must not lean to words much further."""
        vectors, texts = corpus()
        queries, _, _ = questions(vectors, 60)
        lists = np.argsort(-queries @ vectors.T, axis=1)[:, :8]
        places = np.tile(np.linspace(0.6, 0.0, 8), (60, 1))  # a judge that mostly repeats the retriever
        far = np.arange(8) == 7
        words = [f"sign{q}" for q in range(60)]
        texts = [
            f"{text} {' '.join(words[q] for q in range(60) if lists[q, 7] == row)}" for row, text in enumerate(texts)
        ]
        rewards = Rewards.from_indexed(
            queries, vectors, lists, np.where(far, liked, places), query_texts=words, doc_texts=texts
        )

        by_data, declared = (fit(rewards, trusted=trusted)["local:default"] for trusted in (None, True))

        assert (by_data.evidence.vouched, by_data.rescorer.evidence.code) == ("the data", code)
        assert ("follows words rather than vectors" in by_data.rescorer.evidence.reason) is (code == MEANS.code)
        assert declared.rescorer.served


class TestServing:
    """What sorts in a request."""

    def test_a_request_never_fails(self, caplog):
        """Texts that are none, scores that are none: the list stays, and the first time is logged."""
        steering = Steering(learned())
        for texts, scores in (
            ([None, "a"], [0.9, 0.8]),
            (["a", "b"], ["high", "low"]),
            (["a", "b"], None),
            ([], []),
            (["a", "b"], [[0.1], [0.2]]),
        ):
            assert steering.request("own1").order(texts, scores) == list(range(len(texts)))
        assert steering.request("own1").order(["a", "b"], [1, 2], similarity=lambda _: 1 / 0) == [0, 1]
        assert len([record for record in caplog.records if "not sorted by words" in record.message]) == 1

    def test_a_worker_keeps_and_publishes_rescorers(self):
        """One that is published beside a withheld offset counts; labels that deny one take it away."""
        sure, unsure = (Evidence(9, None, None, verdict, "") for verdict in ("published", "abstained"))
        words = learned()["local:default"].rescorer
        zero = np.zeros(WIDTH)
        withheld = Offset("local", zero, 0.0, 9, unsure, task="default")
        by_words = replace(withheld, rescorer=replace(words, evidence=sure))
        served = replace(by_words, evidence=sure, alpha=0.5, vector=zero + 0.1)
        denied = replace(withheld, rescorer=replace(words, evidence=replace(unsure, code=AUDITED.code)))

        def after(fitted, live):
            return staying(Offsets([fitted], width=WIDTH), live and Offsets([live], width=WIDTH))["local:default"]

        assert by_words.in_use
        assert not withheld.in_use
        assert after(by_words, withheld) is by_words
        assert after(by_words, served) is served
        assert after(withheld, by_words) is by_words
        assert after(denied, served).rescorer is None


class TestFile:
    """Saved and read again."""

    def test_a_file_keeps_the_order_and_no_word(self, tmp_path: Path):
        """Words stand there by digests."""
        path = tmp_path / "offsets.safetensors"
        learned().save(path)
        read = Offsets.load(path).rescorer()
        kept = learned().rescorer()
        _, texts = corpus()
        scores = np.linspace(1, 0, 30)
        np.testing.assert_array_equal(
            read.scores("own3 word4", texts[:30], scores), kept.scores("own3 word4", texts[:30], scores)
        )
        assert read.evidence == kept.evidence
        assert repr(read) == repr(kept)
        assert "words" in repr(kept)
        assert RARE.encode() not in path.read_bytes()

    def test_show_has_a_line_of_it(self, tmp_path: Path):
        """Of its own, after that of the offset."""
        path = tmp_path / "offsets.safetensors"
        learned().save(path)
        for options in ((), ("--all",)):
            _, first, words, *_ = CliRunner().invoke(main, ["show", str(path), *options]).output.splitlines()
            assert first.startswith("local:default: ")
            assert words.startswith("words of default: published: +")

    @pytest.mark.parametrize("number", [10**400, "x", None, -1])
    def test_a_file_with_other_numbers_is_no_offsets_file(self, number):
        """Whatever stands in the record of a rescorer, one kind of error says so."""
        data = load(learned().to_bytes())
        records = json.loads(data["offsets"].tobytes())
        records[0]["rescorer"]["vocabulary"]["length"] = number
        data["offsets"] = np.frombuffer(json.dumps(records).encode(), dtype=np.uint8)
        with pytest.raises(OffsetFileError):
            Offsets.from_bytes(save(data, metadata=HEADER))

    @pytest.mark.parametrize(
        ("changed", "line"),
        [
            ({"weights": np.array([1.0, np.nan, 0, 0])}, "4 finite weights"),
            ({"digests": lambda digests: digests[::-1].copy()}, "rising digests"),
            ({"frequencies": lambda counts: counts + np.uint32(10**6)}, "counts of at most"),
            ({"length": 0.0}, "mean length above 0"),
            ({"documents": -1}, "counts of at most -1"),
            ({"frequencies": lambda counts: -counts.astype(np.int64)}, "counts \\(uint32\\)"),
            ({"digests": lambda digests: digests[:, None]}, "expected rows of digests"),
        ],
    )
    def test_a_damaged_one_is_refused(self, changed, line):
        offset = learned()["local:default"]
        known = offset.rescorer.vocabulary
        new = {name: value(getattr(known, name)) if callable(value) else value for name, value in changed.items()}
        weights = new.pop("weights", offset.rescorer.weights)
        rescorer = replace(offset.rescorer, weights=weights, vocabulary=replace(known, **new))
        with pytest.raises((InputError, OffsetFileError), match=line):
            Offsets([replace(offset, rescorer=rescorer)], width=WIDTH).to_bytes()


def test_a_store_that_keeps_texts_publishes_what_it_learned_of_words(tmp_path: Path):
    """From served queries by a version of the store to the order of a search that follows it."""
    rewards, url = judged(), f"sqlite:///{tmp_path / 'store.db'}"
    lists = rewards.candidates.reshape(len(rewards), -1)
    values, documents = rewards.values.reshape(lists.shape), rewards.doc_vectors.astype(np.float32)

    def served(query: int) -> Served:
        pairs = zip(lists[query].tolist(), values[query].tolist(), strict=True)
        shown = [Candidate(str(row), documents[row], rewards.doc_texts[row], reward) for row, reward in pairs]
        vector, text = rewards.query_vectors[query].astype(np.float32), rewards.query_texts[query]
        return Served(f"q{query}", vector, shown, text, embedder="e")

    with open_store(url) as store:
        store.observe([served(query) for query in range(len(rewards))], judge="judge")
        store.registry.publish(fit(store.rewards("judge"), trusted=True), by="test")
    steering = Steering(follow(url, embedder="e"))
    texts = [rewards.doc_texts[row] for row in lists[0]]
    order = steering.request(rewards.query_texts[0]).order(texts, np.linspace(0.7, 0.6, len(texts)).tolist())

    assert order[0] == int(np.argmax(values[0]))
    assert steering.for_task("another").request("own1").order(texts, [0.5] * len(texts)) == list(range(len(texts)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder of the planted collection."""
    vectors, texts = corpus()
    queries, wording, wanted = questions(vectors, 90)
    rows = [(f"d{row}", "", text) for row, text in enumerate(texts)]
    qrels = {f"q{query}": {f"d{row}": 1.0} for query, row in enumerate(wanted.tolist())}
    write_beir(tmp_path, rows, {f"q{query}": text for query, text in enumerate(wording)}, qrels)
    write_vectors(tmp_path, "minilm", load_beir(tmp_path), vectors, queries, fingerprint="minilm")
    return tmp_path


def test_explain_names_the_words_that_moved_a_document(folder: Path):
    """Ranks are those of the list that is served, also where no offset is."""
    local = learned()["local:default"]
    unserved = Evidence(9, None, None, "abstained", "")
    named = replace(local, task=folder.name, evidence=unserved, alpha=0.0, map=None, vector=np.zeros(WIDTH))
    query = json.loads((folder / "queries.jsonl").read_text().splitlines()[3])
    explained = explain(folder, "q3", Offsets([named], width=WIDTH), vectors="minilm", rewards="qrels")
    wanted = next(move for move in explained.moves if move.reward)
    assert wanted.rank == 1
    assert list(wanted.words) == [word for word in query["text"].split() if word in wanted.text.split()][:2]
    (folder / "offsets").mkdir()
    Offsets([named], width=WIDTH).save(folder / "offsets" / "o.safetensors")
    command = ["explain", str(folder), "q3", "--offsets", str(folder / "offsets" / "o.safetensors")]
    printed = CliRunner().invoke(main, command).output
    assert f"words: {', '.join(wanted.words)}" in printed
    assert printed.endswith("the list is sorted by them too.\n")


def test_eval_measures_words_beside_a_hybrid_search(folder: Path):
    """`words` is measured on the list that is served, and hybrid asks no judge."""
    collection = open_collection(folder, vectors="minilm", rewards="qrels", scale=None)
    plan = ExperimentPlan(
        rewarded=(32,), seeds=(0,), scopes=("auto", "words"), baselines=("raw", "hybrid"), trusted=True
    )
    rows = {row["scope"]: row for row in run([collection], plan) if row["population"] == "heldout"}
    assert list(rows) == ["raw", "hybrid", "auto", "words"]
    assert rows["words"]["delta"] > rows["auto"]["delta"] + 0.1
    assert rows["words"]["published"]
    assert rows["words"]["gated"]
    assert rows["words"]["reason"].startswith("words published: ")
    assert rows["hybrid"]["delta"] > 0.1
    assert not rows["hybrid"]["gated"]
