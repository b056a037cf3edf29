"""The README's example runs as printed."""

import re
from pathlib import Path
from string import ascii_lowercase

import pytest
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import CompletionResponse, MockLLM
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


class Grader(MockLLM):
    """A real LLM class with one opinion."""

    def complete(self, prompt, formatted=False, **kwargs):
        """Its answer."""
        return CompletionResponse(text="Score: 4")


@pytest.fixture
def examples():
    """The Python blocks of the README: the first to begin with, the second goes on."""
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_readme_examples_run(examples, capsys):
    """The first publishes an offset and retrieves the judged node; the second records, judges and searches twice."""
    texts = ["A refund takes five days, no more.", "Invoices come monthly.", "We ship on Mondays.", "Call us any time."]
    yours = {
        "llm": Grader(),
        "model": LetterCounts(),
        "nodes": [TextNode(text=text) for text in texts],
        "questions": [f"{name} wants {name}'s money back" for name in ascii_lowercase[:20]],
    }
    for example in examples:
        exec(compile(example, str(README), "exec"), yours)  # noqa: S102 - the README is ours

    verdict, passage, loop = capsys.readouterr().out.splitlines()
    assert "vouched for by its declaration [TTT-G00]" in verdict
    assert passage == "A refund takes five days, no more."
    assert loop == "2 2"


def test_readme_examples_are_short(examples):
    """Each example fits on one screen."""
    assert len(examples) == 2
    assert [example for example in examples if len([line for line in example.splitlines() if line.strip()]) > 20] == []
