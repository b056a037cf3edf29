"""Gemini through google-genai as a function from prompt to answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from tttembed_rag.errors import JudgeError, require
from tttembed_rag.judges.retrying import BusyError, Patience, check_status
from tttembed_rag.judges.spending import Usage, record

EXTRA = "gemini"
# Thoughts count against the limit: room for them, and for a short answer.
OUTPUT_TOKENS = 4096


class Gemini:
    """Answers of a Gemini model that thinks a little.

    A refusal, an empty answer and one that was cut off are no answer.

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
            record(Usage(1, used.prompt_token_count or 0, written))
        candidate = answer.candidates[0] if answer.candidates else None
        if candidate is None or candidate.finish_reason is None or candidate.finish_reason.name != "STOP":
            return None
        parts = (candidate.content.parts or []) if candidate.content else []
        return "".join(part.text for part in parts if part.text and not part.thought) or None


def client_of(model: str, *, base_url: str | None, timeout: float) -> Any:
    """A `google.genai.Client` with the key in GEMINI_API_KEY or GOOGLE_API_KEY.

    Args:
        model: What it is for, to name in errors.

        base_url: Another server that speaks the protocol.

        timeout: Seconds to wait for an answer.
    """
    genai = require("google.genai", EXTRA)
    options = require("google.genai.types", EXTRA).HttpOptions(base_url=base_url, timeout=int(timeout * 1000))
    try:
        return genai.Client(http_options=options)
    except ValueError as exc:
        raise JudgeError(f"{model}: expected an API key in GEMINI_API_KEY ({exc})") from exc


@contextmanager
def failures_of(model: str) -> Iterator[None]:
    """Turns what google-genai raises into `BusyError` for what may pass, `JudgeError` for what may not."""
    errors = require("google.genai.errors", EXTRA)
    try:
        yield
    except errors.APIError as exc:
        reason = f"{model}: expected an answer, got {exc.code} {exc.message}"
        check_status(exc.code, _headers(exc), reason)
        raise JudgeError(reason) from exc
    except Exception as exc:
        if _is_transport(exc):
            raise BusyError(f"{model}: expected an answer, got {type(exc).__name__}: {exc}") from exc
        raise


def _headers(exc: Any) -> dict[str, str]:
    """Retry-After of an error, from its headers or from the RetryInfo that Gemini sends instead."""
    found = (getattr(exc.response, "headers", None) or {}).get("retry-after")
    error = exc.details.get("error", exc.details) if isinstance(exc.details, dict) else {}
    for detail in error.get("details") or ():
        if found is None and isinstance(detail, dict):
            found = detail.get("retryDelay")
    return {"retry-after": str(found).removesuffix("s")} if found else {}


def _is_transport(exc: Exception) -> bool:
    """Whether the connection failed, whichever HTTP library the installed google-genai uses."""
    return any(base.__name__ == "TransportError" and base.__module__.startswith("httpx") for base in type(exc).__mro__)
