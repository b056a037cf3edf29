"""An MCP server in front of other MCP servers: their tools behind one search that learns from what is called."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tttembed_hosts.extras import require
from tttembed_rag.errors import DataError, TTTEmbedError
from tttembed_rag.system.jsontext import parsed_json
from tttembed_rag.tools import GROWTH, LearnedToolSearch, Turns, is_outage, sent_by

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client, StdioServerParameters
    from mcp.server.lowlevel import Server

_log = logging.getLogger(__name__)
# Seconds that the servers behind may take to answer at first and to list, and that one that is away is left alone.
_PATIENCE, _PAUSE = 30.0, 5.0
# Seconds that a tool may take.
_LONGEST_CALL = 3600.0
# What a server may list: so many tools, in so many pages.
_MOST_TOOLS, _PAGES = 20_000, 1_000
# Bytes of a tool as JSON; agents read those of several tools at once.
_LONGEST_TOOL = 256 * 1024
_SEARCH, _CALL = "search_tools", "call_tool"
_TOOLS: list[dict[str, Any]] = [
    {
        "name": _SEARCH,
        "description": "Search for tools by what they should do; the best come first. Call what you find by call_tool.",
        "inputSchema": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What the tool should do, in your own words."}},
            "required": ["query"],
        },
    },
    {
        "name": _CALL,
        "description": "Call a tool that search_tools has found, by its name, with arguments after its input schema.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The name of the tool, as it was found."},
                "arguments": {"type": "object", "description": "The arguments of the tool."},
            },
            "required": ["name"],
        },
    },
]


def read_servers(path: Path) -> dict[str, StdioServerParameters | str]:
    """The servers of a file as MCP clients have it: ``{"mcpServers": {NAME: {"command": ...} or {"url": ...}}}``.

    Raises:
        DataError: The file is missing, or is something else.
    """
    require("mcp", "mcp")
    from mcp import StdioServerParameters

    expected = '{"mcpServers": {NAME: {"command": ..., "args": [...]} or {"url": ...}}}'
    try:
        found = parsed_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as exc:
        raise DataError(f"{path}: expected a JSON file of MCP servers, got {exc}") from exc
    servers = found.get("mcpServers") if isinstance(found, Mapping) else None
    if not isinstance(servers, Mapping) or not servers:
        raise DataError(f"{path}: expected {expected}, got {str(found)!r:.60}")
    targets: dict[str, StdioServerParameters | str] = {}
    for name, about in servers.items():
        url, command = (about.get(key) if isinstance(about, Mapping) else None for key in ("url", "command"))
        if isinstance(url, str):
            targets[name] = url
        elif isinstance(command, str):
            fields = {key: about[key] for key in ("command", "args", "env", "cwd") if about.get(key) is not None}
            try:
                targets[name] = StdioServerParameters.model_validate(fields)
            except ValueError as exc:
                raise DataError(f"{path}: expected {expected}, got {fields!r:.60} for {name!r}") from exc
        else:
            raise DataError(f"{path}: expected {expected}, got {about!r:.60} for {name!r}")
    return targets


class FrontedServer:
    """One of the servers behind: it is kept connected, and its tools are listed again and again.

    Args:
        name: Its name; its tools are called ``NAME.TOOL``.

        target: How it is reached: an address, or a command.

    Attributes:
        tools: Its tools as it listed them last, by the names they have here.
    """

    def __init__(self, name: str, target: Any) -> None:
        import anyio

        self.name = name
        self.tools: dict[str, types.Tool] = {}
        self.ready = anyio.Event()
        self._target = target
        self._client: Client | None = None
        self._broken = anyio.Event()
        self._too_long = self._calls = 0

    async def keep(self, changed: Callable[[FrontedServer], Any], every: float) -> None:
        """Stay connected; what it lists is told to *changed*, every so many seconds."""
        import anyio
        from mcp import Client

        while True:
            try:
                async with Client(self._target, read_timeout_seconds=_PATIENCE) as client:
                    self._client, self._broken = client, anyio.Event()
                    while not self._broken.is_set():
                        if not self._calls:  # while it works on a call, it may not answer anything else
                            self.tools = await self._listed(client)
                            await changed(self)
                        self.ready.set()
                        with anyio.move_on_after(every):
                            await self._broken.wait()
            except Exception as exc:  # noqa: BLE001 - another's server: the others go on, and it is tried again
                _log.warning("server %r: %s", self.name, _line(exc))
            self._client = None
            self.ready.set()
            await anyio.sleep(_PAUSE)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None) -> types.CallToolResult:
        """The answer of a tool, as it came.

        Raises:
            ConnectionError: The server is away.
            TimeoutError: It has not answered in time.
            MCPError: It refused the call.
        """
        import mcp_types as types
        from mcp import MCPError

        if self._client is None:
            raise ConnectionError(f"server {self.name!r} is away")
        self._calls += 1
        try:
            return await self._client.call_tool(
                self.tools[tool].name, dict(arguments or {}), read_timeout_seconds=_LONGEST_CALL
            )
        except MCPError as exc:
            if exc.code == types.CONNECTION_CLOSED:
                self._broken.set()
                raise ConnectionError(f"server {self.name!r} went away") from exc
            if exc.code == types.REQUEST_TIMEOUT:
                raise TimeoutError(f"server {self.name!r} has not answered within {_LONGEST_CALL:g} s") from exc
            raise
        except (OSError, RuntimeError) as exc:
            self._broken.set()
            raise ConnectionError(f"server {self.name!r} went away: {_line(exc)}") from exc
        finally:
            self._calls -= 1

    async def _listed(self, client: Client) -> dict[str, types.Tool]:
        tools: dict[str, types.Tool] = {}
        cursor: str | None = None
        too_long = 0
        for _ in range(_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            some = [tool for tool in page.tools if len(tool.model_dump_json()) <= _LONGEST_TOOL]
            too_long += len(page.tools) - len(some)
            tools |= {f"{self.name}.{tool.name}": tool for tool in some}
            cursor = page.next_cursor
            if not cursor or len(tools) > _MOST_TOOLS:
                break
        else:
            raise ValueError(f"expected at most {_PAGES} pages of tools, got more")
        if len(tools) > _MOST_TOOLS:
            raise ValueError(f"expected at most {_MOST_TOOLS} tools, got more")
        if too_long > self._too_long:
            _log.warning("server %r: %d tools of more than %d bytes are left out", self.name, too_long, _LONGEST_TOOL)
        self._too_long = too_long
        return tools


class Front:
    """The server that an MCP client sees.

    The source of a call is that of its header ``X-TTT-Source``, else that of the caller's `context`.

    Args:
        search: The search; the tools of the servers behind are added to it.

        servers: How each server behind is reached, by its name.

        k: Tools found at most.

        every: Seconds between two passes of learning, and between two lists of what the servers have.
    """

    def __init__(
        self, search: LearnedToolSearch, servers: Mapping[str, Any], *, k: int = 8, every: float = 60.0
    ) -> None:
        self._search = search
        self._turns = Turns(search, sessions=False)
        self._upstreams = [FrontedServer(name, target) for name, target in servers.items()]
        self._k = k
        self._every = every

    async def run(self, serve: Callable[[Server[Any]], Any]) -> None:
        """Serve until *serve*, which is given the server, returns."""
        import anyio

        async with anyio.create_task_group() as tasks:
            for upstream in self._upstreams:
                tasks.start_soon(upstream.keep, self._changed, self._every)
            with anyio.move_on_after(_PATIENCE):
                for upstream in self._upstreams:
                    await upstream.ready.wait()
            tasks.start_soon(self._learn)
            await serve(self._server())
            tasks.cancel_scope.cancel()

    def _server(self) -> Server[Any]:
        import mcp_types as types
        from mcp.server.lowlevel import Server

        listed = types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in _TOOLS])

        async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
            return listed

        async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            given = params.arguments or {}
            with sent_by({} if ctx.request is None else ctx.request.headers):
                if params.name == _SEARCH:
                    return await self._find(_key(ctx), given.get("query"))
                if params.name == _CALL:
                    return await self._call(_key(ctx), given.get("name"), given.get("arguments"))
            return _error(f"expected {_SEARCH} or {_CALL}, got {params.name!r}")

        return Server(
            "tttembed-tools", version=version("tttembed-hosts"), on_list_tools=list_tools, on_call_tool=call_tool
        )

    async def _find(self, key: str, query: Any) -> types.CallToolResult:
        import mcp_types as types

        if not isinstance(query, str):
            return _error(f"query: expected a text, got {query!r:.60}")
        known = self._known()
        names = await self._turns.asearch_among(key, query, self._k, list(known))
        found = [
            known[name].tools[name].model_dump(mode="json", by_alias=True, exclude_none=True) | {"name": name}
            for name in names
        ]
        text = types.TextContent(type="text", text=json.dumps(found, ensure_ascii=False))
        return types.CallToolResult(content=[text], structured_content={"tools": found})

    async def _call(self, key: str, name: Any, arguments: Any) -> types.CallToolResult:
        from mcp import MCPError

        upstream = self._known().get(name) if isinstance(name, str) else None
        if upstream is None:
            return _error(f"name: expected a tool that {_SEARCH} has found, got {name!r:.80}")
        if not isinstance(arguments, Mapping | None):
            return _error(f"arguments: expected an object, got {type(arguments).__name__}")
        try:
            result = await upstream.call(name, arguments)
        except MCPError as exc:
            self._turns.used(key, name, succeeded=False)
            return _error(_line(exc))
        except Exception as exc:  # noqa: BLE001 - the client must get an answer
            if not is_outage(exc):
                _log.exception("a call of %s failed", name)
            return _error(_line(exc))
        self._turns.used(key, name, succeeded=not result.is_error)
        return result

    def _known(self) -> dict[str, FrontedServer]:
        return {name: upstream for upstream in self._upstreams for name in upstream.tools}

    async def _changed(self, upstream: FrontedServer) -> None:
        """Add the tools of a server; those that are there already cost nothing."""
        from anyio import to_thread

        listed = [tool.model_copy(update={"name": name}) for name, tool in upstream.tools.items()]
        added = await to_thread.run_sync(self._search.add, listed)
        if added:
            _log.info("server %r: %d tools, %d new or changed", upstream.name, len(listed), added)

    async def _learn(self) -> None:
        import anyio

        while True:
            await anyio.sleep(self._every)
            try:
                lesson = await self._search.alearn(grown=GROWTH)
            except TTTEmbedError as exc:
                _log.warning("nothing was learned: %s", exc)
            else:
                _log.info("%s", lesson)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client on stdin and stdout until it goes away."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def serve_http(host: str, port: int) -> Callable[[Server[Any]], Any]:
    """Serve any number of clients at ``http://HOST:PORT/mcp`` until the process is told to end."""

    async def serve(server: Server[Any]) -> None:
        import uvicorn

        app = server.streamable_http_app(host=host)
        # h11 reads heads of 16 KiB, up to one read more; uvicorn's faster parser has no limit.
        config = uvicorn.Config(app, host=host, port=port, http="h11", log_level="warning")
        await uvicorn.Server(config).serve()

    return serve


def _key(ctx: Any) -> str:
    """The session of a client; where a request is its own connection, a key that no other request has."""
    session = getattr(getattr(ctx.session, "_connection", None), "session_id", None)
    if session is None and ctx.request is None:
        return "stdio"
    return str(session or uuid4())


def _error(text: str) -> types.CallToolResult:
    import mcp_types as types

    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _line(error: BaseException) -> str:
    """The first line of what an error says; of a group, of the first error in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = getattr(error, "message", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
