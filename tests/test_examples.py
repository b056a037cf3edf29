"""The examples run offline, and show what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name):
    """What an example prints."""
    done = subprocess.run([sys.executable, EXAMPLES / name], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def gains(printed):
    """Of sixteen questions that nobody rated, those whose first passage helps before and after."""
    before, after = (int(count) for count in re.findall(r"helps for (\d+) of 16", printed))
    return after - before


@pytest.mark.parametrize("name", ["langchain_rag.py", "llama_index_rag.py"])
def test_a_rag_application_answers_better_after_learning(name):
    """Questions that nobody rated find the right passage more often, with vectors from the store alone."""
    printed = run(name)

    assert gains(printed) > 0
    assert re.search(r"vectors from the (store|index): [1-9]\d*, embedded again: 0", printed)


def test_a_judge_teaches_within_its_budget():
    """What a judge graded while serving, and no more than it was allowed, makes unseen questions better."""
    printed = run("llm_judge_feedback.py")

    assert gains(printed) > 0
    assert "120 pairs wait" in printed
