"""The README's example runs as printed."""

import re
from pathlib import Path
from string import ascii_lowercase

import pytest
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import TextNode

README = Path(__file__).parents[1] / "README.md"


class LetterCounts(BaseEmbedding):
    """A crude real model: how often each letter occurs."""

    def _get_text_embedding(self, text):
        return [float(text.lower().count(letter)) for letter in ascii_lowercase]

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


@pytest.fixture
def example():
    """The one Python block of the README."""
    [block] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    return block


def test_readme_example_runs_and_finds_the_judged_node(example, capsys):
    """The example publishes an offset and retrieves the node the judge preferred."""
    texts = ["A refund takes five days, no more.", "Invoices come monthly.", "We ship on Mondays.", "Call us any time."]
    yours = {
        "model": LetterCounts(),
        "nodes": [TextNode(text=text) for text in texts],
        "questions": [f"{name} wants {name}'s money back" for name in ascii_lowercase[:20]],
    }

    exec(compile(example, str(README), "exec"), yours)  # noqa: S102 - the README is ours

    verdict, passage = capsys.readouterr().out.splitlines()
    assert verdict.startswith("published: held-out gain +")
    assert passage == "A refund takes five days, no more."


def test_readme_example_is_short(example):
    """The example fits on one screen."""
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
