"""Chat models by OpenAI's chat completions, through openai, as functions from prompt to answer."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

from tttembed_rag.errors import InputError, check_count
from tttembed_rag.models.endpoint import Address
from tttembed_rag.models.openaiclient import ask, openai_client
from tttembed_rag.models.retrying import Patience
from tttembed_rag.models.usage import Usage, plausible, report_usage

# Tokens that an answer may have. Models that think need more: their thoughts count.
OUTPUT_TOKENS = 1024
_URL = "https://api.openai.com/v1"


class OpenAIChat:
    """Answers of a chat model of OpenAI, Azure, Ollama, vLLM and most others; one that was cut off or refused is none.

    Args:
        model: Its name there.
        url: Where the service is, with its version: ``http://127.0.0.1:11434/v1``; None is OpenAI.
        key: Its key; None where it needs none.
        tokens: Tokens that an answer may have.
        temperature: NaN leaves it to the service.
        patience: How often it is asked, and how often a minute.
        timeout: Seconds to wait for the next part of an answer.

    Attributes:
        client: The `openai.OpenAI`.
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
            raise InputError("key: expected one in the environment variable OPENAI_API_KEY, found none")
        where = Address.of(url or _URL, key)
        self.client = openai_client(where, path="/chat/completions", patience=patience, timeout=timeout)
        # The newer name is refused by older servers, and the older one by OpenAI's newer models.
        limit = "max_completion_tokens" if url is None or where.is_azure else "max_tokens"
        self._body = {"model": model, limit: tokens} | ({} if isnan(temperature) else {"temperature": temperature})
        self._address = where.name
        self.name = f"openai:{model}" if url is None else f"openai:{model}@{where.netloc}"
        self.settings = f"n={tokens} t={temperature}"

    def request(self, prompt: str) -> dict[str, Any]:
        """The JSON that asks *prompt*."""
        return self._body | {"messages": [{"role": "user", "content": prompt}]}

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None where it was cut off or refused.

        Raises:
            JudgeError: The service refused the request, stayed busy or answered something else.
        """
        create = self.client.chat.completions.with_raw_response.create
        text, usage = ask(
            self._address, lambda: create(**self.request(prompt)), self.read, expected="an answer of openai's chat"
        )
        if usage is not None:
            report_usage(usage)
        return text

    @staticmethod
    def read(answer: Any) -> tuple[str | None, Usage | None]:
        """The text of an *answer*, as JSON, and its usage: None where there is none that one request can have."""
        choice, used = answer["choices"][0], answer.get("usage") or {}
        text = choice["message"]["content"] if choice.get("finish_reason") in ("stop", None) else None
        if text is not None and not isinstance(text, str):
            raise TypeError("expected a text")
        return text, plausible(used.get("prompt_tokens"), used.get("completion_tokens"))
