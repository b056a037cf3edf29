"""A search transform of FastMCP that learns, and the middleware that tells it which tools worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from tttembed_rag.errors import require
from tttembed_rag.system.jsontext import parsed_json
from tttembed_tools import LearnedToolSearch, Turns, is_outage
from tttembed_tools.tools import causes, sent_by

if TYPE_CHECKING:
    from fastmcp import FastMCP

_CALL = "call_tool"


def learned_search(server: FastMCP[Any], search: LearnedToolSearch, *, k: int = 5, report: bool = False) -> None:
    """Replace what *server* lists by a search over its tools that learns from the calls.

    Clients see ``search_tools`` and ``call_tool``. The tools are those that a client may see, so an empty catalogue is
    enough to begin with. A tool that answers has worked; an error of its own is a failure. A service out of reach, a
    question to the user, and a task that has begun say nothing. A call belongs to the searches of its own client: over
    stdio the process has one; over HTTP it is known by its session or, without one, by the header ``X-TTT-Source``. A
    request with neither finds tools and teaches nothing. The source of its calls is that of this header, which whoever
    authenticates the clients sets, else that of the caller's `context`.

    Args:
        server: The server; its transforms and middleware grow by one.
        search: The search.
        k: Tools found at most.
        report: Whether clients see ``report_outcome`` too, by which they say whether a tool worked that they called by
            themselves. As with a call, it counts where their own search listed the tool.

    Raises:
        MissingExtraError: fastmcp is not installed.
    """
    require("fastmcp", "mcp", of="tttembed-tools")
    from fastmcp.server.dependencies import get_context, get_http_headers
    from fastmcp.server.middleware import Middleware
    from fastmcp.server.transforms.search.base import BaseSearchTransform
    from fastmcp.tools.base import Tool, ToolResult
    from mcp_types import jsonrpc

    # Codes of errors by which a server behind has gone, or waits for a person.
    no_verdict = (
        jsonrpc.CONNECTION_CLOSED,
        jsonrpc.REQUEST_TIMEOUT,
        jsonrpc.URL_ELICITATION_REQUIRED,
        jsonrpc.MISSING_REQUIRED_CLIENT_CAPABILITY,
    )
    turns = Turns(search)

    class _Transform(BaseSearchTransform):
        """Search by what was learned."""

        def _make_search_tool(self) -> Tool:
            async def search_tools(
                query: Annotated[str, "What the tool should do, in your own words"],
            ) -> str | list[dict[str, Any]]:
                """Search for tools by what they should do; the best come first."""
                found = await self._search(await self._get_visible_tools(get_context()), query)
                rendered: str | list[dict[str, Any]] = await self._render_results(found)
                return rendered

            return Tool.from_function(fn=search_tools, name=self._search_tool_name)

        async def _search(self, tools: Sequence[Tool], query: str) -> Sequence[Tool]:
            by_name = {tool.name: tool for tool in tools}
            key = _key(get_http_headers(include_all=True))
            names = await turns.asearch(key, query, self._max_results, tools)
            return [by_name[name] for name in names[: self._max_results]]

    async def report_outcome(
        tool: Annotated[str, "A tool that search_tools listed, and that was called without call_tool"],
        succeeded: Annotated[bool, "Whether it did what it was called for"],
    ) -> str:
        """Say whether a tool worked that was found here and called elsewhere."""
        headers = get_http_headers(include_all=True)
        with sent_by(headers):
            turns.used(_key(headers), tool, succeeded=succeeded)
        return "noted"

    class _Outcomes(Middleware):
        """Keep which tools worked."""

        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            headers, name = get_http_headers(include_all=True), context.message.name
            key, arguments = _key(headers), context.message.arguments
            if name == _CALL and isinstance(arguments, dict) and isinstance(text := arguments.get("arguments"), str):
                # Some clients write an argument that is an object or null as text.
                with suppress(ValueError):
                    message = context.message.model_copy(
                        update={"arguments": arguments | {"arguments": parsed_json(text.strip() or "{}")}}
                    )
                    context = context.copy(message=message)
            with sent_by(headers):
                try:
                    result = await call_next(context)
                except Exception as exc:
                    if not (is_outage(exc) or any(getattr(cause, "code", None) in no_verdict for cause in causes(exc))):
                        turns.used(key, name, succeeded=False)
                    raise
                if type(result) is ToolResult:  # other results ask for input, or say that a task has begun
                    turns.used(key, name, succeeded=not result.is_error)
                return result

    if report:
        server.add_tool(Tool.from_function(fn=report_outcome))
    server.add_transform(_Transform(max_results=k, always_visible=["report_outcome"] if report else []))
    server.add_middleware(_Outcomes())


def _key(headers: Mapping[str, str]) -> str:
    """Whose request it is, by its HTTP *headers*, which are empty where the process has one client; empty for nobody.

    FastMCP's own session id is new with each request of a client that negotiates no session.
    """
    return (headers.get("mcp-session-id") or headers.get("x-ttt-source", "")) if headers else "the client"
