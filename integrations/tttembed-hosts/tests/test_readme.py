"""The README's examples run as printed."""

import re
from pathlib import Path

import pytest
from tttembed_store.sql import open_store

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=["chroma", "pydantic-ai"])
def test_readme_examples_run(number, tmp_path, monkeypatch, capsys):
    """Each serves a query as long as nothing is learned, too."""
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:///ttt.db").close()  # as `tttembed store create` above them does

    exec(compile(EXAMPLES[number], str(README), "exec"), {})  # noqa: S102 - the README is ours

    assert capsys.readouterr().out.strip()
