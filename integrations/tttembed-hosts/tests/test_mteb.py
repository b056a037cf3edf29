"""mteb: collections by name as folders, offsets under `mteb.evaluate`, and the two-pass search."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal
from tttembed_hosts.collections import PAPER_TASKS, from_task, load_collection, load_skillret
from tttembed_hosts.mteb import OffsetEncoder, TwoPassSearch, offsets_digest

from tttembed_rag import Evidence, InputError, JudgeError, Offset, Offsets
from tttembed_rag.cli import main
from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.testing import FakeJudge

# mteb calls what it and sentence-transformers have renamed, and warns of a cache that is new.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:mteb", "ignore::FutureWarning:mteb", "ignore::UserWarning:mteb"
)

WIDTH = 16
DOCUMENTS = {
    "d1": ("Wool", "wash wool in cold water"),
    "d2": ("", "the old mill by the river"),
    "d3": ("Rust", "soak a rusty chain in vinegar"),
    "d4": ("", "cold water runs past the city"),
    "d5": ("Bread", "let the dough rise and bake it"),
}
QUERIES = {
    "q1": "how to wash a jumper",
    "q2": "where is the mill",
    "q3": "remove rust",
    "q4": "which loaf rises best",  # no word in common with what answers it
    "q5": "my bicycle has corroded",  # the same
    "q9": "nobody labelled this",
}
QRELS = {"q1": {"d1": 2, "d4": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}, "q4": {"d5": 1}, "q5": {"d3": 1}}


def write_jsonl(path, rows):
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def hub_folder(folder, tables):
    """A data set in the form of the hub: a card that names the file of each table and split."""
    card = ["---", "configs:"]
    for (table, split), rows in tables.items():
        write_jsonl(folder / f"{table}.jsonl", rows)
        card += [f"- config_name: {table}", "  data_files:", f"  - split: {split}", f"    path: {table}.jsonl"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")
    return folder


def retrieval_tables(prefix=""):
    """Corpus, queries and grades as MTEB's retrieval sets have them."""
    grades = [
        {"query-id": query, "corpus-id": document, "score": grade}
        for query, row in QRELS.items()
        for document, grade in row.items()
    ]
    return {
        (f"{prefix}corpus", "test"): [{"_id": k, "title": t, "text": s} for k, (t, s) in DOCUMENTS.items()],
        (f"{prefix}queries", "test"): [{"_id": k, "text": s} for k, s in QUERIES.items()],
        (f"{prefix}qrels" if prefix else "default", "test"): grades,
    }


def make_task(folder, name, languages):
    """A retrieval task of mteb over a data set on this disk."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    described = TaskMetadata(
        name=name,
        dataset={"path": str(folder), "revision": "1"},
        description="Made for a test.",
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=languages,
        main_score="ndcg_at_10",
    )
    return type(name, (AbsTaskRetrieval,), {"metadata": described})()


@pytest.fixture(scope="module", autouse=True)
def hub_cache(tmp_path_factory):
    """Data sets are converted below a temporary folder, not in the user's cache."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("converted"))
        yield


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(hub_folder(tmp_path_factory.mktemp("task"), retrieval_tables()), "LocalTask", ["eng-Latn"])


@pytest.fixture(scope="module")
def encoder():
    """A static encoder of mteb with random word vectors: it finds what shares words."""
    from mteb.models import SentenceTransformerEncoderWrapper
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    texts = [*QUERIES.values(), *(" ".join(parts) for parts in DOCUMENTS.values())]
    words = sorted({word for text in texts for word in re.findall(r"\w+", text)})
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0} | {word: i for i, word in enumerate(words, 1)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    table = np.random.default_rng(0).normal(size=(len(words) + 1, WIDTH)).astype(np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu")
    return SentenceTransformerEncoderWrapper(model)


def offsets_for(task="LocalTask", *, alpha=0.9, seed=1, query_id=None):
    """One served offset in a random direction, large enough to change rankings."""
    vector = 3.0 * np.random.default_rng(seed).normal(size=WIDTH)
    evidence = Evidence(4, None, None, "ungated", "for a test")
    scope = "query" if query_id else "task"
    return Offsets([Offset(scope, vector, alpha, 4, evidence, task=task, query_id=query_id)], width=WIDTH)


def evaluated(model, task, **options):
    """Scores of the one task, without mteb's own cache."""
    import mteb

    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False, co2_tracker=False, **options)
    return result.task_results[0].scores["test"][0]


def encoded(model, task, role, texts):
    from datasets import Dataset
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    rows = Dataset.from_dict({"id": [f"q{i}" for i in range(1, len(texts) + 1)], "text": list(texts)})
    loader = create_dataloader(rows, task_metadata=task.metadata, prompt_type=PromptType(role))
    where = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
    return model.encode(loader, **where, prompt_type=PromptType(role))


class TestOffsets:
    """`OffsetEncoder` under `mteb.evaluate`."""

    @pytest.mark.parametrize(
        ("name", "alpha", "same"), [("LocalTask", 0.0, True), ("Other", 0.9, True), ("LocalTask", 0.9, False)]
    )
    def test_scores_change_by_an_offset_of_the_tasks_own_name(self, encoder, task, name, alpha, same):
        """Without a dose, or with another task's, every score is the bare model's."""
        steered = OffsetEncoder(encoder, offsets_for(name, alpha=alpha))

        assert (evaluated(encoder, task) == evaluated(steered, task)) is same

    def test_queries_are_what_offsets_give(self, encoder, task):
        """A steered query is the formula's, in the encoder's type and precision."""
        bare, offsets = encoded(encoder, task, "query", QUERIES.values()), offsets_for()
        steered = encoded(OffsetEncoder(encoder, offsets), task, "query", QUERIES.values())

        assert (type(steered), steered.dtype) == (type(bare), bare.dtype)
        assert_array_equal(np.asarray(steered), offsets.apply(np.asarray(bare), task="LocalTask"))

    def test_documents_are_untouched(self, encoder, task):
        """Documents keep their vectors, bit for bit."""
        texts = [text for _, text in DOCUMENTS.values()]
        steered = encoded(OffsetEncoder(encoder, offsets_for()), task, "document", texts)

        assert_array_equal(np.asarray(encoded(encoder, task, "document", texts)), np.asarray(steered))

    def test_a_private_offset_reaches_its_query_alone(self, encoder, task):
        """A query is known by its id."""
        bare = np.asarray(encoded(encoder, task, "query", QUERIES.values()))
        model = OffsetEncoder(encoder, offsets_for(query_id="q2"))
        moved = (np.asarray(encoded(model, task, "query", QUERIES.values())) != bare).any(axis=1)

        assert moved.tolist() == [query == "q2" for query in QUERIES]

    def test_tensors_stay_tensors(self, encoder, task):
        """bfloat16 on the way in is bfloat16 on the way out."""
        import torch

        class Half:
            mteb_model_meta = encoder.mteb_model_meta
            similarity, similarity_pairwise = encoder.similarity, encoder.similarity_pairwise

            def __init__(self, model_name="", revision=None, **_):
                """Nothing to load."""

            def encode(self, inputs, **options):
                """The encoder's vectors in half the bits."""
                return torch.as_tensor(np.asarray(encoder.encode(inputs, **options))).bfloat16()

        steered = encoded(OffsetEncoder(Half(), offsets_for()), task, "query", QUERIES.values())

        assert steered.dtype == torch.bfloat16
        assert not torch.equal(steered, encoded(Half(), task, "query", QUERIES.values()))

    def test_results_are_cached_apart(self, encoder, task, tmp_path):
        """Bare model, one offset and another: three results, none taken for the other."""
        import mteb

        cache = mteb.ResultCache(tmp_path)
        models = [encoder, *(OffsetEncoder(encoder, offsets_for(seed=seed)) for seed in (1, 2))]
        scores = [
            mteb.evaluate(model, task, cache=cache, show_progress_bar=False, co2_tracker=False).task_results[0].scores
            for model in models
        ]

        assert len({json.dumps(score, sort_keys=True) for score in scores}) == 3
        assert len(list(tmp_path.rglob("LocalTask.json"))) == 3

    def test_embeddings_are_cached_apart(self, encoder, task, tmp_path):
        """Mteb's cache of embeddings, around the model, keeps no steered query for another model."""
        from mteb.models.cache_wrappers import CachedEmbeddingWrapper

        for seed in (1, 2):
            model = OffsetEncoder(encoder, offsets_for(seed=seed))
            cached = CachedEmbeddingWrapper(model, tmp_path)
            through = encoded(cached, task, "query", QUERIES.values())
            cached.close()

            assert_array_equal(np.asarray(encoded(model, task, "query", QUERIES.values())), np.asarray(through))

    def test_the_digest_is_of_what_offsets_do(self):
        """The same offsets have one digest, whoever saved them; another dose has another, and a task that abstained."""
        again = Offsets.from_bytes(offsets_for().to_bytes())
        abstained = Offset("task", np.zeros(WIDTH), 0.0, 9, Evidence(9, None, None, "abstained", ""), task="NFCorpus")
        whole = Offsets([*offsets_for().values(), abstained], width=WIDTH)

        assert offsets_digest(offsets_for()) == offsets_digest(again)
        assert len({offsets_digest(offsets) for offsets in (again, offsets_for(alpha=0.5), whole)}) == 3

    def test_a_sentence_transformer_is_wrapped(self, encoder, task):
        """What `mteb.evaluate` takes bare is taken here too."""
        model = OffsetEncoder(encoder.model, offsets_for())

        assert (
            evaluated(OffsetEncoder(encoder, offsets_for()), task)["ndcg_at_10"] == evaluated(model, task)["ndcg_at_10"]
        )

    def test_anything_else_is_refused(self):
        """A model without the protocol is named."""
        with pytest.raises(InputError, match=r"model: expected an encoder of mteb .* got str"):
            OffsetEncoder("all-MiniLM-L6-v2", offsets_for())


def labels(**settings):
    """A judge that knows the labels by text: 1 for the best grade."""

    def score_of(query, text):
        (key,) = (name for name, text_of in QUERIES.items() if text_of == query)
        return {" ".join(DOCUMENTS[name]).strip(): grade / 2 for name, grade in QRELS[key].items()}.get(text, 0.0)

    return FakeJudge(score_of, fingerprint="labels", **settings)


class TestTwoPass:
    """`TwoPassSearch` under `mteb.evaluate`."""

    def test_a_good_judge_helps(self, encoder, task):
        """Two searches with a judge between them find at least what one does, and here more."""
        assert (
            evaluated(TwoPassSearch(encoder, labels(), depth=5), task)["ndcg_at_10"]
            > evaluated(encoder, task)["ndcg_at_10"]
        )

    def test_judges_the_first_candidates(self, encoder, task):
        """Every labelled query is judged to the depth, no pair twice."""
        judge = labels()
        evaluated(TwoPassSearch(encoder, judge, depth=2), task)

        assert len(judge.asked) == len(set(judge.asked)) == 2 * len(QRELS)

    def test_keeps_the_offsets_it_learned(self, encoder, task):
        """They are private to each query, and named by task and id."""
        search = TwoPassSearch(encoder, labels(), depth=4)
        evaluated(search, task)

        assert {f"query:LocalTask/{query}" for query in QRELS} >= set(search.offsets) > set()

    def test_reordering_puts_the_best_judged_first(self, encoder, task):
        """With every document judged, the order of rewards is the order of the result."""
        assert evaluated(TwoPassSearch(encoder, labels(), depth=5, reorder=True), task)["ndcg_at_10"] == 1.0

    def test_a_broken_judge_is_an_error(self, encoder, task):
        """Scores of half a judgement are not reported as a result."""
        with pytest.raises(JudgeError, match="labels: expected to judge every candidate"):
            evaluated(TwoPassSearch(encoder, labels(error=JudgeError("gone"))), task)

    def test_settings_are_told_apart(self, encoder):
        """Depth and order are part of the revision under which results are kept."""
        made = [
            TwoPassSearch(encoder, labels(), depth=depth, reorder=order) for depth in (2, 4) for order in (False, True)
        ]

        assert len({search.mteb_model_meta.revision for search in made}) == 4


class TestCollections:
    """Collections by name, loaded as mteb loads them."""

    def test_a_task_becomes_a_folder(self, task, tmp_path):
        """Texts, titles and grades arrive; queries without labels do not."""
        from_task(task).write(tmp_path / "set")
        dataset = load_beir(tmp_path / "set")

        assert {key: f"{title} {text}".strip() for key, (title, text) in DOCUMENTS.items()} == dataset.documents
        assert {key: QUERIES[key] for key in QRELS} == dataset.queries
        assert dataset.qrels == QRELS

    def test_a_subset_must_be_chosen(self, tmp_path):
        """A task in several languages says which it has, and gives the one asked for."""
        tables = retrieval_tables("en-") | retrieval_tables("de-")
        several = make_task(
            hub_folder(tmp_path / "data", tables), "LocalLanguages", {"en": ["eng-Latn"], "de": ["deu-Latn"]}
        )
        with pytest.raises(InputError, match="subset: expected one of en, de for LocalLanguages, got none"):
            from_task(several)

        assert from_task(several, subset="de").qrels == QRELS

    def test_a_missing_split_is_an_error(self, task, tmp_path):
        fresh = make_task(task.metadata.dataset["path"], "LocalSplit", ["eng-Latn"])
        fresh.load_data()
        with pytest.raises(InputError, match="expected one of the subsets and splits default/test, got default/dev"):
            from_task(fresh, split="dev")

    def test_the_papers_tasks_exist(self):
        """Each of the 15 names is a retrieval task that the installed mteb knows, with one split to evaluate."""
        import mteb

        tasks = [mteb.get_task(name) for name in PAPER_TASKS.values()]

        assert len(tasks) == 15
        assert {len(task.eval_splits) for task in tasks} == {1}
        assert {task.metadata.type for task in tasks} == {"Retrieval"}

    def test_an_unknown_name_is_an_error(self):
        """The paper's names are listed, and mteb's guess is passed on."""
        with pytest.raises(InputError, match=r"name: expected one of ArguAna, .*Did you mean: 'SCIDOCS'"):
            load_collection("SCIDOC")


@pytest.fixture
def skillret(tmp_path):
    """SKILLRET in small, in the form its authors publish."""
    skills = [
        {"id": "s1", "name": "wash", "description": "Wash wool.", "skill_md": "# Wash\nCold water."},
        {"id": "s2", "name": "bake", "description": "Bake bread.", "skill_md": ""},
    ]
    tables = {
        ("skills", "test"): skills,
        ("queries", "test"): [{"id": "q1", "query": "clean my jumper"}, {"id": "q2", "query": "unlabelled"}],
        ("qrels", "test"): [{"query_id": "q1", "skill_id": "s1", "relevance": 1}],
    }
    return hub_folder(tmp_path / "skillret", tables)


def test_skillret_cards_are_name_description_and_instructions(skillret, tmp_path):
    """Cards are joined as the authors join them; without instructions the description stands in."""
    load_skillret(str(skillret)).write(tmp_path / "set")
    dataset = load_beir(tmp_path / "set")

    assert dataset.documents == {
        "s1": "wash | Wash wool. | # Wash\nCold water.",
        "s2": "bake | Bake bread. | Bake bread.",
    }
    assert (dataset.queries, dataset.qrels) == ({"q1": "clean my jumper"}, {"q1": {"s1": 1.0}})


class TestCommand:
    """`tttembed data`."""

    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        """Runs it with an embedder found by name, which counts the texts it is asked about."""
        (tmp_path / "letters_of_test.py").write_text(
            "class Letters:\n"
            "    fingerprint = 'letters'\n"
            "    asked = []\n"
            "    def embed_documents(self, texts):\n"
            "        import numpy as np\n"
            "        self.asked += texts\n"
            "        vectors = np.array([[1.0, len(text)] for text in texts])\n"
            "        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)\n"
            "    embed_queries = embed_documents\n"
            "letters = Letters()\n"
        )
        monkeypatch.syspath_prepend(tmp_path)

        def start(*arguments):
            return CliRunner().invoke(main, ["data", *map(str, arguments)])

        return start

    def test_writes_texts_and_vectors(self, run, skillret, tmp_path):
        """One command makes a folder that loads, vectors and all; once more embeds nothing."""
        spec = "python:letters_of_test:letters"
        command = ("SKILLRET", "--path", skillret, "--out", tmp_path / "set", "--embed", spec, "--json")
        done = run(*command)
        again = run(*command)

        assert (done.exit_code, again.exit_code) == (0, 0), done.output + again.output
        assert done.output == again.output
        dataset = load_beir(tmp_path / "set")
        documents, queries = load_vectors(tmp_path / "set", "letters-of-test-letters", dataset)
        lengths = [len(text) for text in (*dataset.documents.values(), "clean my jumper")]
        ratios = [vector[1] / vector[0] for vector in (*documents, *queries)]
        assert_allclose(ratios, lengths, rtol=1e-5)
        import letters_of_test

        assert len(letters_of_test.letters.asked) == 3

    def test_adds_vectors_to_a_folder(self, run, tmp_path):
        """A BEIR folder from elsewhere gets vectors, and keeps its texts."""
        write_jsonl(tmp_path / "mine" / "corpus.jsonl", [{"_id": "d", "title": "", "text": "abc"}])
        write_jsonl(tmp_path / "mine" / "queries.jsonl", [{"_id": "q", "text": "ab"}])
        (tmp_path / "mine" / "qrels").mkdir()
        (tmp_path / "mine" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
        done = run(tmp_path / "mine", "--embed", "python:letters_of_test:letters", "--vectors", "mine")

        assert done.exit_code == 0, done.output
        documents, _ = load_vectors(tmp_path / "mine", "mine", load_beir(tmp_path / "mine"))
        assert_allclose(documents[0, 1] / documents[0, 0], 3.0, rtol=1e-5)

    def test_other_choices_need_another_folder(self, run, skillret, tmp_path):
        """A folder made for one split is not taken for another's."""
        assert run("SKILLRET", "--path", skillret, "--out", tmp_path / "set").exit_code == 0
        other = run("SKILLRET", "--path", skillret, "--out", tmp_path / "set", "--split", "train")

        assert other.exit_code == 2
        assert "expected a folder made for" in other.output

    @pytest.mark.parametrize(("name", "place"), [("SKILLRET", "ThakiCloud/SKILLRET"), ("SCIDOCS", "mteb/scidocs")])
    def test_an_unreachable_hub_is_one_line(self, run, monkeypatch, tmp_path, name, place):
        """The first failed connection ends it: exit code 2 and a reason, nothing written."""
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        done = run(name, "--out", tmp_path / "set")

        assert done.exit_code == 2
        assert f"Error: {name}: expected its data at {place}; http://127.0.0.1:9 is not reachable" in done.output
        assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("note", ["{}", "no json", "[]"])
def test_a_folder_with_a_note_of_somebody_else_is_refused_in_one_line(tmp_path, note):
    """Whatever its source.json says: bad input ends with exit code 2."""
    (tmp_path / "source.json").write_text(note)
    done = CliRunner().invoke(main, ["data", "NFCorpus", "--out", str(tmp_path)])

    assert (done.exit_code, "Error:" in done.output) == (2, True)
