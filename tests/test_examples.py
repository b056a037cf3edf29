"""The examples run offline, and show what they promise."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = ["langchain_rag.py", "llama_index_rag.py", "llm_judge_feedback.py", "agent_skills.py", "gemini.py"]


@pytest.fixture(scope="module")
def printed():
    """What an example prints, by its name; two run at a time."""
    with ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(run, name) for name in NAMES}
        yield lambda name: running[name].result()


def run(name):
    """What an example prints."""
    done = subprocess.run([sys.executable, EXAMPLES / name], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def gains(output):
    """Of sixteen questions that nobody rated, those whose first passage helps before and after."""
    before, after = (int(count) for count in re.findall(r"helps for (\d+) of 16", output))
    return after - before


def test_every_example_is_run():
    """No example is left out here."""
    assert sorted(NAMES) == sorted(file.name for file in EXAMPLES.glob("*.py") if file.name != "handbook.py")


@pytest.mark.parametrize("name", ["langchain_rag.py", "llama_index_rag.py"])
def test_a_rag_application_answers_better_after_learning(printed, name):
    """Questions that nobody rated find the right passage more often, with vectors from the store alone."""
    output = printed(name)

    assert gains(output) > 0
    assert re.search(r"vectors from the (store|index): [1-9]\d*, embedded again: 0", output)


def test_a_judge_teaches_within_its_budget(printed):
    """What a judge graded while serving, and no more than it was allowed, makes unseen questions better."""
    output = printed("llm_judge_feedback.py")

    assert gains(output) > 0
    assert "120 pairs wait" in output


def test_each_agent_learns_its_own_skills(printed):
    """Success and failure of tasks bring both agents the skills of their own suite for requests they never tried."""
    output = printed("agent_skills.py")
    counts = re.findall(r"(\w+), (\w+): the first skill works for (\d+) of 10", output)
    works = {(when, agent): int(count) for when, agent, count in counts}

    assert len((EXAMPLES / "agent_skills.py").read_text(encoding="utf-8").splitlines()) <= 40
    assert works["after", "northwind"] > works["before", "northwind"]
    assert works["after", "acme"] > works["before", "acme"]


def test_closed_models_embed_and_judge(printed):
    """Gemini's protocol on both sides: 240 verdicts on a question's five passages make unseen questions better."""
    output = printed("gemini.py")

    assert gains(output) > 0
    assert "240 requests to the judge" in output
