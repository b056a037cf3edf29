"""Runs of retrievers as services keep them that trace applications, as spans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tttembed_store.spans import Span

from tttembed_rag.clients.options import without_secrets
from tttembed_rag.errors import InputError

__all__ = ["address_of", "bounded_client", "seconds", "span_of_retriever"]

# Bytes of an answer that are read at most.
_MOST_BYTES = 64 * 2**20
# Where the text of a document stands: in documents of LangChain, LlamaIndex and Haystack, and in plain ones.
_TEXTS = ("page_content", "content", "text")
# What a document's fields stand in where LangChain serializes it, and in results of LlamaIndex and of engines.
_WITHIN = ("kwargs", "node", "document", "payload", "metadata")


def address_of(url: str, kind: str, key: str) -> tuple[str, SplitResult]:
    """The address of a server in a URL ``KIND+https://HOST/...``, and the URL's parts.

    Raises:
        InputError: It is no such URL, or holds a login, which belongs into the environment variable *key*.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:  # not shown: it may be a password
        raise InputError(f"project: expected no login in the address; a key is in {key}")
    if parts.scheme not in (f"{kind}+http", f"{kind}+https") or not parts.hostname:
        raise InputError(f"project: expected {kind}+https://HOST, got {without_secrets(url)!r}")
    return f"{parts.scheme.partition('+')[2]}://{parts.netloc}", parts


def bounded_client() -> Any:
    """A client of httpx that follows no redirect and reads no page of more than `_MOST_BYTES`."""
    import httpx

    def bound(response: Any) -> None:
        response.headers.pop("content-encoding", None)  # none was asked for, and it could unfold to any size
        parts, left = list[bytes](), _MOST_BYTES
        for part in response.stream:
            if (left := left - len(part)) < 0:
                raise httpx.ReadError(f"expected at most {_MOST_BYTES} bytes, got more")
            parts.append(part)
        response.stream.close()
        response.stream = httpx.ByteStream(b"".join(parts))

    headers = {"accept-encoding": "identity", "connection": "close"}  # nothing is left open behind a page
    return httpx.Client(timeout=60.0, headers=headers, event_hooks={"response": [bound]})


def span_of_retriever(
    span_id: str, trace_id: str, parent_id: str | None, at: float | None, *, asked: Any, found: Any, metadata: Any
) -> Span:
    """The span of a run that was *asked* something, and has *found* documents."""
    asked, found = _parsed(asked), _parsed(found)
    if isinstance(found, Mapping):
        found = found.get("documents") or found.get("output") or []
    attributes = {
        "openinference.span.kind": "RETRIEVER",
        "input.value": asked if isinstance(asked, str) else json.dumps(asked),
        "input.mime_type": "text/plain" if isinstance(asked, str) else "application/json",
        "retrieval.documents": [{"document": _document(one)} for one in found] if isinstance(found, list) else [],
        "metadata": _parsed(metadata),
    }
    return Span(span_id, trace_id, parent_id, attributes, at)


def _document(found: Any) -> dict[str, Any]:
    if isinstance(found, list) and len(found) > 1 and isinstance(found[1], int | float):  # beside its score
        found = found[0]
    if isinstance(found, str):
        return {"content": found}
    if not isinstance(found, Mapping):
        return {}
    parts = [found, *(part for name in _WITHIN if isinstance(part := found.get(name), Mapping))]
    text = next((part[name] for part in parts for name in _TEXTS if isinstance(part.get(name), str)), None)
    key = next((part["id"] for part in parts if part.get("id") and isinstance(part["id"], str | int)), None)
    return {"content": text} | ({} if key is None else {"id": str(key)})


def _parsed(said: Any) -> Any:
    """What a service has kept as JSON; another text as it is."""
    if isinstance(said, str) and (said[:1] in "[{" or said == "null"):
        with suppress(ValueError, RecursionError):
            return json.loads(said)
    return said


def seconds(moment: datetime | None) -> float | None:
    """Unix seconds; a time without a zone is UTC."""
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
