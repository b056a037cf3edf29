"""Live offsets for hosts that save their configuration: what is saved names where offsets come from, never a vector.

A *store* is named by its URL, by ``env:NAME`` for a URL in an environment variable, or by the path of an offsets file.
A URL with a password is refused, since a host writes its configuration into tables and collections.
"""

from __future__ import annotations

import logging
import os
import re
from urllib.parse import parse_qs

from tttembed_rag.errors import InputError, TTTEmbedError
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.serving.live import LiveOffsets
from tttembed_rag.serving.steering import Steering
from tttembed_rag.system.extensions import of_store

_log = logging.getLogger(__name__)
_ENV = "env:"
# A password, as SQLAlchemy reads one: unlike other parsers it takes strokes, question marks and hashes for parts of it.
_PASSWORD = re.compile("[^:]+://[^:/@]*:[^@]+@")


def checked_store(store: str) -> str:
    """*store* if it may be saved: it is the name of one, and its URL holds no password."""
    if not isinstance(store, str) or not store or store == _ENV:
        raise InputError(f"store: expected a URL, env:NAME or an offsets file, got {store!r}")
    options = parse_qs(store.partition("?")[2])
    if "://" in store and (_PASSWORD.match(store) or any("password" in name for name in options)):
        raise InputError("store: expected no password in what a host saves: put the URL in a variable, env:NAME")
    return store


def url_of(store: str) -> str:
    """The URL or file that *store* names; an InputError where its environment variable is not set."""
    if not store.startswith(_ENV):
        return store
    name = store[len(_ENV) :]
    if not (url := os.environ.get(name, "")):
        raise InputError(f"store: expected the URL of a store in the environment variable {name}, got none")
    return url


def steering_of(
    store: str, *, task: str | None = None, tenant: str | None = None, embedder: str = "", or_base: bool = False
) -> Steering:
    """Steering with the offsets that *store* names; a task of None is that of the caller's `context`.

    The `context` says whose offsets are served too. A host with a *tenant* of its own opens one for it; that tenant's
    offsets are read now.
    Offsets that were learned for another model than *embedder* are not served; an empty one does not look. With
    *or_base*, for a query that waits, an error is logged, and base vectors are served.

    Raises:
        InputError: There is no such name, or a *tenant* is named beside a file, which serves all tenants alike.
    """
    try:
        url = url_of(store)
        if "://" in url:
            follow = of_store("follow", brings="following a store is a part")
            return Steering(follow(url, tenants=[tenant or ""], embedder=embedder), task)
        if tenant is not None:
            message = "tenant: expected none beside an offsets file, which serves all alike, got"
            raise InputError(f"{message} {tenant!r:.80}")
        offsets = Offsets.load(url)
        learned_for = str(offsets.settings.get("embedder", ""))
        if embedder and learned_for and learned_for != embedder:
            reason = f"learned for {learned_for}, not for {embedder}"
            _log.warning("%s: base vectors are served: %s", url, reason)
            return Steering(LiveOffsets(reason=reason), task)
        return Steering(offsets, task)
    except TTTEmbedError as error:
        if not or_base:
            raise
        _log.error("base vectors are served until this process starts again: %s", error)
        return Steering(LiveOffsets(reason=error.brief))
