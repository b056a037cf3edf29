"""The tool retriever of agents of LlamaIndex, learned from which tools worked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import ToolCallResult
from llama_index.core.objects import ObjectRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import BaseTool

from tttembed_tools import LearnedToolSearch, Turns, is_outage

__all__ = ["LearnedToolRetriever"]


class LearnedToolRetriever(ObjectRetriever[BaseTool]):
    """Tools for ``FunctionAgent(tool_retriever=...)`` in place of those of ``ObjectIndex.as_retriever()``.

    Agents ask it for the tools of a message, and again by the name of each tool that they call: then they get that
    tool. Outcomes come from the events of a run: ``await retriever.watch(agent.run(message), message)``.

    Args:
        tools: The tools.
        search: The search; the tools are added to it.
        k: Tools found at most.
    """

    def __init__(self, tools: Sequence[BaseTool], search: LearnedToolSearch, *, k: int = 8) -> None:
        self._tools = {tool.metadata.get_name(): tool for tool in tools}
        self._turns = Turns(search)
        self._k = k
        search.add(list(tools))

    def retrieve(self, str_or_query_bundle: str | QueryBundle) -> list[BaseTool]:
        """The best tools for a message, best first."""
        text = _text(str_or_query_bundle)
        if text in self._tools:
            return [self._tools[text]]
        return [self._tools[name] for name in self._turns.search(text, text, self._k, self._tools)]

    async def aretrieve(self, str_or_query_bundle: str | QueryBundle) -> list[BaseTool]:
        """The same, without holding up the event loop."""
        text = _text(str_or_query_bundle)
        if text in self._tools:
            return [self._tools[text]]
        return [self._tools[name] for name in await self._turns.asearch(text, text, self._k, self._tools)]

    async def watch(self, run: Any, message: str) -> Any:
        """The result of a run of an agent; which tools it called, and whether they worked, is kept.

        Args:
            run: What ``agent.run(message)`` gives.
            message: The message of the user that the agent was run with.
        """
        async for event in run.stream_events():
            if isinstance(event, ToolCallResult):
                output = event.tool_output
                if output.exception is None or not is_outage(output.exception):
                    self._turns.used(message, event.tool_name, succeeded=not output.is_error)
        return await run


def _text(query: str | QueryBundle) -> str:
    return query if isinstance(query, str) else query.query_str
