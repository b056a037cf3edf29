"""Chat models of vendors as functions from prompt to answer: OpenAI's chat completions and Anthropic's messages."""

from __future__ import annotations

import json
from math import isnan, nan
from typing import Any

from tttembed_rag.errors import InputError, JudgeError, check_count
from tttembed_rag.models.endpoint import UNREADABLE, Address, Endpoint, shown, with_path
from tttembed_rag.models.openaiclient import failures_of, openai_client
from tttembed_rag.models.retrying import Patience
from tttembed_rag.models.usage import Usage, plausible, report_usage

# Tokens that an answer may have. Models that think need more: their thoughts count.
OUTPUT_TOKENS = 1024
_OPENAI, _ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com/v1"
# The version of Anthropic's messages.
_VERSION = "2023-06-01"


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
        self._where = where = _address("openai", url, _OPENAI, key)
        self.client = openai_client(where, path="/chat/completions", patience=patience, timeout=timeout)
        # The newer name is refused by older servers, and the older one by OpenAI's newer models.
        limit = "max_completion_tokens" if url is None or where.is_azure else "max_tokens"
        self._body = _settings(model, limit, tokens, temperature)
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
        name, expected = self._where.name, "an answer of openai's chat"
        with failures_of(name, expected):
            answer = self.client.chat.completions.with_raw_response.create(**self.request(prompt)).http_response
            try:
                text, usage = self.read(json.loads(answer.content))
            except UNREADABLE as exc:
                raise JudgeError(
                    f"{name}: expected {expected}, got {answer.status_code}", shown(answer.content)
                ) from exc
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


class AnthropicChat:
    """Answers of a chat model of Anthropic; one that was cut off or refused is none.

    Args:
        model: Its name there.
        url: Where the service is, with its version; None is Anthropic.
        key: Its key; None where it needs none.
        tokens: Tokens that an answer may have.
        temperature: NaN leaves it to the service.
        patience: How often and how fast it is asked.
        timeout: Seconds to wait for the next part of an answer.
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
        where = _address("anthropic", url, _ANTHROPIC, key)
        self._endpoint = Endpoint(
            with_path(where.url, "/messages"),
            key=key,
            header="x-api-key",
            headers={"anthropic-version": _VERSION},
            patience=patience,
            timeout=timeout,
        )
        self._body = _settings(model, "max_tokens", tokens, temperature)
        self.name = f"anthropic:{model}" if url is None else f"anthropic:{model}@{where.netloc}"
        self.settings = f"n={tokens} t={temperature}"

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None where it was cut off or refused.

        Raises:
            JudgeError: The service refused the request, stayed busy or answered something else.
        """
        body = self._body | {"messages": [{"role": "user", "content": prompt}]}
        text, usage = self._endpoint.ask(body, _said, expected="an answer of anthropic's chat")
        report_usage(usage)
        return text


def _address(vendor: str, url: str | None, own: str, key: str | None) -> Address:
    if url is None and not key:
        raise InputError(f"key: expected one in the environment variable {vendor.upper()}_API_KEY, found none")
    return Address.of(url or own, key)


def _settings(model: str, limit: str, tokens: int, temperature: float) -> dict[str, Any]:
    check_count("tokens", tokens)
    return {"model": model, limit: tokens} | ({} if isnan(temperature) else {"temperature": temperature})


def _said(answer: Any) -> tuple[str | None, Usage | None]:
    """The text of an answer of Anthropic, and its usage."""
    text = "".join(part["text"] for part in answer["content"] if part["type"] == "text")
    ended = answer.get("stop_reason") in ("end_turn", "stop_sequence", None)
    return text if ended else None, plausible(answer["usage"]["input_tokens"], answer["usage"]["output_tokens"])
