"""Pydantic AI: a search over deferred tools that learns.

    agent = Agent(..., capabilities=[tool_search(search)])

It runs here also where Anthropic or OpenAI execute it on the client's side: Pydantic AI asks the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tttembed_rag.errors import require
from tttembed_tools import LearnedToolSearch, Turns, is_outage

require("pydantic_ai.capabilities", "pydantic-ai", of="tttembed-tools")
from pydantic_ai import RunContext, exceptions  # noqa: E402
from pydantic_ai.capabilities import ToolSearch  # noqa: E402

__all__ = ["tool_search"]


def tool_search(search: LearnedToolSearch, *, k: int = 10) -> ToolSearch[Any]:
    """The capability for ``Agent(..., capabilities=[tool_search(search)])``.

    Tools with ``defer_loading=True`` are found by *search*, which is given them as they come; an empty catalogue is
    enough to begin with. A tool that returns has worked. One that raises, also to have the model try again, has failed,
    unless a service could not be reached; a call that is deferred says nothing. Searches of one run are one turn.

    Args:
        search: The search.
        k: Tools found at most.
    """
    turns = Turns(search)
    not_run = (exceptions.CallDeferred, exceptions.ApprovalRequired, exceptions.SkipToolExecution)

    async def strategy(ctx: RunContext[Any], queries: Sequence[str], tools: Sequence[Any]) -> list[str]:
        return await turns.asearch(str(ctx.run_id), " ".join(queries), k, tools)

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
                    turns.used(str(ctx.run_id), tool_def.name, succeeded=False)
                raise
            turns.used(str(ctx.run_id), tool_def.name, succeeded=True)
            return result

    return _LearnedToolSearch(strategy=strategy, max_results=k)
