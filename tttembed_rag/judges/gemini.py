"""Gemini through google-genai as a function from prompt to answer."""

from __future__ import annotations

from typing import Any, Literal

from tttembed_rag.errors import require
from tttembed_rag.models.googleclient import EXTRA, client_of, failures_of
from tttembed_rag.models.retrying import Patience
from tttembed_rag.models.usage import Usage, report_usage

# Thoughts count against the limit: room for them, and for a short answer.
OUTPUT_TOKENS = 4096


class Gemini:
    """Answers of a Gemini model that thinks a little.

    A refusal, an empty answer and an answer that was cut off are no answer.

    Args:
        client: A `google.genai.Client`; it should not retry by itself.

        model: Such as ``gemini-3.1-pro`` or ``gemini-3.5-flash``.

        thinking: How much it thinks; ``low`` is understood by every model.

        output_tokens: Tokens of thoughts and answer together.

        patience: How often and how fast it is asked.
    """

    def __init__(
        self,
        client: Any,
        model: str,
        *,
        thinking: Literal["low", "medium", "high"] = "low",
        output_tokens: int = OUTPUT_TOKENS,
        patience: Patience | None = None,
    ) -> None:
        types = require("google.genai.types", EXTRA)
        self._client = client
        self._config = types.GenerateContentConfig(
            thinking_config=types.ThinkingConfig(thinking_level=thinking), max_output_tokens=output_tokens
        )
        self._ask = (patience or Patience()).caller()
        self.name = model
        self.settings = f"thinking={thinking} n={output_tokens}"

    @classmethod
    def connect(
        cls, model: str, *, base_url: str | None = None, patience: Patience | None = None, timeout: float = 120.0
    ) -> Gemini:
        """The model behind the key in GEMINI_API_KEY or GOOGLE_API_KEY.

        Args:
            model: Its name.

            base_url: Another server that speaks the protocol.

            patience: How often and how fast it is asked.

            timeout: Seconds to wait for an answer.
        """
        return cls(client_of(model, base_url=base_url, timeout=timeout), model, patience=patience)

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*, or None.

        Raises:
            JudgeError: The service refused the request or stayed busy.
        """
        return self._ask(lambda: self._answer(prompt))

    def _answer(self, prompt: str) -> str | None:
        contents = [{"role": "user", "parts": [{"text": prompt}]}]
        with failures_of(self.name):
            answer = self._client.models.generate_content(model=self.name, contents=contents, config=self._config)
        if (used := answer.usage_metadata) is not None:
            written = (used.candidates_token_count or 0) + (used.thoughts_token_count or 0)
            report_usage(Usage(1, used.prompt_token_count or 0, written))
        candidate = answer.candidates[0] if answer.candidates else None
        if candidate is None or candidate.finish_reason is None or candidate.finish_reason.name != "STOP":
            return None
        parts = (candidate.content.parts or []) if candidate.content else []
        return "".join(part.text for part in parts if part.text and not part.thought) or None
