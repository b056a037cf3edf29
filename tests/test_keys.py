"""A vendor's key of the environment goes to that vendor alone; another service gets the key that is named for it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tttembed_rag import InputError, TTTEmbedError
from tttembed_rag.clients.endpoint import DOMAINS
from tttembed_rag.clients.options import Options
from tttembed_rag.embedders import open_embedder
from tttembed_rag.judges import open_judge

SECRET = "sk-secret"  # noqa: S105 (of nobody)


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    """Every vendor's key is set, as on the machine of somebody who uses all of them."""
    for name in (*DOMAINS, "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, SECRET)


JUDGES = [
    "openai:m?url={}/v1",
    "anthropic:m?url={}/v1",
    "gemini:gemini-3-pro?url={}",
    "cohere:m?url={}",
    "voyage:m?url={}",
]
JUDGES += ["jina:m?scale=probability&url={}", "http+gemini-decision:{}?x", "http+cohere:{}?x"]
EMBEDDERS = ["openai:m?url={}/v1", "cohere:m?url={}/v1", "voyage:m?url={}/v1", "gemini:gemini-embedding-001?url={}"]


def ask(kind, spec, url, more=""):
    """Ask the service that *spec* names, whatever it answers."""
    address = url.removeprefix("http:") if spec.startswith("http+") else url
    spec = (spec.format(address) + more).replace("?x&", "?").removesuffix("?x")
    with suppress(TTTEmbedError):
        open_judge(spec).score("q", ["d"]) if kind == "judge" else open_embedder(spec).embed_queries(["q"])


EVERY = [*(("judge", spec) for spec in JUDGES), *(("embedder", spec) for spec in EMBEDDERS)]


@pytest.mark.parametrize(("kind", "spec"), EVERY)
def test_another_service_is_sent_no_vendors_key(serve, monkeypatch, kind, spec):
    """Neither in a header nor in the address; the key that is named for it is sent."""
    monkeypatch.setenv("MINE", "my-own")
    server = serve(lambda *_: (400, {}, {}))
    ask(kind, spec, server.url)
    ask(kind, spec, server.url, "&key=")
    plain = str(server.asked)
    ask(kind, spec, server.url, "&key=MINE")

    assert len(server.asked) == 3
    assert SECRET not in plain
    assert "none" not in plain  # nor what stands for a key that a library asks for
    assert "my-own" in str(server.asked[2])


@pytest.mark.parametrize(
    ("variable", "url", "is_sent"),
    [
        ("OPENAI_API_KEY", None, True),
        ("OPENAI_API_KEY", "https://api.openai.com/v1", True),
        ("OPENAI_API_KEY", "https://EU.api.OpenAI.com/v1", True),
        ("OPENAI_API_KEY", "https://x.openai.azure.com/openai/v1", True),
        ("OPENAI_API_KEY", "https://x.openai.azure.us/openai/v1", True),
        ("OPENAI_API_KEY", "https://x.services.ai.azure.com/openai/v1", True),
        ("OPENAI_API_KEY", "https://mine.cloudapp.azure.com/v1", False),
        ("OPENAI_API_KEY", "https://api.openai.com.example.org/v1", False),
        ("OPENAI_API_KEY", "https://notopenai.com/v1", False),
        ("OPENAI_API_KEY", "https://example.org/api.openai.com", False),
        ("OPENAI_API_KEY", "https://example.org?api.openai.com", False),
        ("OPENAI_API_KEY", "https://api.openai.com@example.org/v1", False),
        ("OPENAI_API_KEY", "http://127.0.0.1:11434/v1", False),
        ("COHERE_API_KEY", "https://api.openai.com/v1", False),
        ("GEMINI_API_KEY", "https://generativelanguage.googleapis.com", True),
        ("GEMINI_API_KEY", "https://googleapis.com.example.org", False),
    ],
)
def test_a_vendor_is_known_by_its_domain(variable, url, is_sent):
    """By the whole of it."""
    assert (Options("judge", "a:b").key(variable, url) == SECRET) == is_sent


@pytest.mark.parametrize("more", ["", "&key="])
def test_a_plain_local_network_needs_no_key(more):
    """An Ollama of a compose network is not refused for a key that nobody named."""
    open_embedder("openai:nomic-embed-text?url=http://ollama:11434/v1" + more)
    open_judge("openai:llama3?url=http://ollama:11434/v1" + more)


def test_a_key_is_not_sent_in_the_clear(monkeypatch):
    """One that is named is sent to another machine over HTTPS alone."""
    monkeypatch.setenv("MINE", "my-own")
    with pytest.raises(InputError, match="expected https where a key is sent"):
        open_judge("openai:llama3?url=http://ollama:11434/v1&key=MINE")
