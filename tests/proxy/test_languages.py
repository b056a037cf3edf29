"""What docs/how-to/any-language.md shows, against a running proxy with a store and a catalogue."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tttembed_rag.proxy import FeedbackWriter
from tttembed_rag.search import LearnedToolSearch
from tttembed_rag.stores import open_store
from tttembed_rag.testing import FakeEmbedder

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "any-language.md").read_text(encoding="utf-8")
CATALOG = {
    "mail_send": "Send a message or an invoice to somebody by mail.",
    "weather": "Tell the weather of a city.",
    "calendar_add": "Add a meeting to the calendar.",
}


def blocks(language):
    """The code of the page in one language."""
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def url(proxied, sqlite_url, tmp_path):
    """The address of a proxy as the page starts it."""
    search = LearnedToolSearch(CATALOG, FakeEmbedder(), store=f"sqlite:///{tmp_path}/tools.db")
    return str(proxied(feedback=FeedbackWriter(sqlite_url), searches={"office": search}).base_url)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(url, sqlite_url, tmp_path):
    """Each command of the page is answered as the page says, and what it says is in the stores."""
    answers = [
        json.loads(
            subprocess.run(
                ["sh", "-c", block.replace("http://127.0.0.1:8787", url)], capture_output=True, check=True
            ).stdout
        )
        for block in blocks("sh")
    ]

    assert answers[0] == {"kept": 2, "source": "user-7"}
    assert answers[1]["tools"][0] == "mail_send"
    assert answers[2] == {"kept": 1, "source": "agent-3"}
    for store, rewards in ((sqlite_url, 2), (f"sqlite:///{tmp_path}/tools.db", 1)):
        with open_store(store) as opened:
            assert opened.counts("").rewards == rewards


def test_refusals(proxied, sqlite_url):
    """The error of the page is the one that is answered."""
    (expected,) = (json.loads(one) for one in blocks("json") if "error" in one)
    client = proxied(feedback=FeedbackWriter(sqlite_url))

    answer = client.post("/v1/feedback", json={"query": "q", "documents": [{"id": "d", "thumb": 2}]})

    assert (answer.status_code, answer.json()) == (400, expected)
