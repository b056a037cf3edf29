"""MCP servers behind one search that learns: FastMCP's proxy of each, and `learned_search` over all their tools."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tttembed_rag.errors import DataError, require
from tttembed_rag.system.jsontext import parsed_json
from tttembed_tools import LearnedToolSearch
from tttembed_tools.catalog import SERVER_META
from tttembed_tools.hosts.fastmcp import learned_search

require("fastmcp", "mcp", of="tttembed-tools")
import anyio  # noqa: E402 - FastMCP brings it
from fastmcp import FastMCP  # noqa: E402
from fastmcp.exceptions import NotFoundError  # noqa: E402
from fastmcp.mcp_config import MCPConfig  # noqa: E402
from fastmcp.server import create_proxy  # noqa: E402
from fastmcp.server.middleware import Middleware  # noqa: E402
from fastmcp.server.providers.proxy import ProxyClient  # noqa: E402

if TYPE_CHECKING:
    from fastmcp.client.transports import ClientTransport
    from fastmcp.tools.base import Tool

__all__ = ["described", "front", "read_servers"]

_log = logging.getLogger(__name__)
# Seconds that a server may take to list its tools, and that a tool may take.
_PATIENCE, _LONGEST_CALL = 30.0, 3600.0
# What is searched of a server: so many tools, each of so many bytes as JSON; agents read those of several at once.
_MOST_TOOLS, _LONGEST_TOOL = 20_000, 256 * 1024
# A variable of the environment; and how clients name the tools of a server that are off, and those that are on.
_VARIABLE = re.compile(r"\$\{(?:env:)?([^}\"]*?)(:-[^}\"]*)?\}")
_OFF, _ON = ("disabledTools", "excludeTools"), ("tools", "includeTools")


def read_servers(path: Path) -> dict[str, ClientTransport]:
    """How each server of a file is reached, as MCP clients have it: ``{"mcpServers": {NAME: {"command": ...}}}``.

    A server or a tool that is switched off there is left out. ``${NAME}`` and ``${NAME:-DEFAULT}`` are variables.

    Raises:
        DataError: The file is missing, or is something else, a variable is not set, or only some tools are switched on.
            No value of it is shown: it may be a secret.
    """
    try:
        found = parsed_json(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as exc:
        raise DataError(f"{path}: expected a JSON file of MCP servers, found none ({type(exc).__name__})") from None
    servers = found.get("mcpServers") if isinstance(found, Mapping) else None
    if not isinstance(servers, Mapping) or not servers:
        raise DataError(f'{path}: expected {{"mcpServers": {{NAME: {{"command": ...}} or {{"url": ...}}}}}}')
    reached: dict[str, ClientTransport] = {}
    for name, about in servers.items():
        try:
            if about.get("disabled") is True or about.get("enabled") is False:
                _log.warning("server %r is switched off", name)
                continue
            config = MCPConfig.model_validate({"mcpServers": {name: _entry(about)}})
            reached[name] = config.mcpServers[name].to_transport()
        except LookupError as exc:
            raise DataError(f"{path}: {name!r}: {exc.args[0]}") from None
        except (AttributeError, TypeError, ValueError):
            raise DataError(
                f'{path}: expected {{"command": ..., "args": [...]}} or {{"url": ...}} for {name!r}'
            ) from None
    return reached


def _entry(about: dict[str, Any]) -> dict[str, Any]:
    """The entry of a server with its variables filled, and its tools that are off as FastMCP says it."""
    for key in (*_OFF, *_ON):
        listed = about.get(key)
        if listed is not None and type(listed) not in (list, dict):
            raise LookupError(f"expected a list of tools in {key!r}, got {type(listed).__name__}")
        if key in _ON and isinstance(listed, list) and "*" not in listed:
            raise LookupError(f"expected the tools that are off, in {_OFF[0]!r}, got those that are on, in {key!r}")
    about = json.loads(_VARIABLE.sub(_variable, json.dumps(about)))
    off = {tool: {"enabled": False} for key in _OFF for tool in about.get(key) or ()}
    tools = about.get("tools")
    return about | {"tools": (tools if isinstance(tools, dict) else {}) | off} if off else about


def _variable(match: re.Match[str]) -> str:
    """The value of a variable as it stands within JSON."""
    name, default = match.groups()
    if name in os.environ:
        return json.dumps(os.environ[name])[1:-1]
    if default is None:
        raise LookupError(f"expected the variable {name!r} in the environment, found none")
    return str(default[2:])


def described(path: Path) -> dict[str, str]:
    """What the servers of such a file are for, of those whose entry has a ``description``."""
    servers = parsed_json(path.read_text(encoding="utf-8-sig"))["mcpServers"]
    return {name: about["description"] for name, about in servers.items() if isinstance(about.get("description"), str)}


def front(
    servers: Mapping[str, ClientTransport],
    search: LearnedToolSearch,
    *,
    about: Mapping[str, str] | None = None,
    k: int = 8,
    every: float = 60.0,
    report: bool = False,
) -> FastMCP[Any]:
    """The server that MCP clients see: ``search_tools`` and ``call_tool`` over the tools of all *servers*.

    A tool is called ``SERVER_TOOL``. One that its server no longer lists leaves the search; where tools of two servers
    are called the same, neither is found or called.

    Args:
        servers: How each server behind is reached, by its name.
        search: The search.
        about: What some servers are for, by their names: their tools are found by it too.
        k: Tools found at most.
        every: Seconds after which a server is asked again what it has.
        report: As for `learned_search`.
    """
    server = FastMCP[Any]("tttembed-tools")
    names: dict[str, set[str]] = {}
    for name, transport in servers.items():
        client = ProxyClient(transport, timeout=_LONGEST_CALL, init_timeout=_PATIENCE)
        proxy = create_proxy(client, name=name, provider_error_strategy="raise")
        proxy.add_middleware(_Listing(name, search, every, (about or {}).get(name, ""), names))
        server.mount(proxy, namespace=name)
    learned_search(server, search, k=k, report=report)
    return server


class _Listing(Middleware):
    """What a server lists, kept for some seconds; where it does not answer, what it listed last.

    The *names* of the tools of all servers are shared, by server.
    """

    def __init__(
        self, name: str, search: LearnedToolSearch, every: float, about: str, names: dict[str, set[str]]
    ) -> None:
        self._name = name
        self._about = about
        self._search = search
        self._every = every
        self._names = names
        self._tools: list[Tool] = []
        self._until = 0.0
        self._asking = anyio.Lock()

    async def on_list_tools(self, context: Any, call_next: Any) -> Sequence[Tool]:
        """The tools of the server."""
        async with self._asking:
            if time.monotonic() >= self._until:
                try:
                    with anyio.fail_after(_PATIENCE):
                        listed = await call_next(context)
                    await self._keep(listed)
                except Exception as exc:  # noqa: BLE001 - another's server: the tools of the others are found
                    _log.warning("server %r: %s", self._name, _kind(exc))
                self._until = time.monotonic() + self._every
            return [tool for tool in self._tools if not self._is_double(tool.name)]

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        """What a tool of the server answers."""
        if self._is_double(name := context.message.name):
            raise NotFoundError(f"{self._name}_{name} is a tool of several servers: expected servers of other names")
        return await call_next(context)

    def _is_double(self, name: str) -> bool:
        return sum(f"{self._name}_{name}" in names for names in self._names.values()) > 1

    async def _keep(self, listed: Sequence[Tool]) -> None:
        readable = [tool for tool in listed if len(tool.to_mcp_tool().model_dump_json()) <= _LONGEST_TOOL][:_MOST_TOOLS]
        if many := len(listed) - len(readable):
            _log.warning("server %r: %d tools are left out, too long or too many", self._name, many)
        here = {f"{self._name}_{tool.name}" for tool in readable}
        if gone := self._names.get(self._name, set()) - here:
            await anyio.to_thread.run_sync(self._search.remove, gone)
        self._names[self._name] = here
        if double := [tool.name for tool in readable if self._is_double(tool.name)]:
            _log.warning("server %r: other servers have tools of these names: %s", self._name, ", ".join(double[:3]))
        meta = {SERVER_META: f"{self._name}: {self._about}"} if self._about else {}
        self._tools = [tool.model_copy(update={"meta": (tool.meta or {}) | meta}) for tool in readable]


def _kind(error: BaseException) -> str:
    """What an error is at its root, without a word of its own: it may quote an address or a command with a secret."""
    while inner := error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__:
        error = inner
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}{f': {reason}' if reason else ''}"
