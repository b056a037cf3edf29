"""Middleware for agents of LangChain: of many tools the model sees the best for the request, learned from use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from tttembed_rag.adapting import adrive, drive
from tttembed_tools import LearnedToolSearch, Turns, is_outage

__all__ = ["LearnedToolMiddleware", "asked_of"]


class LearnedToolMiddleware(AgentMiddleware[Any, Any]):
    """The model is given the tools that a learned search finds for the last message of the user, and no others.

    The agent keeps all its tools; those that the model has called stay visible for the rest of the turn. What a tool
    returns is an outcome: an error is a failure, unless a service could not be reached. A tool that interrupts the
    graph says nothing yet. Tools that the vendor runs, given as dicts, are always visible.

    Args:
        search: The search; it is given the tools as they come, so an empty catalogue is enough to begin with.
        k: Tools that are found at most.
    """

    def __init__(self, search: LearnedToolSearch, *, k: int = 8) -> None:
        super().__init__()
        self._turns = Turns(search)
        self._k = k

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the tools that are found."""
        return drive(self._model_call(request), search=lambda query: self._turns.search(*query), call=handler)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """The same in an event loop."""
        steps = self._model_call(request)
        return await adrive(steps, search=lambda query: self._turns.asearch(*query), call=handler)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Call a tool, and keep whether it worked."""
        return drive(self._tool_call(request), call=handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """The same in an event loop."""
        return await adrive(self._tool_call(request), call=handler)

    def _model_call(self, request: ModelRequest[Any]) -> Generator[tuple[str, Any], Any, ModelResponse[Any]]:
        if (message := asked_of(request.messages)) is not None:
            tools = [tool for tool in request.tools if not isinstance(tool, dict)]
            names = yield "search", (*message, self._k, tools)
            request = request.override(tools=self._visible(request, names))
        response: ModelResponse[Any] = yield "call", request
        return response

    def _tool_call(self, request: ToolCallRequest) -> Generator[tuple[str, Any], Any, ToolMessage | Command[Any]]:
        state: Any = request.state
        messages = state["messages"] if isinstance(state, dict) else getattr(state, "messages", state)
        turn = (asked_of(messages) or ("",))[0]
        try:
            result: ToolMessage | Command[Any] = yield "call", request
        except Exception as exc:
            if not (isinstance(exc, GraphBubbleUp) or is_outage(exc)):
                self._turns.used(turn, request.tool_call["name"], succeeded=False)
            raise
        is_error = isinstance(result, ToolMessage) and result.status == "error"
        self._turns.used(turn, request.tool_call["name"], succeeded=not is_error)
        return result

    def _visible(self, request: ModelRequest[Any], found: list[str]) -> list[Any]:
        """The tools that the model sees: the best first, then those it has called and the vendor's."""
        rank = {name: place for place, name in enumerate(found)}
        called = {call["name"] for message in request.messages for call in getattr(message, "tool_calls", ())}
        shown = [tool for tool in request.tools if isinstance(tool, dict) or tool.name in rank or tool.name in called]
        return sorted(shown, key=lambda tool: len(rank) if isinstance(tool, dict) else rank.get(tool.name, len(rank)))


def asked_of(messages: Sequence[Any]) -> tuple[str, str] | None:
    """A key of the turn and the text of the last message of the user; None where there is none."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage) and (text := str(message.text).strip()):
            return str(message.id or text), text
    return None
