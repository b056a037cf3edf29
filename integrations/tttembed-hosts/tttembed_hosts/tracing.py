"""Runs of retrievers as services keep them that trace applications, as spans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from tttembed_store.spans import Span

from tttembed_rag.clients.options import without_secrets
from tttembed_rag.errors import DataError, InputError

__all__ = ["address_of", "asking", "bounded_client", "seconds", "span_of_retriever"]

# Bytes of an answer that are read at most.
_MOST_BYTES = 64 * 2**20
# Where the text of a document stands: in documents of LangChain, LlamaIndex and Haystack, and in plain ones.
_TEXTS = ("page_content", "content", "text")
# What a document's fields stand in where LangChain serializes it, and in results of LlamaIndex and of engines.
_WITHIN = ("kwargs", "node", "document", "payload", "metadata")


def address_of(url: str, kind: str, key: str, *, path: str = "") -> tuple[str, str]:
    """The address of a server in a URL ``KIND+https://HOST/PATH``, and the name of a project.

    That is the last part of a *path* that is expected; else it is empty.

    Raises:
        InputError: It is no such URL, lacks the *path* that is expected, or holds a login, which belongs into the
            environment variable *key*.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:  # not shown: it may be a password
        raise InputError(f"project: expected no login in the address; a key is in {key}")
    base, name = parts.path.strip("/"), ""
    if path:
        base, _, name = base.rpartition("/")
    if parts.scheme not in (f"{kind}+http", f"{kind}+https") or not parts.hostname or (path and not name):
        raise InputError(f"project: expected {kind}+http://HOST{path}, or https, got {without_secrets(url)!r}")
    return f"{parts.scheme.partition('+')[2]}://{parts.netloc}/{base}".rstrip("/"), unquote(name)


@contextmanager
def asking(service: str, project: str = "") -> Iterator[None]:
    """A block that asks a *service* by its own client, of whose many errors each is one line.

    Raises:
        DataError: Whatever goes wrong.
    """
    try:
        yield
    except Exception as exc:
        line = next(iter(str(exc).splitlines()), "")
        named = f"project {project!r}" if project else "project"
        raise DataError(f"{named}: expected an answer of {service} ({type(exc).__name__}: {line:.200})") from exc


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
    span_id: str,
    trace_id: str,
    parent_id: str | None,
    at: datetime | None,
    *,
    query: Any,
    documents: Any,
    metadata: Any,
) -> Span:
    """The span of a run that found *documents* for a *query*."""
    query, documents = _parsed(query), _parsed(documents)
    if isinstance(documents, Mapping):
        documents = documents.get("documents") or documents.get("output") or []
    attributes = {
        "openinference.span.kind": "RETRIEVER",
        "input.value": query if isinstance(query, str) else json.dumps(query),
        "input.mime_type": "text/plain" if isinstance(query, str) else "application/json",
        "retrieval.documents": [{"document": _document(document)} for document in documents]
        if isinstance(documents, list)
        else [],
        "metadata": _parsed(metadata),
    }
    return Span(span_id, trace_id, parent_id, attributes, seconds(at))


def _document(document: Any) -> dict[str, Any]:
    if isinstance(document, list) and len(document) > 1 and isinstance(document[1], int | float):  # beside its score
        document = document[0]
    if isinstance(document, str):
        return {"content": document}
    if not isinstance(document, Mapping):
        return {}
    parts = [document, *(part for name in _WITHIN if isinstance(part := document.get(name), Mapping))]
    text = next((part[name] for part in parts for name in _TEXTS if isinstance(part.get(name), str)), None)
    key = next((part["id"] for part in parts if part.get("id") and isinstance(part["id"], str | int)), None)
    return {"content": text} | ({} if key is None else {"id": str(key)})


def _parsed(field: Any) -> Any:
    """What a service has kept as JSON; another text as it is."""
    if isinstance(field, str) and (field[:1] in "[{" or field == "null"):
        with suppress(ValueError, RecursionError):
            return json.loads(field)
    return field


def seconds(moment: datetime | None) -> float | None:
    """Unix seconds; a time without a zone is UTC."""
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
