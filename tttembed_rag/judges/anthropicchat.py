"""Chat models by Anthropic's messages, over HTTP, as functions from prompt to answer."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

from tttembed_rag.errors import InputError, check_count
from tttembed_rag.judges.openaichat import OUTPUT_TOKENS
from tttembed_rag.models.endpoint import Endpoint, with_path
from tttembed_rag.models.retrying import Patience
from tttembed_rag.models.usage import Usage, report_usage

_URL, _VERSION = "https://api.anthropic.com/v1", "2023-06-01"


class AnthropicChat:
    """Answers of a chat model of Anthropic; one that was cut off or refused is none.

    Args:
        model: Its name there.
        url: Where the service is, with its version; None is Anthropic.
        key: Its key; None where it needs none.
        tokens: Tokens that an answer may have.
        temperature: NaN leaves it to the service.
        patience: How often and how fast it is asked.
        timeout: Seconds to wait for an answer.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        tokens: int = OUTPUT_TOKENS,
        temperature: float = nan,
        patience: Patience | None = None,
        timeout: float = 120.0,
    ) -> None:
        check_count("tokens", tokens)
        if url is None and not key:
            raise InputError("key: expected one in the environment variable ANTHROPIC_API_KEY, found none")
        self._endpoint = Endpoint(
            with_path(url or _URL, "/messages"),
            key=key,
            header="x-api-key",
            headers={"anthropic-version": _VERSION},
            patience=patience,
            timeout=timeout,
        )
        self._body = {"model": model, "max_tokens": tokens} | (
            {} if isnan(temperature) else {"temperature": temperature}
        )
        self.name = f"anthropic:{model}" if url is None else f"anthropic:{model}@{self._endpoint.where.netloc}"
        self.settings = f"n={tokens} t={temperature}"

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None where it was cut off or refused.

        Raises:
            JudgeError: The service refused the request, stayed busy or answered something else.
        """
        body = self._body | {"messages": [{"role": "user", "content": prompt}]}
        text, usage = self._endpoint.ask(body, _read, expected="an answer of anthropic's chat")
        report_usage(usage)
        return text


def _read(answer: Any) -> tuple[str | None, Usage]:
    used = answer["usage"]
    text = "".join(part["text"] for part in answer["content"] if part["type"] == "text")
    usage = Usage(1, int(used["input_tokens"]), int(used["output_tokens"]))
    return (text if answer.get("stop_reason") in ("end_turn", "stop_sequence", None) else None), usage
