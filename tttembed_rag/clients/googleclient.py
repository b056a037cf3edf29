"""Models of Google through google-genai, and its failures as errors of this package."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from tttembed_rag.clients.endpoint import DOMAINS, Address, http_client, is_of
from tttembed_rag.clients.retrying import BusyError, Patience, check_status
from tttembed_rag.errors import JudgeError, require

ResultT = TypeVar("ResultT")

EXTRA = "gemini"


class GoogleModel:
    """The model of Google with that *name*, whose key is in GEMINI_API_KEY or GOOGLE_API_KEY.

    *url* is another server that speaks the protocol, to which *key* is sent alone. Its `client` is a
    `google.genai.Client`.

    Raises:
        InputError: The address would send the key in the clear to another machine.
        JudgeError: There is no key; the message names the model.
    """

    def __init__(self, name: str, *, url: str | None, key: str | None, patience: Patience | None) -> None:
        is_own = is_of(url, DOMAINS["GEMINI_API_KEY"])
        if url is not None:
            Address.of(url, "that of the environment" if is_own else key)
        self.name, patience = name, patience or Patience()
        credentials = {"api_key": key} if key or is_own else {"api_key": "none", "vertexai": False}
        genai = require("google.genai", EXTRA)
        without = "" if key or is_own else "x-goog-api-key"  # google-genai refuses to have none
        http = http_client(require("httpx", EXTRA).Client, patience, without=without)
        options = require("google.genai.types", EXTRA).HttpOptions(
            base_url=url, timeout=int(patience.timeout * 1000), httpx_client=http
        )
        try:
            self.client = genai.Client(http_options=options, **credentials)
        except ValueError as exc:
            raise JudgeError(f"{name}: expected an API key in GEMINI_API_KEY ({exc})") from exc
        weakref.finalize(self.client, http.close)
        self._retrying = patience.caller()

    def ask(self, call: Callable[[], ResultT]) -> ResultT:
        """What a *call* of the client gives, made again where that may help."""
        result: ResultT = self._retrying(self.ask_once, call)
        return result

    def ask_once(self, call: Callable[[], ResultT]) -> ResultT:
        """What a *call* of the client gives; a failure is a `BusyError` where it may pass, else a `JudgeError`."""
        expected = f"{self.name}: expected an answer"
        try:
            return call()
        except require("google.genai.errors", EXTRA).APIError as exc:
            brief, detail = f"{expected}, got {exc.code}", str(exc.message)
            check_status(exc.code, _headers(exc), brief, detail)
            raise JudgeError(brief, detail) from exc
        except JudgeError:
            raise
        except Exception as exc:
            # The connection failed, in any HTTP library that google-genai may use.
            kinds = [kind for kind in type(exc).__mro__ if kind.__module__.startswith("httpx")]
            if isinstance(exc, TimeoutError) or any(kind.__name__ == "TransportError" for kind in kinds):
                raise BusyError(f"{expected}, got {type(exc).__name__}: {exc}") from exc
            # google-genai reads an answer of another shape with errors of all kinds, of pydantic and json among them.
            detail = " ".join(str(exc).split())
            raise JudgeError(f"{expected} of Gemini, got {type(exc).__name__}:", detail[:200]) from exc


def _headers(exc: Any) -> dict[str, str]:
    """Retry-After of an error, from its headers or from the RetryInfo that Gemini sends instead."""
    headers = dict(getattr(exc.response, "headers", None) or {})
    with suppress(AttributeError, KeyError, TypeError):  # anything may stand there
        for detail in exc.details.get("error", exc.details)["details"]:
            if "retryDelay" in detail:
                headers.setdefault("retry-after", detail["retryDelay"].removesuffix("s"))
    return headers
