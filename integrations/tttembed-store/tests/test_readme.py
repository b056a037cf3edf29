"""The README's example runs as printed."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_judges_learns_and_follows(tmp_path, monkeypatch, capsys):
    """A round judges what the log noted, and publishes offsets that move a query that nobody judged."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)

    exec(compile(code, str(README), "exec"), {"__name__": "__main__"})  # noqa: S102 - running it is the test

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "judged: 36 pairs scored"
    assert lines[1].startswith("published: ")
    assert lines[-1] == "True"
