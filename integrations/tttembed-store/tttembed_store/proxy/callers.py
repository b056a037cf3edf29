"""Who sends a request: the tenant, the task, the query id and the source that its headers or its key say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tttembed_rag.errors import InputError
from tttembed_rag.rewards.names import checked_name
from tttembed_rag.serving.context import context
from tttembed_store.sql.records import ANONYMOUS

if TYPE_CHECKING:
    from starlette.datastructures import Headers


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a request belongs: its tenant, "" for the shared one, and its task; None where nothing names one.

    The *query_id* is that of its one query, empty for that of its text. It is *known* by a key that the proxy was
    given. The *source* gives the feedback of the request; empty where nothing names one.
    """

    tenant: str | None = None
    task: str | None = None
    query_id: str = ""
    known: bool = False
    source: str = ""

    def context(self, queries: int = 0) -> context:
        """The context of a request with so many queries."""
        own_id = self.query_id if queries == 1 else ""
        return context(task=self.task, tenant=self.tenant, query_id=own_id, source=self.source)

    def check_names(self) -> None:
        """Refuse names that no store takes, with an InputError."""
        for name in ("tenant", "task", "query_id", "source"):
            checked_name(name, getattr(self, name) or "", empty=True)


class Callers:
    """Finds the caller of a request.

    With *keys*, the tenant is that of the request's key and nothing else, so that no caller can name another's; a key
    that is not among them belongs to the shared tenant. Without, the header ``X-TTT-Tenant`` names the tenant; two that
    differ, as where a gateway appends its own to a caller's, name none. The task is that of the key, else that of the
    header ``X-TTT-Task``, else *task*. The source is that of the header ``X-TTT-Source``; two that differ, or an empty
    one, are `ANONYMOUS`, as only without that header a body may name one. Headers are read as UTF-8.
    """

    def __init__(self, keys: Mapping[str, Caller] | None = None, *, task: str | None = None) -> None:
        if keys and "" in keys:
            raise InputError("keys: expected API keys, got an empty one")
        self._keys = {_digest(key): replace(caller, known=True) for key, caller in (keys or {}).items()}
        self._task = task

    @property
    def anybody(self) -> bool:
        """Whether callers need no key."""
        return not self._keys

    def find(self, headers: Headers) -> Caller:
        """The caller that sent *headers*."""
        if self._keys:
            mapped = self._keys.get(_digest(_key(headers)), Caller())
        else:
            mapped = Caller(_only(headers, "x-ttt-tenant"))
        task, query_id = ("".join(_values(headers, name)[:1]) for name in ("x-ttt-task", "x-ttt-query-id"))
        source = (_only(headers, "x-ttt-source") or ANONYMOUS) if "x-ttt-source" in headers else ""
        return replace(mapped, task=mapped.task or task or self._task, query_id=query_id, source=source)


def _only(headers: Headers, name: str) -> str | None:
    """The one value of a header; None where there is none, or where two differ."""
    values = set(_values(headers, name))
    return values.pop() if len(values) == 1 else None


def _values(headers: Headers, name: str) -> list[str]:
    """The values of a header, whose bytes are UTF-8."""
    return [value.encode("latin-1").decode("utf-8", "backslashreplace") for value in headers.getlist(name)]


def _key(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("api-key") or headers.get("x-api-key") or ""


def _digest(key: str) -> bytes:
    # A key is looked up by its digest, so that the time of the look-up says nothing about it.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
