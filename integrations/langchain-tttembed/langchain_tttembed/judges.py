"""LangChain chat models as judges."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel

from tttembed_rag.judges import INSTRUCTION, RubricJudge


def chat_judge(model: BaseChatModel, *, name: str, settings: str = "", instruction: str = INSTRUCTION) -> RubricJudge:
    """A judge that asks *model* to grade one document at a time, 0 to 5.

    Args:
        model: Any chat model.
        name: Model and revision; part of the fingerprint, so that another model is another judge.
        settings: Other settings that decide its answers, such as the temperature; part of the fingerprint.
        instruction: The meaning of relevance, in one sentence.
    """

    def complete(prompt: str) -> str:
        return str(model.invoke(prompt).text)

    return RubricJudge(complete, model=name, settings=settings, instruction=instruction)
