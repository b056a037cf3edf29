"""The client of google-genai, and its failures as errors of this package."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tttembed_rag.errors import JudgeError, require
from tttembed_rag.models.client import client_options
from tttembed_rag.models.endpoint import Address
from tttembed_rag.models.retrying import BusyError, Patience, check_status

EXTRA = "gemini"


def client_of(model: str, *, url: str | None, timeout: float, patience: Patience | None = None) -> Any:
    """A `google.genai.Client` with the key in GEMINI_API_KEY or GOOGLE_API_KEY.

    It waits *timeout* seconds for the next part of an answer. *url* is another server that speaks the protocol.

    Raises:
        InputError: The address would send the key in the clear to another machine.
        JudgeError: There is no key; the message names the *model*.
    """
    if url is not None:
        Address.of(url, "a key")  # of the environment; the address may be one that no key is sent to
    genai = require("google.genai", EXTRA)
    http = require("httpx", EXTRA).Client(timeout=timeout, **client_options(patience))
    options = require("google.genai.types", EXTRA).HttpOptions(
        base_url=url, timeout=int(timeout * 1000), httpx_client=http
    )
    try:
        client = genai.Client(http_options=options)
    except ValueError as exc:
        raise JudgeError(f"{model}: expected an API key in GEMINI_API_KEY ({exc})") from exc
    weakref.finalize(client, http.close)
    return client


@contextmanager
def failures_of(model: str) -> Iterator[None]:
    """A block in which failures of google-genai become `BusyError` where they may pass, else `JudgeError`."""
    errors = require("google.genai.errors", EXTRA)
    try:
        yield
    except errors.APIError as exc:
        brief, said = f"{model}: expected an answer, got {exc.code}", str(exc.message)
        check_status(exc.code, _headers(exc), brief, said)
        raise JudgeError(brief, said) from exc
    except JudgeError:
        raise
    except Exception as exc:
        if isinstance(exc, TimeoutError) or _is_transport(exc):
            raise BusyError(f"{model}: expected an answer, got {type(exc).__name__}: {exc}") from exc
        # google-genai reads an answer of another shape with errors of all kinds, of pydantic and of json among them.
        said = " ".join(str(exc).split())
        raise JudgeError(f"{model}: expected an answer of Gemini, got {type(exc).__name__}:", said[:200]) from exc


def _headers(exc: Any) -> dict[str, str]:
    """Retry-After of an error, from its headers or from the RetryInfo that Gemini sends instead."""
    delay = (getattr(exc.response, "headers", None) or {}).get("retry-after")
    error = exc.details.get("error", exc.details) if isinstance(exc.details, dict) else {}
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        if delay is None and isinstance(detail, dict):
            delay = detail.get("retryDelay")
    return {"retry-after": str(delay).removesuffix("s")} if delay else {}


def _is_transport(exc: Exception) -> bool:
    """Whether the connection failed, in any HTTP library that google-genai may use."""
    return any(base.__name__ == "TransportError" and base.__module__.startswith("httpx") for base in type(exc).__mro__)
