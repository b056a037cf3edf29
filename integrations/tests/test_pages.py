"""What pages show runs where nothing is installed but what each page says to install; `make test-hosts` runs it.

Each page's first lines of `pip install` are run as they stand, with wheels of this clone as the README builds them. The
tests of the pages themselves run in an environment that has everything, pytest among it.
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
from subprocess import PIPE

import pytest

from tests.test_documentation import PAGES as SITE
from tests.test_documentation import SHELLS, blocks, commands, ready

REPO = Path(__file__).resolve().parents[2]
LLAMA_INDEX = "integrations/llama-index-embeddings-tttembed"
PAGES = [
    str(page.relative_to(REPO))
    for page in (*SITE, *sorted(REPO.glob("integrations/*/README.md")))
    if any(language in ("python", *SHELLS) for _, language, _ in blocks(page.read_text(encoding="utf-8")))
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
# The blocks of Python of a page, which share their names: one a line, each followed by an answer.
RUN = """
import importlib.util, json, sys
assert importlib.util.find_spec("pytest") is None
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(json.loads(line), names)
    print("ran", flush=True)
"""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of all distributions, built from their source distributions, as pip would."""
    sources, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheels")
    for folder in (REPO, *sorted(path.parent for path in (REPO / "integrations").glob("*/pyproject.toml"))):
        options = ["--sdist", "--no-isolation", "--outdir", sources]
        subprocess.run([sys.executable, "-m", "build", *options, folder], check=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, *sources.iterdir()], check=True)
    return out


@pytest.fixture(scope="session")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """A function that makes an environment with what lines of `pip install` name, once for the same lines."""
    made: dict[tuple[str, ...], Path] = {}

    def environment(lines: tuple[str, ...]) -> Path:
        if lines not in made:
            made[lines] = tmp_path_factory.mktemp("environment")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", made[lines]], check=True)
            pip = [sys.executable, "-m", "pip", "--python", made[lines] / "bin" / "python", "install"]
            options = ["--quiet", "--no-compile", "--constraint", REPO / "constraints.txt"]
            links = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}"
            for line in lines:
                asked = [*pip, *options, *shlex.split(line)]
                subprocess.run(asked, env=os.environ | {"PIP_FIND_LINKS": links}, check=True)
        return made[lines] / "bin"

    return environment


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_with_what_it_says_to_install(
    page: str, installed: Callable[[tuple[str, ...]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python and its commands, but servers, the demo, and commands that load the small model.

    A page without a line needs the package alone.
    """
    text = (REPO / page).read_text(encoding="utf-8")
    block = re.search(r"(^    pip install .*\n)+", text, flags=re.MULTILINE)
    lines = re.findall(r"^    pip install ([^#\n]+[^#\s])", block[0], flags=re.MULTILINE) if block else ["tttembed-rag"]
    monkeypatch.chdir(tmp_path)
    there = installed(tuple(lines))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{there}{os.pathsep}{environment['PATH']}"
    environment["COHERE_API_KEY"] = "none is asked for in a dry run"
    command = [there / "python", "-W", "error::DeprecationWarning:__main__", "-c", RUN]
    said = tmp_path / "said.txt"

    with (
        said.open("w") as errors,
        subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=errors, text=True) as python,
    ):

        def run(code: str) -> None:
            print(json.dumps(code), file=python.stdin, flush=True)
            assert "ran\n" in python.stdout, said.read_text()

        run(YOURS.get(page, ""))
        for first, language, code in blocks(text):
            if language == "python":
                run(code)
            for _, shown in commands(first, code) if language in SHELLS and "embed minilm" not in code else ():
                if arguments := ready(shown):
                    done = subprocess.run(
                        ["tttembed", *arguments], env=environment, check=False, capture_output=True, text=True
                    )
                    assert done.returncode == 0, done.stderr
