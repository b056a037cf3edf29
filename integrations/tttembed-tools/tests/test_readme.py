"""The README's examples run as printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
FIRST, PYDANTIC_AI = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def run(example):
    """Run an example."""
    exec(compile(example, str(README), "exec"), {})  # noqa: S102 - the README is ours


def test_the_first_example_learns(capsys):
    """It publishes what moves a request for tools that were never called."""
    run(FIRST)

    lesson, names = capsys.readouterr().out.splitlines()
    assert lesson.startswith("published: ")
    assert names == "['gmail_meetings']"


def test_an_agent_of_pydantic_ai_runs(capsys):
    """It answers as long as nothing is learned, too."""
    pytest.importorskip("pydantic_ai")
    run(PYDANTIC_AI)

    assert capsys.readouterr().out.strip()
