"""Judges from a line of text."""

from __future__ import annotations

import sys

import pytest

from tttembed_rag import InputError
from tttembed_rag.errors import MissingExtraError
from tttembed_rag.judges import CrossEncoderJudge, HttpJudge, RubricJudge, YesNoJudge, open_judge


def test_opens_local_models(reranker_folder, classifier_folder):
    """Kind, folder and options make the judge."""
    kinds = {
        f"yesno:{reranker_folder}?device=cpu&tokens=512&instruction=Find%20it": YesNoJudge,
        f"cross-encoder:{classifier_folder}?device=cpu&scale=logit&batch_tokens=99": CrossEncoderJudge,
        f"rubric:{reranker_folder}?device=cpu": RubricJudge,
    }
    opened = {spec: open_judge(spec) for spec in kinds}

    assert kinds == {spec: type(judge) for spec, judge in opened.items()}
    assert [str(judge.scale) for judge in opened.values()] == ["probability", "logit", "rubric:0,5"]


def test_opens_http(cohere, monkeypatch):
    """The shape stands in the scheme, the key in the environment."""
    monkeypatch.setenv("HERS", "k1")
    monkeypatch.setenv("MINE", "k2")
    address = cohere.url.removeprefix("http:")
    for spec in (
        f"http+cohere:{address}?model=m&key=HERS",
        f"http+cohere:{address}/other?key=MINE&characters=3",
    ):
        judge = open_judge(spec)
        assert isinstance(judge, HttpJudge)
        judge.score("q", ["document"])

    assert [body["documents"] for _, _, body in cohere.asked] == [["document"], ["doc"]]
    assert [(path, headers["authorization"]) for path, headers, _ in cohere.asked] == [
        ("/v2/rerank", "Bearer k1"),
        ("/other", "Bearer k2"),
    ]
    assert cohere.asked[0][2]["model"] == "m"


@pytest.mark.parametrize(
    ("vendor", "path", "answer", "address"),
    [
        ("cohere", "/v2/rerank", "results", "https://api.cohere.com/v2/rerank"),
        ("jina", "/v1/rerank", "results", "https://api.jina.ai/v1/rerank"),
        ("voyage", "/v1/rerank", "data", "https://api.voyageai.com/v1/rerank"),
    ],
)
def test_opens_rerankers_of_vendors(serve, monkeypatch, vendor, path, answer, address):
    """The vendor's name says address, path, key and answer; only the model is named."""
    monkeypatch.setenv(f"{vendor.upper()}_API_KEY", "k")
    server = serve(lambda *_: (200, {}, {answer: [{"index": 0, "relevance_score": 0.25}]}))
    judge = open_judge(f"{vendor}:rerank-1?url={server.url}&scale=probability&key={vendor.upper()}_API_KEY")
    at_home = open_judge(f"{vendor}:rerank-1?scale=probability")

    assert (judge.score("q", ["document"]), at_home.endpoint.url) == ([0.25], address)
    ((requested, headers, body),) = server.asked
    assert (requested, headers["authorization"], body["model"]) == (path, "Bearer k", "rerank-1")


@pytest.mark.parametrize(
    ("module", "spec", "command"),
    [
        ("httpx", "http+tei://127.0.0.1:9", r"httpx is not installed; run: pip install 'tttembed-rag\[judges\]'"),
        ("tenacity", "http+tei://127.0.0.1:9", r"tenacity .* 'tttembed-rag\[judges\]'"),
        ("google.genai", "gemini:m", r"google .* 'tttembed-rag\[gemini\]'"),
        ("transformers", "yesno:m", r"transformers .* 'tttembed-rag\[local\]'"),
    ],
)
def test_a_missing_extra_has_its_command(monkeypatch, module, spec, command):
    """What is not installed is named with the command that installs it."""
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingExtraError, match=command):
        open_judge(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("qwen", "^judge: expected yesno:MODEL, .*, got 'qwen'$"),
        ("yesno:", "^judge: expected yesno:MODEL, .*, got 'yesno:'$"),
        ("http+cohere://", "^judge: expected yesno:MODEL"),
        ("magic:8ball", "^judge: expected yesno:MODEL, .*, got 'magic:8ball'$"),
        ("http+vertex://h", "^shape: expected one of cohere, "),
        ("http+cohere://127.0.0.1?modle=x", "^judge: expected options model, key, .*, got modle$"),
        ("http+cohere://127.0.0.1?characters=0", "^longest_document: expected at least 1, got 0$"),
        ("yesno:m?tokens=inf", "^judge: expected a whole number for tokens in .*, got inf$"),
        ("yesno:m?batch_tokens=1.5", "^judge: expected a whole number for batch_tokens in .*, got 1.5$"),
        ("http+cohere://127.0.0.1?key=NOT_SET_ANYWHERE", "^judge: expected key=NAME with an environment variable"),
        ("http+cohere://127.0.0.1?characters=x", "^judge: expected a number for characters in .*, got 'x'$"),
    ],
)
def test_other_specs_are_errors(spec, message):
    """The error lists what is known and shows what came."""
    with pytest.raises(InputError, match=message):
        open_judge(spec)
