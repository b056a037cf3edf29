"""The whole loop, as the READMEs print it, and on real vectors: better answers for queries that it never saw."""

import re
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest

from tests.adapters.conftest import driver_of
from tests.adapters.worlds import Vectors
from tttembed_rag import LiveOffsets, Offsets, RewardLog, context, fit
from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.testing import FakeJudge

ROOT = Path(__file__).resolve().parents[2]
METATOOL = ROOT.parent / "shared" / "data" / "metatool"
JUDGED, ASKED, K = 120, 400, 10


class Collection(Vectors):
    """all-MiniLM-L6-v2's vectors of a collection, looked up by text."""

    def __init__(self, vectors):
        super().__init__()
        self._vectors = vectors

    def query(self, text):
        return self._vectors[text]

    document = query


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not METATOOL.is_dir(), reason="needs ../shared/data/metatool")
def test_a_served_application_gets_better_on_queries_it_never_saw(adapter):
    """Rewards that were captured while serving are fitted and published; the index stays the same."""
    data = load_beir(METATOOL)
    documents, queries = load_vectors(METATOOL, "minilm", data)
    vectors = dict(zip(data.documents.values(), documents.tolist(), strict=True))
    model = adapter.model(Collection(vectors | dict(zip(data.queries.values(), queries.tolist(), strict=True))))
    relevant = {(data.queries[q], data.documents[d]) for q, grades in data.qrels.items() for d in grades}
    questions = np.random.default_rng(0).permutation(list(data.queries.values())[:ASKED]).tolist()
    judged, unseen = questions[:JUDGED], questions[JUDGED:]
    # The collection's labels act as the judge: a simulation.
    judge = FakeJudge(lambda query, text: float((query, text) in relevant), fingerprint="labels")
    live, log = LiveOffsets(Offsets([], width=384)), RewardLog.of(judge)
    embeddings = adapter.wrap(model, live)
    texts = list(dict.fromkeys(data.documents.values()))
    store, observer = adapter.build(embeddings, texts), adapter.observer(log)
    ids = list(adapter.ids(store, len(texts), unseen[0]).values())
    indexed = {key: list(vector) for key, vector in adapter.stored(store)(ids).items()}

    def quality():
        """Mean reciprocal rank of the first relevant tool, over unseen queries under the application's context."""
        with context(task="tools"):
            lists = {query: adapter.texts(adapter.hits(store, query, K)) for query in unseen}
        hits = [[(query, text) in relevant for text in lists[query]] for query in unseen]
        return float(np.mean([1 / (hit.index(True) + 1) if any(hit) else 0.0 for hit in hits]))

    before = quality()
    with context(task="tools"):
        for query in judged:
            adapter.observe(observer, store, query, K)
    adapter.off(observer)
    log.score_waiting(judge)
    live.publish(fit(embeddings.rewards(log), scope="task"))

    assert live.current["task:tools"].evidence.verdict == "published"
    assert quality() > before + 0.02
    assert {key: list(vector) for key, vector in adapter.stored(store)(ids).items()} == indexed


def llama_index_names():
    """What a reader of LlamaIndex's README brings: a model, nodes, questions and an LLM of one opinion."""
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.llms import CompletionResponse, MockLLM
    from llama_index.core.schema import TextNode

    class LetterCounts(BaseEmbedding):
        """A crude real model: how often each letter occurs."""

        def _get_text_embedding(self, text):
            return [float(text.lower().count(letter)) for letter in ascii_lowercase]

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query):
            return self._get_text_embedding(query)

    class Grader(MockLLM):
        """A real LLM class."""

        def complete(self, prompt, formatted=False, **kwargs):
            """Its answer."""
            return CompletionResponse(text="Score: 4")

    texts = ["A refund takes five days, no more.", "Invoices come monthly.", "We ship on Mondays.", "Call us any time."]
    return {
        "llm": Grader(),
        "model": LetterCounts(),
        "nodes": [TextNode(text=text) for text in texts],
        "questions": [f"{name} wants {name}'s money back" for name in ascii_lowercase[:20]],
    }


@pytest.mark.parametrize(
    ("name", "folder", "names", "printed"),
    [
        ("langchain", "langchain-tttembed", dict, r"published: .*\nRefunds take five days\.\n2 2\n"),
        (
            "llama_index",
            "llama-index-embeddings-tttembed",
            llama_index_names,
            r"published: .*\nA refund takes five days, no more\.\n2 2\n",
        ),
        ("haystack", "tttembed-haystack", dict, r"(Wash wool in cold water|Boil the kettle)\.\n"),
    ],
)
def test_the_examples_of_a_readme_run(name, folder, names, printed, tmp_path, monkeypatch, capsys):
    """One after the other, and each fits on one screen."""
    driver_of(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    readme = ROOT / "integrations" / folder / "README.md"
    examples = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    namespace = names()
    for example in examples:
        exec(compile(example, str(readme), "exec"), namespace)  # noqa: S102 - the README is ours

    assert re.fullmatch(printed, capsys.readouterr().out)
    assert [example for example in examples if len([line for line in example.splitlines() if line.strip()]) > 20] == []
    if name == "haystack":
        from tttembed_store import open_store

        namespace["pipeline"].get_component("recorder").log.close()
        with open_store("sqlite:///ttt.db") as store:
            assert store.counts().queries == 1
