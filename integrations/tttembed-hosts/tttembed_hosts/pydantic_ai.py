"""Pydantic AI: an embedding model whose queries are steered, and a search over deferred tools that learns.

    embedder = Embedder(TTTEmbeddingModel("openai:text-embedding-3-small", offsets=follow("sqlite:///ttt.db")))
    await embedder.embed_query("how do I get a refund?")
    agent = Agent(..., capabilities=[tool_search(search)])

Calls of an embedding model name the role, so documents pass untouched. A tool that embeds documents with
``embed_query`` would steer them: give it the wrapped model. The search over tools runs here also where Anthropic or
OpenAI execute it on the client's side: Pydantic AI asks the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tttembed_hosts.extras import require
from tttembed_rag import Offsets
from tttembed_rag.errors import InputError
from tttembed_rag.search import LearnedToolSearch, Turns, is_outage
from tttembed_rag.serving import LiveOffsets, Steering, TaskSource
from tttembed_rag.serving.saved import steered_each

require("pydantic_ai.embeddings", "pydantic-ai")
from pydantic_ai import RunContext, exceptions  # noqa: E402
from pydantic_ai.capabilities import ToolSearch  # noqa: E402
from pydantic_ai.embeddings import EmbeddingModel, EmbeddingResult, EmbeddingSettings  # noqa: E402
from pydantic_ai.embeddings.result import EmbedInputType  # noqa: E402
from pydantic_ai.embeddings.wrapper import WrapperEmbeddingModel  # noqa: E402

__all__ = ["TTTEmbeddingModel", "tool_search"]


class TTTEmbeddingModel(WrapperEmbeddingModel):
    """The wrapped model, with an offset added to the vectors of queries.

    Args:
        wrapped: The model, or its name such as ``openai:text-embedding-3-small``.
        offsets: Learned offsets; `LiveOffsets` where they are replaced while serving.
        task: The task of every query, or a function from query text to task; a caller's
            ``with context(...)`` comes before the function.

    Raises:
        InputError: *wrapped* is wrapped already, *offsets* are no offsets, or *task* is something else.
    """

    def __init__(
        self, wrapped: EmbeddingModel | str, *, offsets: Offsets | LiveOffsets, task: TaskSource = None
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
        return replace(result, embeddings=steered_each(self._steering, result.embeddings, texts))


def tool_search(search: LearnedToolSearch, *, task: str | None = None, k: int = 10) -> ToolSearch[Any]:
    """The capability for ``Agent(..., capabilities=[tool_search(search)])``.

    Tools with ``defer_loading=True`` are found by *search*, which is given them as they come; an empty catalogue is
    enough to begin with. A tool that returns has worked. One that raises, also to have the model try again, has failed,
    unless a service could not be reached; a call that is deferred says nothing. Searches of one run are one turn.

    Args:
        search: The search.
        task: The task key of all requests; None is the caller's `context`.
        k: Tools found at most.
    """
    turns = Turns(search, task)
    not_run = (exceptions.CallDeferred, exceptions.ApprovalRequired, exceptions.SkipToolExecution)

    async def strategy(ctx: RunContext[Any], queries: Sequence[str], tools: Sequence[Any]) -> list[str]:
        return await turns.asearch(_key(ctx), " ".join(queries), k, tools)

    @dataclass
    class _LearnedToolSearch(ToolSearch[Any]):
        """Tool search with the outcomes of the tools it found."""

        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:  # noqa: ARG002 - the framework names it
            """Execute a tool, and keep whether it worked."""
            try:
                result = await handler(args)
            except not_run:
                raise
            except Exception as exc:
                if not is_outage(exc):
                    turns.used(_key(ctx), tool_def.name, succeeded=False)
                raise
            turns.used(_key(ctx), tool_def.name, succeeded=True)
            return result

    return _LearnedToolSearch(strategy=strategy, max_results=k)


def _key(ctx: Any) -> str:
    return str(ctx.run_id)
