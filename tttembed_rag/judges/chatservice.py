"""Chat models behind HTTP as functions from prompt to answer: OpenAI's chat completions, and Anthropic's messages."""

from __future__ import annotations

from math import isnan, nan
from typing import Any, Literal

from tttembed_rag.errors import InputError
from tttembed_rag.models.endpoint import Endpoint, with_path
from tttembed_rag.models.retrying import Patience
from tttembed_rag.models.usage import Usage, report_usage

# Tokens that an answer may have. Models that think need more: their thoughts count.
OUTPUT_TOKENS = 1024
_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}
_PATHS = {"openai": "/chat/completions", "anthropic": "/messages"}
_ANTHROPIC_VERSION = "2023-06-01"


class ChatService:
    """Answers of a chat model behind HTTP; an answer that was cut off or refused is none.

    Args:
        protocol: ``openai`` is spoken by OpenAI, Azure, Ollama, vLLM and most others, ``anthropic`` by Anthropic.

        model: Its name there.

        url: Where the service is, with its version: ``http://127.0.0.1:11434/v1``; None is the protocol's namesake.

        key: Its key; None where it needs none.

        tokens: Tokens that an answer may have.

        temperature: NaN leaves it to the service.

        patience: How often and how fast it is asked.

        timeout: Seconds to wait for an answer.
    """

    def __init__(
        self,
        protocol: Literal["openai", "anthropic"] | str,  # noqa: PYI051 - checked below
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        tokens: int = OUTPUT_TOKENS,
        temperature: float = nan,
        patience: Patience | None = None,
        timeout: float = 120.0,
    ) -> None:
        if protocol not in _URLS:
            raise InputError(f"protocol: expected {' or '.join(_URLS)}, got {protocol!r}")
        if tokens < 1:
            raise InputError(f"tokens: expected at least 1, got {tokens}")
        if url is None and not key:
            raise InputError(f"key: expected one in the environment variable {protocol.upper()}_API_KEY, found none")
        base = url or _URLS[protocol]
        self._protocol = protocol
        headers = {"anthropic-version": _ANTHROPIC_VERSION} if protocol == "anthropic" else {}
        self._endpoint = Endpoint(
            with_path(base, _PATHS[protocol]),
            key=key,
            header=self._header(base),
            headers=headers,
            patience=patience,
            timeout=timeout,
        )
        # The newer name is refused by older servers, and the older one by OpenAI's newer models.
        newer = protocol == "openai" and (url is None or "azure.com" in self._endpoint.host)
        self._body = {"model": model, "max_completion_tokens" if newer else "max_tokens": tokens}
        if not isnan(temperature):
            self._body["temperature"] = temperature
        self.name = f"{protocol}:{model}" if url is None else f"{protocol}:{model}@{self._endpoint.address}"
        self.settings = f"n={tokens} t={temperature}"

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None where it was cut off or refused.

        Raises:
            JudgeError: The service refused the request, stayed busy or answered something else.
        """
        read = _anthropic if self._protocol == "anthropic" else _openai
        body = self._body | {"messages": [{"role": "user", "content": prompt}]}
        text, usage = self._endpoint.ask(body, read, expected=f"an answer of {self._protocol}'s chat")
        if usage is not None:
            report_usage(usage)
        return text

    def _header(self, base: str) -> str:
        if self._protocol == "anthropic":
            return "x-api-key"
        return "api-key" if ".azure.com" in base else "authorization"


def _openai(answer: Any) -> tuple[str | None, Usage | None]:
    choice, used = answer["choices"][0], answer.get("usage")
    usage = Usage(1, int(used["prompt_tokens"]), int(used["completion_tokens"])) if used else None
    return (choice["message"]["content"] if choice.get("finish_reason") in ("stop", None) else None), usage


def _anthropic(answer: Any) -> tuple[str | None, Usage | None]:
    used = answer["usage"]
    text = "".join(part["text"] for part in answer["content"] if part["type"] == "text")
    usage = Usage(1, int(used["input_tokens"]), int(used["output_tokens"]))
    return (text if answer.get("stop_reason") in ("end_turn", "stop_sequence", None) else None), usage
