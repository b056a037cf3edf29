"""Pydantic AI: an embedding model whose queries are steered.

    embedder = Embedder(TTTEmbeddingModel("openai:text-embedding-3-small", offsets=follow("sqlite:///ttt.db")))
    await embedder.embed_query("how do I get a refund?")

Calls of an embedding model name the role, so documents pass untouched. A tool that embeds documents with
``embed_query`` would steer them: give it the wrapped model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tttembed_hosts.extras import require
from tttembed_rag import InputError, Offsets, Steering
from tttembed_rag.adapting import OffsetSupplier, TaskSource

require("pydantic_ai.embeddings", "pydantic-ai")
from pydantic_ai.embeddings import EmbeddingModel, EmbeddingResult, EmbeddingSettings  # noqa: E402
from pydantic_ai.embeddings.result import EmbedInputType  # noqa: E402
from pydantic_ai.embeddings.wrapper import WrapperEmbeddingModel  # noqa: E402

__all__ = ["TTTEmbeddingModel"]


class TTTEmbeddingModel(WrapperEmbeddingModel):
    """The wrapped model, with an offset added to the vectors of queries.

    Args:
        wrapped: The model, or its name such as ``openai:text-embedding-3-small``.
        offsets: Learned offsets; `LiveOffsets`, or a store that is followed, where they are replaced while serving.
        task: The task of every query, or a function from query text to task; a caller's
            ``with context(...)`` comes before the function.

    Raises:
        InputError: *wrapped* is wrapped already, *offsets* are no offsets, or *task* is something else.
    """

    def __init__(
        self, wrapped: EmbeddingModel | str, *, offsets: Offsets | OffsetSupplier, task: TaskSource = None
    ) -> None:
        if isinstance(wrapped, TTTEmbeddingModel):
            raise InputError("wrapped: expected a model without offsets, got TTTEmbeddingModel; pass its .wrapped")
        super().__init__(wrapped)
        self._steering = Steering(offsets, task)

    async def embed(
        self, inputs: str | Sequence[str], *, input_type: EmbedInputType, settings: EmbeddingSettings | None = None
    ) -> EmbeddingResult:
        """The wrapped model's result; vectors of queries with their offset."""
        result = await self.wrapped.embed(inputs, input_type=input_type, settings=settings)
        if input_type != "query":
            return result
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        return replace(result, embeddings=self._steering.apply_each(result.embeddings, texts))
