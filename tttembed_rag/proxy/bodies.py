"""Bodies of requests, read up to a limit, and answers of the proxy's own, all of them JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response


async def read_json(request: Request, limit: int) -> tuple[Any, int]:
    """What the body of a request says in JSON, and how many bytes it has: at most *limit*."""
    read, rest = await whole(request.stream(), limit)
    if rest is not None:
        raise HTTPException(413, f"expected a body of at most {limit} bytes, got more")
    try:
        return orjson.loads(read), len(read)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"expected JSON ({error})") from error


async def whole(parts: AsyncIterator[bytes], limit: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """All bytes of *parts*, and None; or, where they are more than *limit*, an iterator over all of them."""
    read: list[bytes] = []
    size = 0
    async for part in parts:
        read.append(part)
        size += len(part)
        if size > limit:
            return b"", _chained(read, parts)
    return b"".join(read), None


async def _chained(read: list[bytes], parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while read:
        yield read.pop(0)
    async for part in parts:
        yield part


def json_answer(answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """*answer* as JSON."""
    return Response(orjson.dumps(answer), status, headers, media_type="application/json")
