"""The README's example runs as printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def examples():
    """The Python blocks of the README: the first to begin with, the second goes on."""
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_readme_examples_run(examples, capsys):
    """The first publishes an offset and retrieves the judged passage; the second records, judges and searches twice."""
    names = {}
    for example in examples:
        exec(compile(example, str(README), "exec"), names)  # noqa: S102 - the README is ours

    verdict, passage, loop = capsys.readouterr().out.splitlines()
    assert "vouched for by its declaration [TTT-G00]" in verdict
    assert passage == "Refunds take five days."
    assert loop == "2 2"


def test_readme_examples_are_short(examples):
    """Each example fits on one screen."""
    assert len(examples) == 2
    assert [example for example in examples if len([line for line in example.splitlines() if line.strip()]) > 20] == []
