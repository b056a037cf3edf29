"""What pages show runs where nothing is installed but what each page says to install; `make test-hosts` runs it.

The tests of the pages themselves run in an environment that has everything, pytest among it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_documentation import SHELLS, blocks, commands, parsed, provide

REPO = Path(__file__).resolve().parents[2]
LLAMA_INDEX = "integrations/llama-index-embeddings-tttembed"
PAGES = [
    "README.md",
    *(f"docs/tutorials/{name}.md" for name in ("langchain", "llama-index", "own-data")),
    *(
        f"{folder}/README.md"
        for folder in ("integrations/langchain-tttembed", LLAMA_INDEX, "integrations/tttembed-haystack")
    ),
]
# What a page calls yours.
YOURS = {
    f"{LLAMA_INDEX}/README.md": """
from llama_index.core import MockEmbedding
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.schema import TextNode

class Grader(MockLLM):
    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="Score: 4")

model, llm = MockEmbedding(embed_dim=8), Grader()
nodes = [TextNode(text=text) for text in ("A refund takes five days.", "Invoices come.", "We ship.", "Call us.")]
questions = [f"question {number}" for number in range(20)]
"""
}
# A page, step by step; its blocks of Python share their names.
RUN = """
import importlib.util, json, subprocess, sys
assert importlib.util.find_spec("pytest") is None
names = {"__name__": "__main__"}
for is_python, code in json.load(sys.stdin):
    if is_python:
        exec(code, names)
    else:
        subprocess.run(code, shell=True, check=True)
"""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of all distributions."""
    out = tmp_path_factory.mktemp("wheels")
    folders = [REPO, *sorted(path.parent for path in (REPO / "integrations").glob("*/pyproject.toml"))]
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, *folders], check=True)
    return out


@pytest.fixture(scope="session")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that makes an environment with what a line of `pip install` names, once for each line."""
    made: dict[str, Path] = {}

    def environment(line: str) -> Path:
        if line not in made:
            made[line] = tmp_path_factory.mktemp("environment")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", made[line]], check=True)
            name, bracket, extras = line.strip("'").partition("[")
            ours = [next(wheels.glob(f"{one.replace('-', '_')}-*.whl")) for one in ("tttembed-rag", name)]
            options = ["--quiet", "--constraint", REPO / "constraints.txt", ours[0], f"{ours[1]}{bracket}{extras}"]
            pip = [sys.executable, "-m", "pip", "--python", made[line] / "bin" / "python", "install"]
            subprocess.run([*pip, *options], check=True)
        return made[line] / "bin"

    return environment


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_with_what_it_says_to_install(
    page: str, installed: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python and its commands, but those that load the small model, which needs torch."""
    text = (REPO / page).read_text(encoding="utf-8")
    (line, *_) = re.findall(r"^    pip install (\S+)", text, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    steps = [(True, YOURS.get(page, ""))]
    for first, language, code in blocks(text):
        if language == "python":
            steps.append((True, code))
        for _, shown in commands(first, code) if language in SHELLS and "minilm" not in code else ():
            provide(parsed(shlex.split(shown, comments=True))[1])
            steps.append((False, f"tttembed {shown}"))
    there = installed(line)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{there}{os.pathsep}{environment['PATH']}"

    done = subprocess.run(
        [there / "python", "-W", "error::DeprecationWarning:__main__", "-c", RUN],
        input=json.dumps(steps),
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
