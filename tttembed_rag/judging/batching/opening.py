"""Batch services from one line of text, as the command line takes them."""

from __future__ import annotations

from tttembed_rag.errors import InputError
from tttembed_rag.judges.gemini import Gemini
from tttembed_rag.judges.http import HttpJudge
from tttembed_rag.judges.rubric import RubricJudge
from tttembed_rag.judges.specs import open_judge
from tttembed_rag.judging.batching.geminibatches import GeminiBatches
from tttembed_rag.judging.batching.lines import LineJudge
from tttembed_rag.judging.batching.openaibatches import OpenAIBatches
from tttembed_rag.judging.batching.service import BatchService
from tttembed_rag.models.openaiclient import openai_client
from tttembed_rag.models.options import without_secrets

_KINDS = ("openai", "gemini", "http+vllm-score", "https+vllm-score")
# Seconds to wait for the next part of an answer.
_SECONDS = 120.0


def open_batch_service(spec: str) -> BatchService:
    """The service with batches of the judge that *spec* names, as in `open_judge`: nothing is asked.

    ``openai:MODEL`` (``url=`` for another service of the same protocol), ``gemini:MODEL`` or
    ``http+vllm-score://HOST?model=NAME``.

    Raises:
        InputError: No such kind or option, a key is missing, or a kind without batches.
    """
    if spec.partition(":")[0] not in _KINDS:
        raise InputError(
            "judge: expected openai:MODEL, gemini:MODEL or http+vllm-score://HOST?model=NAME where it is asked by "
            f"batches, got {without_secrets(spec)!r}"
        )
    judge = open_judge(spec)
    if isinstance(judge, HttpJudge):
        return OpenAIBatches(LineJudge(judge), openai_client(judge.endpoint.where, path="/score", timeout=_SECONDS))
    if not isinstance(judge, RubricJudge):
        raise InputError(f"judge: expected one that takes batches, got {judge.fingerprint}")
    if isinstance(judge.complete, Gemini):
        return GeminiBatches(LineJudge(judge), judge.complete)
    return OpenAIBatches(LineJudge(judge), judge.complete.client)
