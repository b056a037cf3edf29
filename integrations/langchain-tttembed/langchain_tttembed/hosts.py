"""Applications that embed documents as if they were queries, recognised by the module that calls."""

from __future__ import annotations

import logging
from types import FrameType

__all__ = ["warn_of_host"]

_log = logging.getLogger(__name__)

# Modules, or packages, that embed documents with embed_query.
_HOSTS = {
    "langchain_community.vectorstores.manticore_search": "ManticoreSearch",
    "langchain_community.vectorstores.rocksetdb": "Rockset",
    "mem0": "mem0",
    "dspy": "DSPy",
}
_warned: set[str] = set()


def warn_of_host(caller: FrameType) -> None:
    """Log, once for each host, that the host of the frame *caller* may have its documents steered."""
    module = caller.f_globals.get("__name__") or ""
    host = _HOSTS.get(module) or _HOSTS.get(module.partition(".")[0])
    if host is not None and host not in _warned:
        _warned.add(host)
        _log.warning(
            "%s embeds documents as queries, so they may get an offset: give it the .base of TTTEmbeddings", host
        )
