"""Services with batches from one line of text, as the command line takes them."""

from __future__ import annotations

from tttembed_rag.errors import InputError
from tttembed_rag.judging.batching.lines import open_by_file
from tttembed_rag.judging.batching.openaibatches import OpenAIBatches
from tttembed_rag.judging.batching.service import BatchService
from tttembed_rag.models.options import Options, without_secrets

_KINDS = "openai:MODEL, gemini:MODEL or http+vllm-score://HOST?model=NAME"


def open_batch_service(spec: str) -> BatchService:
    """The service with batches of the judge that *spec* names, as in `open_judge`: nothing is asked.

    ``openai:MODEL`` (``url=`` for another service of the same protocol), ``gemini:MODEL`` or
    ``http+vllm-score://HOST?model=NAME``.

    Raises:
        InputError: No such kind or option, a key is missing, or a kind without batches over HTTP.
    """
    kind, _, rest = spec.partition(":")
    target, _, query = rest.partition("?")
    transport = kind.partition("+")[0]
    if kind not in ("openai", "gemini", "http+vllm-score", "https+vllm-score"):
        raise InputError(f"judge: expected {_KINDS} where it is asked by batches, got {without_secrets(spec)!r}")
    judge = open_by_file(spec)
    options = Options("judge", spec, query)
    patience = options.patience()
    if kind == "gemini":
        from tttembed_rag.judging.batching.geminibatches import GeminiBatches

        return GeminiBatches(judge, target, base_url=options.take("url", "") or None, patience=patience)
    if kind == "openai":
        url, key = options.take("url", ""), options.key("OPENAI_API_KEY")
        if not url and not key:
            raise InputError("key: expected one in the environment variable OPENAI_API_KEY, found none")
        base = (url or "https://api.openai.com/v1").rstrip("/").removesuffix("/chat/completions")
        header = "api-key" if ".azure.com" in base else "authorization"
        return OpenAIBatches(judge, base, "/v1/chat/completions", key=key, header=header, patience=patience)
    base = f"{transport}:{target}".rstrip("/").removesuffix("/score").removesuffix("/v1")
    return OpenAIBatches(judge, f"{base}/v1", "/v1/score", key=options.key(None), patience=patience)
