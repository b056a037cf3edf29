"""Progress where nobody watches, and work that is stopped by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tttembed_rag.system.progress import watched


def test_a_pipe_sees_items_as_they_come_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Counting changes nothing, and says nothing where nobody watches."""
    assert list(watched(iter("abc"), 3, "eval")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_standard_error_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `2>&-`, and in a program without a console."""
    monkeypatch.setattr(sys, "stderr", None)

    assert list(watched(iter("abc"), 3, "eval")) == ["a", "b", "c"]


def interrupted(tmp_path: Path, arguments: list[str], module: str, *, enough: int) -> tuple[str, int, str]:
    """What a command says that Ctrl-C ends, once *module* was asked about more than *enough* texts; and a second run.

    Gives what the first one said, how many texts it asked about, and what the second one printed.
    """
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\nfrom tttembed_rag.testing import FakeJudge\n"
        "def note(texts):\n"
        "    Path('asked').open('a').writelines(f'{text}\\n' for text in texts)\n"
        "    time.sleep(0.02 * len(texts))\n" + module,
        encoding="utf-8",
    )
    # A shell may start its background jobs with SIGINT ignored.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from tttembed_rag.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asked, until = tmp_path / "asked", time.monotonic() + 60
    while not (asked.exists() and len(asked.read_text().splitlines()) > enough) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGINT)
    _, message = running.communicate(timeout=60)
    count = len(asked.read_text().splitlines())
    again = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)

    assert running.returncode == 130
    assert "Traceback" not in message
    return message.strip(), count, again.stdout


@pytest.mark.slow
def test_embedding_that_is_interrupted_says_what_is_kept(tmp_path: Path) -> None:
    """Ctrl-C: one line, exit code 130; the second run embeds the rest alone, and nothing twice."""
    for part, letter in (("corpus", "d"), ("queries", "q")):
        lines = [json.dumps({"_id": f"{letter}{i}", "text": f"{part} {i}"}) for i in range(100)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    module = "def embed(texts):\n    note(texts)\n    return [[1.0, float(len(text))] for text in texts]\n"
    arguments = ["data", str(tmp_path), "--embed", "python:slow:embed"]
    message, count, _ = interrupted(tmp_path, arguments, module, enough=96)
    kept, asked = int(message.split("the vectors of ")[1].split()[0]), (tmp_path / "asked").read_text().splitlines()

    assert message == f"stopped: the vectors of {kept} texts are kept; run it again to go on"
    assert 96 <= kept < 200
    assert set(asked) == {f"{part} {i}" for part in ("corpus", "queries") for i in range(100)}
    assert len(asked) - count == 200 - kept


@pytest.mark.slow
def test_a_judge_that_is_interrupted_says_what_is_kept(tmp_path: Path) -> None:
    """Ctrl-C: one line, exit code 130, and the second run asks for the rest alone. At most 40 texts are under way."""
    candidates = [{"id": f"d{i}", "text": f"text {i}"} for i in range(5)]
    lines = [{"query_id": f"q{i}", "query": f"question {i}", "candidates": candidates} for i in range(30)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    module = "def score(query, text):\n    note([text])\n    return 0.5\njudge = FakeJudge(score)\n"
    arguments = ["judge", "log.jsonl", "--judge", "python:slow:judge", "--out", "scores/mine.tsv"]
    message, _, printed = interrupted(tmp_path, [*arguments, "--no-examination"], module, enough=60)
    known = int(printed.split(" pairs, ")[1].split(" known before")[0])

    assert "are kept; run it again to go on" in message
    assert 0 < known < 150
