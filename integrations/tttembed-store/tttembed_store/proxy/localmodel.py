"""An embedding model in this process, asked as the service behind the proxy is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.errors import TTTEmbedError
from tttembed_store.proxy.shapes import asked_of
from tttembed_store.proxy.upstream import Answer, Body

_PATH = "/v1/embeddings"


class LocalModel:
    """*embedder* under the name *model*, in OpenAI's shape at ``/v1/embeddings``; it has no other path.

    Texts that a request says to be queries are embedded as queries, all others as documents.
    """

    def __init__(self, embedder: Embedder, model: str) -> None:
        self.address = "this process"
        self._embedder, self._model = embedder, model
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ask(
        self, request: Request, body: Body, *, known: bool = False, replaced: Mapping[bytes, bytes] | None = None
    ) -> Answer:
        """The vectors of the texts in *body*; *known* and *replaced* are for services at an address."""
        del known, replaced
        if request.method != "POST" or request.url.path != _PATH:
            raise HTTPException(404, f"expected POST {_PATH}, got {request.method} {request.url.path}")
        embedding = asked_of(_PATH, request.headers.get("x-ttt-role"), body) if isinstance(body, bytes) else None
        if embedding is None or embedding.model != self._model or not all(embedding.texts):
            raise HTTPException(400, f'expected {{"model": "{self._model}", "input": [text, ...]}}')
        embed = self._embedder.embed_queries if embedding.is_query else self._embedder.embed_documents
        try:
            async with self._one_at_a_time:
                vectors = await asyncio.to_thread(embed, embedding.texts)
        except TTTEmbedError as error:
            raise HTTPException(400, str(error)) from error
        data: list[Any] = [
            {"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)
        ]
        answer = {"object": "list", "model": self._model, "data": data}
        content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        return Answer(200, headers, _once(content))


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
