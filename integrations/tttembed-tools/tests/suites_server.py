"""An MCP server of its own process: the tools of two suites, of which those of acme fail.

python suites_server.py [PORT]      on stdin and stdout, or over HTTP on loopback
"""

import itertools
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

COLOURS, THINGS = (
    ("red", "blue", "green", "black", "white", "grey"),
    ("mail", "file", "talk", "note", "call", "list", "form"),
)
server = MCPServer("suites")


def tool(name):
    """A tool without arguments."""

    def run() -> str:
        if name.startswith("acme_"):
            raise ToolError("not in this suite")
        return f"{name} is done"

    return run


for suite, colour, thing in itertools.product(("acme", "zeta"), COLOURS, THINGS):
    text = f"Handle a {colour}{thing} in the {suite} suite"
    server.add_tool(tool(f"{suite}_{colour}{thing}"), name=f"{suite}_{colour}{thing}", description=text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
