"""LlamaIndex language models as judges."""

from __future__ import annotations

from llama_index.core.llms import LLM

from tttembed_rag.judges import INSTRUCTION, RubricJudge


def llm_judge(llm: LLM, *, name: str, settings: str = "", instruction: str = INSTRUCTION) -> RubricJudge:
    """A judge that asks *llm* to grade one node at a time, 0 to 5.

    Args:
        llm: Any LLM.
        name: Model and revision; part of the fingerprint, so that another model is another judge.
        settings: Other settings that decide its answers, such as the temperature; part of the fingerprint.
        instruction: The meaning of relevance, in one sentence.
    """

    def complete(prompt: str) -> str:
        return llm.complete(prompt).text

    return RubricJudge(complete, model=name, settings=settings, instruction=instruction)
