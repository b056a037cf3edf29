"""The README's example runs as printed."""

import re
from pathlib import Path

import pytest

pytest.importorskip("haystack", reason="Haystack is not installed")

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    """It retrieves a document, and the store has the query."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {}

    exec(compile(code, str(README), "exec"), names)  # noqa: S102 - running it is the test
    names["pipeline"].get_component("recorder").log.close()

    assert capsys.readouterr().out.strip() in {"Wash wool in cold water.", "Boil the kettle."}
    from tttembed_store import open_store

    with open_store("sqlite:///ttt.db") as store:
        assert store.counts().queries == 1
