"""`proxy_app`: the proxy, made of an address and live offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tttembed_rag.errors import InputError, require
from tttembed_rag.proxy.callers import Callers
from tttembed_rag.serving.live import LiveOffsets

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["proxy_app"]


def proxy_app(
    upstream: str,
    live: LiveOffsets,
    *,
    model: str,
    callers: Callers | None = None,
    upstream_key: str | None = None,
    limit: int = 16_000_000,
) -> Starlette:
    """An ASGI application that stands before an embedding service and steers the vectors of queries.

    Args:
        upstream: Address of the service, up to and without ``/v1``.

        live: The offsets that are served, such as `tttembed_rag.serving.follow` gives.

        model: Name of the model that the offsets were learned for; other models' vectors pass as they came.

        callers: Finds tenant and task of a request; None takes them from its headers.

        upstream_key: The service's API key, sent for callers whose key the proxy knows instead of theirs.

        limit: Bytes of a body up to which it is read, > 0; a longer one passes as it came.

    Raises:
        InputError: An argument is not what was expected.
        MissingExtraError: The extra ``serve`` is not installed.
    """
    if not model:
        raise InputError("model: expected the name of a model, got an empty one")
    if limit < 1:
        raise InputError(f"limit: expected > 0 bytes, got {limit}")
    for module in ("aiohttp", "orjson", "starlette"):
        require(module, "serve")
    from tttembed_rag.proxy.app import Proxy, application
    from tttembed_rag.proxy.upstream import Upstream

    behind = Upstream(upstream, key=upstream_key)
    return application(Proxy(behind, live, model, callers or Callers(), limit))
