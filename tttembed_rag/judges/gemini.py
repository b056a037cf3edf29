"""Gemini through google-genai as a function from prompt to answer."""

from __future__ import annotations

from typing import Any, Literal

from tttembed_rag.errors import require
from tttembed_rag.models.googleclient import EXTRA, GoogleModel
from tttembed_rag.models.retrying import Patience
from tttembed_rag.models.usage import Usage, plausible, report_usage

# Thoughts count against the limit: room for them, and for a short answer.
OUTPUT_TOKENS = 4096
# How a value of google-genai is written as the JSON of Gemini.
_AS_JSON: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_none": True}


class Gemini:
    """Answers of a Gemini model that thinks a little.

    A refusal, an empty answer and an answer that was cut off are no answer.

    Args:
        model: Such as ``gemini-3.1-pro`` or ``gemini-3.5-flash``; its key is in GEMINI_API_KEY or GOOGLE_API_KEY.
        url: Another server that speaks the protocol; None is Google.
        thinking: How much it thinks; ``low`` is understood by every model.
        output_tokens: Tokens of thoughts and answer together.
        patience: How often and how fast it is asked.
        timeout: Seconds to wait for the next part of an answer.

    Attributes:
        client: The `google.genai.Client`.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        thinking: Literal["low", "medium", "high"] = "low",
        output_tokens: int = OUTPUT_TOKENS,
        patience: Patience | None = None,
        timeout: float = 120.0,
    ) -> None:
        self.google = GoogleModel(model, url=url, timeout=timeout, patience=patience)
        self.client = self.google.client
        types = require("google.genai.types", EXTRA)
        self._config = types.GenerateContentConfig(
            thinking_config=types.ThinkingConfig(thinking_level=thinking), max_output_tokens=output_tokens
        )
        self.name = model
        self.settings = f"thinking={thinking} n={output_tokens}"

    def request(self, prompt: str) -> dict[str, Any]:
        """The JSON that asks *prompt*."""
        return {"contents": _contents(prompt), "generationConfig": self._config.model_dump(**_AS_JSON)}

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*, or None.

        Raises:
            JudgeError: The service refused the request or stayed busy.
        """
        generate = self.client.models.generate_content

        def answer() -> tuple[str | None, Usage | None]:
            said = generate(model=self.name, contents=_contents(prompt), config=self._config)
            return self.read(said.model_dump(**_AS_JSON))

        text, usage = self.google.ask(answer)
        report_usage(usage)
        return text or None

    @staticmethod
    def read(answer: Any) -> tuple[str | None, Usage | None]:
        """The text of an *answer*, as JSON, and its usage: None where there is none that one request can have."""
        used = answer.get("usageMetadata") or {}
        written = [used.get(name) or 0 for name in ("candidatesTokenCount", "thoughtsTokenCount")]
        usage = plausible(used.get("promptTokenCount"), sum(written))
        candidate = (answer.get("candidates") or [{}])[0]
        if candidate.get("finishReason") != "STOP":
            return None, usage
        parts = (candidate.get("content") or {}).get("parts") or []
        return "".join(part.get("text") or "" for part in parts if not part.get("thought")), usage


def _contents(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": [{"text": prompt}]}]
