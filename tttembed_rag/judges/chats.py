"""Chat models of vendors as functions from prompt to answer: of OpenAI's protocol, of Anthropic and of Google."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from math import isnan, nan
from typing import Any, TypeAlias

from tttembed_rag.clients.endpoint import DOMAINS, Address, Endpoint, is_of, read_json, with_path
from tttembed_rag.clients.googleclient import EXTRA, GoogleModel
from tttembed_rag.clients.openaiclient import failures_of, openai_client
from tttembed_rag.clients.retrying import Patience, RefusedTextsError
from tttembed_rag.clients.usage import Usage, plausible, report_usage
from tttembed_rag.errors import InputError, check_count, require

# Tokens that an answer may have. Models that think need more, as Gemini does: their thoughts count.
OUTPUT_TOKENS, GEMINI_TOKENS = 1024, 4096
# How much a model of Gemini thinks, of those that know levels: from the third generation on.
_THINKING, _KNOWS_LEVELS = "low", re.compile(r"gemini-(?![12]\b)")
# How an answer ends that is none, as services call it; whatever else they say, it has ended by itself.
_CUT = {"length", "max_tokens", "model_length", "model_context_window_exceeded", "error", "other", "unspecified"}
_CUT |= {"content_filter", "safety", "refusal", "recitation", "blocklist", "prohibited_content", "spii", "language"}
_CUT |= {"tool_calls", "tool_use", "function_call", "pause_turn", "malformed_function_call"}
# The text of an answer, None where there is none; its usage, None where that is none a request can have; how it ended.
Read: TypeAlias = tuple[str | None, Usage | None, str]
_OPENAI, _ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com/v1"
# The version of Anthropic's messages.
_VERSION = "2023-06-01"
# How a value of google-genai is written as the JSON of Gemini.
_AS_JSON: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_none": True}


class _Chat(ABC):
    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None where it is empty, was cut off or refused.

        Raises:
            JudgeError: The service refused the request, stayed busy or answered something else.
        """
        text, usage, ended = self._answer(prompt)
        report_usage(usage, ended=ended)
        return text or None

    @abstractmethod
    def _answer(self, prompt: str) -> Read:
        """What is read of an answer."""


class _ByKey(_Chat):
    """A chat model of a *vendor* that is at its *own* address, or at another *url* that speaks the same protocol."""

    def __init__(
        self, vendor: str, own: str, model: str, url: str | None, key: str | None, tokens: int, temperature: float
    ) -> None:
        check_count("tokens", tokens)
        if url is None and not key:
            raise InputError(f"key: expected one in the environment variable {vendor.upper()}_API_KEY, found none")
        self._where = Address.of(url or own, key)
        self._body: dict[str, Any] = {"model": model} | ({} if isnan(temperature) else {"temperature": temperature})
        self.name = f"{vendor}:{model}" if url is None else f"{vendor}:{model}@{self._where.netloc}"
        self.settings = f"n={tokens} t={temperature}"


class OpenAIChat(_ByKey):
    """Answers of a chat model of OpenAI, Azure, Ollama, vLLM and most others; one that was cut off or refused is none.

    Args:
        model: Its name there.
        url: Where the service is, with its version: ``http://127.0.0.1:11434/v1``; None is OpenAI.
        key: Its key; None where it needs none.
        tokens: Tokens that an answer may have.
        temperature: NaN leaves it to the service.
        patience: How often it is asked, and how often a minute.

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
    ) -> None:
        super().__init__("openai", _OPENAI, model, url, key, tokens, temperature)
        self.client = openai_client(self._where, path="/chat/completions", patience=patience)
        # The newer name is refused by older servers, and the older one by OpenAI's newer models.
        self._newer = {**self._body, "max_completion_tokens": tokens}
        self._body = self._newer if is_of(url, DOMAINS["OPENAI_API_KEY"]) else {**self._body, "max_tokens": tokens}

    def request(self, prompt: str) -> dict[str, Any]:
        """The JSON that asks *prompt*."""
        return self._body | {"messages": [{"role": "user", "content": prompt}]}

    def _answer(self, prompt: str) -> Read:
        name, expected = self._where.name, "an answer of openai's chat"
        body = self.request(prompt)
        try:
            with failures_of(name, expected):
                answer = self.client.chat.completions.with_raw_response.create(**body).http_response
                return read_json(answer, self.read, name, expected)
        except RefusedTextsError as exc:
            if "max_tokens" not in body or "max_completion_tokens" not in exc.said:
                raise
            self._body = self._newer
            return self._answer(prompt)

    @staticmethod
    def read(answer: Any) -> Read:
        """What an *answer* says, as JSON."""
        choice, used = answer["choices"][0], answer.get("usage") or {}
        text, ended = choice["message"]["content"], str(choice.get("finish_reason") or "")
        if isinstance(text, list):  # thoughts are parts too
            text = "".join(part["text"] for part in text if part["type"] == "text")
        if text is not None and not isinstance(text, str):
            raise TypeError("expected a text")
        return _unless_cut(text, ended), plausible(used.get("prompt_tokens"), used.get("completion_tokens")), ended


class AnthropicChat(_ByKey):
    """Answers of a chat model of Anthropic, by the arguments of `OpenAIChat`, whose *url* of None is Anthropic here."""

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        tokens: int = OUTPUT_TOKENS,
        temperature: float = nan,
        patience: Patience | None = None,
    ) -> None:
        super().__init__("anthropic", _ANTHROPIC, model, url, key, tokens, temperature)
        self._body["max_tokens"] = tokens
        self._endpoint = Endpoint(
            with_path(self._where.url, "/messages"),
            key=key,
            header="x-api-key",
            headers={"anthropic-version": _VERSION},
            patience=patience,
        )

    def _answer(self, prompt: str) -> Read:
        body = self._body | {"messages": [{"role": "user", "content": prompt}]}
        return self._endpoint.ask(body, _said, expected="an answer of anthropic's chat")


class Gemini(_Chat):
    """Answers of a Gemini model that thinks a little.

    A refusal, an empty answer and an answer that was cut off are no answer.

    Args:
        model: Such as ``gemini-3.1-pro`` or ``gemini-3.5-flash``; its key is in GEMINI_API_KEY or GOOGLE_API_KEY.
        url: Another server that speaks the protocol; None is Google.
        key: Its key; None is that of the environment, which Google alone is sent.
        thinking: How much it thinks, such as ``low``, where it knows levels; empty leaves it to the model.
        patience: How often and how fast it is asked.

    Attributes:
        client: The `google.genai.Client`.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        thinking: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.google = GoogleModel(model, url=url, key=key, patience=patience)
        self.client = self.google.client
        types = require("google.genai.types", EXTRA)
        level = thinking if thinking is not None else _THINKING if _KNOWS_LEVELS.search(model) else ""
        config = types.ThinkingConfig(thinking_level=level) if level else None
        self._config = types.GenerateContentConfig(thinking_config=config, max_output_tokens=GEMINI_TOKENS)
        self.name = model
        self.settings = f"thinking={level} n={GEMINI_TOKENS}"

    def request(self, prompt: str) -> dict[str, Any]:
        """The JSON that asks *prompt*."""
        return {**self._asked(prompt), "generationConfig": self._config.model_dump(**_AS_JSON)}

    def _answer(self, prompt: str) -> Read:
        asked = {"model": self.name, "config": self._config, **self._asked(prompt)}
        return self.google.ask(lambda: self.read(self.client.models.generate_content(**asked).model_dump(**_AS_JSON)))

    @staticmethod
    def read(answer: Any) -> Read:
        """What an *answer* says, as JSON."""
        used = answer.get("usageMetadata") or {}
        written = [used.get(name) or 0 for name in ("candidatesTokenCount", "thoughtsTokenCount")]
        usage = plausible(used.get("promptTokenCount"), sum(written))
        candidate = (answer.get("candidates") or [{}])[0]
        ended = (
            candidate.get("finishReason") or (answer.get("promptFeedback") or {}).get("blockReason") or "unspecified"
        )
        parts = (candidate.get("content") or {}).get("parts") or []
        text = "".join(part.get("text") or "" for part in parts if not part.get("thought"))
        return _unless_cut(text, ended), usage, ended

    @staticmethod
    def _asked(prompt: str) -> dict[str, Any]:
        return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}


def _unless_cut(text: str | None, ended: str) -> str | None:
    return None if ended.lower() in _CUT else text


def _said(answer: Any) -> Read:
    """What an answer of Anthropic says."""
    text = "".join(part["text"] for part in answer["content"] if part["type"] == "text")
    ended, used = str(answer.get("stop_reason") or ""), answer["usage"]
    return _unless_cut(text, ended), plausible(used["input_tokens"], used["output_tokens"]), ended
