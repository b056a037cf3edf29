"""What every client of httpx is told, ours and those of vendors: nothing may carry a key to another place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tttembed_rag.errors import require
from tttembed_rag.models.retrying import EXTRA, Patience

# Hosts that a key may be sent to over plain HTTP: this machine, to which no proxy leads.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def client_options(patience: Patience | None) -> dict[str, Any]:
    """Options of an `httpx.Client`: no redirects, which could carry a key away, and no proxy to this machine.

    What stands behind the question mark of an address may be a secret, and is in no log of httpx. Of the *patience* it
    keeps to the number of requests a minute.
    """
    hooks: list[Callable[[Any], object]] = [_hide_query]
    if patience is not None and patience.per_minute is not None:
        pyrate = require("pyrate_limiter", EXTRA)
        limiter = pyrate.Limiter(pyrate.Rate(patience.per_minute, pyrate.Duration.MINUTE))
        hooks.append(lambda _: limiter.try_acquire("request", blocking=True))
    return {
        "follow_redirects": False,
        "mounts": {f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK},
        "event_hooks": {"request": hooks},
    }


def _hide_query(request: Any) -> None:
    """Send a request of httpx to its whole address, and have httpx log that address without its query."""
    if request.url.query:
        request.extensions = {**request.extensions, "target": request.url.raw_path}
        request.url = request.url.copy_with(query=None)
