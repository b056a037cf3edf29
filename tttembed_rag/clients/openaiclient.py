"""The client of `openai`, for OpenAI and every service of its protocol, and its failures as errors of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

from tttembed_rag.clients.endpoint import UNREADABLE, Address, http_client, shown
from tttembed_rag.clients.retrying import EXTRA, BusyError, Patience, check_status
from tttembed_rag.errors import JudgeError, require


def openai_client(address: Address, *, path: str = "", patience: Patience | None = None) -> Any:
    """An `openai.OpenAI` that asks *address* alone, whatever stands in the environment, and retries by itself.

    The address may end with the *path* of single requests. How long it waits before a retry is openai's matter.
    """
    openai = require("openai", EXTRA)
    patience = patience or Patience()
    bare, _, query = address.url.partition("?")
    absent = openai.Omit()
    # httpx unpacks the first part alone of what is compressed part by part, and each line of results was paid for.
    headers: dict[str, Any] = {"accept-encoding": "identity"}
    headers |= {"OpenAI-Organization": absent, "OpenAI-Project": absent}
    if address.is_azure:
        headers["api-key"] = address.key
    without = "authorization" if address.is_azure or not address.key else ""  # openai refuses to have no bearer token
    return openai.OpenAI(
        base_url=bare.rstrip("/").removesuffix(path),
        api_key=address.key or "none",
        default_query=dict(parse_qsl(query, keep_blank_values=True)),
        default_headers=headers,
        timeout=patience.timeout,
        max_retries=patience.attempts - 1,
        http_client=http_client(openai.DefaultHttpxClient, patience, without=without),
    )


@contextmanager
def failures_of(name: str, expected: str) -> Iterator[None]:
    """A block in which failures of openai become `BusyError` or `RefusedError` where they say which, else `JudgeError`.

    The message has the *name* of the service, and in words what a right answer was *expected* to be.
    """
    openai = require("openai", EXTRA)
    try:
        yield
    except openai.APIStatusError as exc:
        brief, detail = f"{name}: expected an answer, got {exc.status_code}", shown(exc.response.content)
        check_status(exc.status_code, exc.response.headers, brief, detail)
        raise JudgeError(brief, detail) from exc
    except openai.APIConnectionError as exc:
        raise BusyError(f"{name}: expected an answer, got {type(exc.__cause__ or exc).__name__}: {exc}") from exc
    except (openai.OpenAIError, *UNREADABLE) as exc:
        raise JudgeError(f"{name}: expected {expected}, got {type(exc).__name__}:", str(exc)) from exc
