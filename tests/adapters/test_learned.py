"""One log, and one decision and figure of it: by LangChain, LlamaIndex, Haystack, plain functions and the command."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import tttembed_rag
from tests.adapters.conftest import MODULES, driver_of
from tests.adapters.worlds import Words
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeEmbedder, FakeJudge

TOPICS = [f"{noun} {where}" for noun in ("refunds", "invoices", "backups") for where in "abcdefgh"]
PAGES = [f"{kind} on {topic}" for topic in [*TOPICS, "taxes"] for kind in ("manual", "guide with examples")]
QUESTIONS = [f"how do {topic} work" for topic in TOPICS]
TAXES = "how do taxes work"
SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def knowing():
    """A judge that prefers guides on what was asked."""
    return FakeJudge(lambda query, text: 0.9 if "guide" in text and text.split(" on ")[1] in query else 0.1)


@pytest.fixture(params=MODULES)
def learned(request, tmp_path):
    """`Learned` in a host, its search, and what reranks texts there."""
    driver = driver_of(request.param, tmp_path)
    return driver.learned(driver.model(Words()), knowing(), PAGES, k=6)


def tried(folder, log, judge, embedder):
    """What the command says of the lists in a log, judged anew."""
    lists = {}
    for query, document, *_ in log.rows():
        lists.setdefault(query, []).append({"id": f"d{len(lists)}-{len(lists.get(query, ()))}", "text": document})
    lines = [{"query_id": f"q{i}", "query": query, "candidates": of} for i, (query, of) in enumerate(lists.items())]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    arguments = ["try", str(folder / "log.jsonl"), "--judge", judge, "--embed", embedder]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_all_say_the_same_of_the_same_questions(learned, tmp_path, monkeypatch):
    """To the digit, of lists that each host's own search finds."""
    ttt, search, _ = learned
    ttt.ask(QUESTIONS, search)
    conclusion = ttt.learn()
    plain = tttembed_rag.Learned(FakeEmbedder(), knowing(), k=6)
    plain.ask(QUESTIONS, plain.documents(PAGES))
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(judge=knowing(), embedder=FakeEmbedder()))

    assert conclusion.decision == "served"
    assert (
        str(conclusion) == str(plain.learn()) == tried(tmp_path, ttt.log, "python:mine:judge", "python:mine:embedder")
    )


def test_what_is_reranked_is_learned_from_and_served(learned):
    """The host's own types; a reranker that keeps the best few has all of them judged."""
    ttt, search, rerank = learned
    plain = tttembed_rag.Learned(FakeEmbedder(), knowing(), k=6)
    find = plain.documents(PAGES)
    before = ttt._searched(search)(TAXES)[0]
    ranked = [rerank(question, find(question)) for question in QUESTIONS]
    plain.ask(QUESTIONS, find)

    assert all(best[0].startswith("guide") for best in ranked)
    assert len(ttt.log.rows()) == 6 * len(QUESTIONS)
    assert str(ttt.learn()) == str(plain.learn())
    assert (before, ttt._searched(search)(TAXES)[0]) == ("manual on taxes", "guide with examples on taxes")


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "models" / "ce-minilm-multi").is_dir(), reason="needs the shared models and data")
def test_a_real_cross_encoder_says_the_same_everywhere(tmp_path):
    """By its spec, with a real embedding model by its spec."""
    lines = (SHARED / "data" / "chroma-chunks" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:24]
    texts = [json.loads(line)["text"][:300] for line in lines]
    spec = f"cross-encoder:{SHARED / 'models' / 'ce-minilm-multi'}"
    sentences = []
    for name in ("langchain", "llama_index"):
        ttt, search, _ = driver_of(name, tmp_path).learned("minilm", spec, texts, k=4)
        ttt.ask([text[150:220] for text in texts[:16]], search)
        sentences.append(str(ttt.learn()))

    assert sentences == [tried(tmp_path, ttt.log, spec, "minilm")] * 2
