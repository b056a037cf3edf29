"""What two pages show of feedback and tools, against a running proxy with a store and a catalogue."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tttembed_store.proxy import FeedbackWriter
from tttembed_store.proxy.openapi import document
from tttembed_store.sql import open_store
from tttembed_tools import LearnedToolSearch

from tttembed_rag.testing import FakeEmbedder

DOCS = Path(__file__).parents[4] / "docs"
PAGES = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in ("how-to/http.md", "reference/clients.md"))
CATALOG = {
    "mail_send": "Send a message or an invoice to somebody by mail.",
    "weather": "Tell the weather of a city.",
    "calendar_add": "Add a meeting to the calendar.",
}


# A model that searches, calls what is found first and once more a tool that fails, and ends.
AGENT = """
import { tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { z } from "zod";
import { answer } from "./learned-tools.mjs";

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const call = (toolName, input) => ({ type: "tool-call", toolCallId: toolName, toolName, input: JSON.stringify(input) });
const steps = [
  [call("search", { query: "send the invoice to Jones" })],
  [call("mail_send", { to: "Jones" }), call("calendar_add", { to: "Jones" })],
  [{ type: "text", text: "done" }],
];
const model = new MockLanguageModelV4({
  doGenerate: async () => {
    const content = steps.shift();
    const unified = content[0].type === "text" ? "stop" : "tool-calls";
    return { content, finishReason: { unified, raw: undefined }, usage, warnings: [] };
  },
});
const deferred = (description, execute) =>
  tool({ deferLoading: true, description, inputSchema: z.object({ to: z.string() }), execute });
const tools = {
  mail_send: deferred("Send a message by mail.", async () => "sent"),
  calendar_add: deferred("Add a meeting.", async () => { throw new Error("no calendar"); }),
};
console.log(await answer(model, "Send Jones the invoice.", tools));
"""


def blocks(language):
    """The code of the pages in one language."""
    return re.findall(rf"^```{language}(?: [^\n]*)?\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)


def run(script, folder):
    """The exit code and the output of a script in node."""
    node = subprocess.run(["node", script], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return node.returncode, node.stdout


@pytest.fixture
def url(proxied, sqlite_url, tmp_path):
    """The address of a proxy as the page starts it."""
    search = LearnedToolSearch(CATALOG, FakeEmbedder(), store=f"sqlite:///{tmp_path}/tools.db")
    return str(proxied(feedback=FeedbackWriter(sqlite_url), searches={"office": search}).base_url)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(url, sqlite_url, tmp_path):
    """Each command of the guide is answered as the guide says, and what it says is in the stores."""
    answers = [
        json.loads(
            subprocess.run(
                ["sh", "-c", block.replace("http://127.0.0.1:8787", url)], capture_output=True, check=True
            ).stdout
        )
        for block in blocks("sh")
        if re.search(r"curl .*/v1/(feedback|search|used)", block)
    ]

    assert answers[0] == {"kept": 2, "source": "user-7"}
    assert answers[1]["tools"][0] == "mail_send"
    assert answers[2] == {"kept": 1, "source": "agent-3"}
    for store, rewards in ((sqlite_url, 2), (f"sqlite:///{tmp_path}/tools.db", 1)):
        with open_store(store) as opened:
            assert opened.counts("").rewards == rewards


def test_refusals(proxied, sqlite_url):
    """The error of the page is the one that is answered."""
    (expected,) = (json.loads(block) for block in blocks("json") if "error" in block)
    client = proxied(feedback=FeedbackWriter(sqlite_url))

    answer = client.post("/v1/feedback", json={"query": "q", "documents": [{"id": "d", "thumb": 2}]})

    assert (answer.status_code, answer.json()) == (400, expected)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_vercel_ai_sdk(url, tmp_path):
    """The snippet in the SDK itself: a model finds tools through the server, and what became of them is kept."""
    (snippet,) = blocks("js")
    (tmp_path / "learned-tools.mjs").write_text(snippet.replace("http://127.0.0.1:8787", url), encoding="utf-8")
    (tmp_path / "agent.mjs").write_text(AGENT, encoding="utf-8")
    install = ["npm", "install", "--no-fund", "--no-audit", "--silent", "--prefix", tmp_path, "ai@7.0.173", "zod@4"]
    try:
        subprocess.run(install, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("the packages ai and zod are not to be had here")

    assert run("agent.mjs", tmp_path) == (0, "done\n")
    with open_store(f"sqlite:///{tmp_path}/tools.db") as store:
        verdicts = {tool: value for (_, tool), value in store.history.verdicts("", judge="tool use").items()}
        assert set(store.history.texts("").values()) == {"send the invoice to Jones"}
    assert verdicts.keys() == {"mail_send", "calendar_add"}
    assert verdicts["mail_send"] == 1 > verdicts["calendar_add"]

    (tmp_path / "learned-tools.mjs").write_text(snippet.replace("http://127.0.0.1:8787", "http://127.0.0.1:9"))
    assert run("agent.mjs", tmp_path) == (0, "done\n"), "a server that is away fails the agent"


@pytest.mark.parametrize("snippet", blocks("java"), ids=["Spring AI", "LangChain4j"])
def test_java(snippet):
    """Paths and bodies are those of the OpenAPI document: neither host can be installed beside the tests."""
    paths = document()["paths"]
    bodies = {
        "/v1/search/{catalogue}": re.search(r'Map\.of\(("query", .*?"among".*?)\)', snippet)[1],
        "/v1/used": re.search(r'Map\.of\(("catalogue", .*?)\);', snippet)[1],
    }
    call = re.search(r'Map\.of\(("name", .*?)\);', snippet)[1]

    for path, body in bodies.items():
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        named = {name.strip('"') for name in body.split(", ")[::2]}
        assert set(schema["required"]) <= named <= schema["properties"].keys()
        assert path.replace("{catalogue}", "office") in snippet
    of_call = paths["/v1/used"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["used"]
    assert {name.strip('"') for name in call.split(", ")[::2]} == set(of_call["items"]["required"])
    assert '"tools"' in snippet or ".tools()" in snippet
    assert "X-TTT-Source" in snippet
    assert re.search(r"catch \([\w |]+ away\)", snippet), "a server that is away fails the agent"
    assert re.search(r'(runAsync|submit)\(\(\) -> .*"/v1/used"', snippet), "an outcome is waited for"


@pytest.mark.parametrize("language", ["js", "java", "sh"])
def test_snippets_are_short(language):
    """A reader takes each in at a glance."""
    assert max(len([line for line in block.splitlines() if line.strip()]) for block in blocks(language)) <= 45
