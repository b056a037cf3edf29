"""The command itself, and what its subcommands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from tttembed_rag.errors import TTTEmbedError
from tttembed_rag.system.extensions import extension, extensions
from tttembed_rag.system.files import write_whole
from tttembed_rag.system.terminal import printable

# What other distributions take for their commands.
__all__ = ["Commands", "counted", "main", "target"]

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
ValueT = TypeVar("ValueT")

# Characters of either end of an error that are printed: it may quote a line of a file, however long.
_END = 500


@contextmanager
def said_in_one_line() -> Iterator[None]:
    """Turns the package's own errors within the block, and those of files, into one line and exit code 2."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has seen enough: not bad input
    except (TTTEmbedError, OSError) as exc:
        message = printable(str(exc))
        raise click.UsageError(
            message if len(message) <= 2 * _END else f"{message[:_END]} ... {message[-_END:]}"
        ) from exc


# Commands that other distributions bring, with their names, by the group they are in.
_ELSEWHERE = {
    "tttembed.commands": {
        **dict.fromkeys(("report", "serve", "store", "worker"), "tttembed-store"),
        **dict.fromkeys(("demo", "tools"), "tttembed-tools"),
    },
    "tttembed.commands.audit": {"read": "tttembed-store"},
    "tttembed.commands.store": dict.fromkeys(("annotate", "judgments"), "tttembed-hosts"),
}


class Commands(click.Group):
    """Says errors in one line.

    Commands of other distributions are found by their entry points, and imported where one of them is asked for.
    """

    group_class = type

    @property
    def _added(self) -> str:
        return "tttembed.commands" if self is main else f"tttembed.commands.{self.name}"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands of the group."""
        return sorted({*super().list_commands(ctx), *extensions(self._added)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None where there is none."""
        own = super().get_command(ctx, cmd_name)
        elsewhere = _ELSEWHERE.get(self._added, {})
        if own is not None or cmd_name not in (*extensions(self._added), *elsewhere):
            return own
        brings, of = f"`{ctx.command_path} {cmd_name}` is a command", elsewhere.get(cmd_name, "tttembed-hosts")
        command: click.Command = extension(self._added, cmd_name, brings=brings, of=of)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of ours end it in one line."""
        with said_in_one_line():
            return super().invoke(ctx)


class Many(click.ParamType[tuple[Any, ...]]):
    """Values separated by commas."""

    def __init__(self, convert: Callable[[str], ValueT], name: str) -> None:
        self._convert = convert
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """The values, each converted."""
        try:
            return tuple(self._convert(part.strip()) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(f"expected values separated by commas, got {value!r}", param, ctx)


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


@click.group(cls=Commands, context_settings=_SETTINGS)
@click.version_option(package_name="tttembed-rag", prog_name="tttembed", hidden=True)  # help fits a screen
def main() -> None:
    """Learn small offsets for a frozen retriever from rewards, where they help."""


def counted(name: str, default: int, what: str, *, least: int = 1) -> Callable[[CommandT], CommandT]:
    """The option *name*, a number of at least *least*."""
    number = click.IntRange(min=least)
    return click.option(name, default=default, type=number, metavar="N", help=what)


def together(*options: Callable[[Any], Any]) -> Callable[[CommandT], CommandT]:
    """Several *options* as one decorator."""

    def decorated(command: CommandT) -> CommandT:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def text(name: str, metavar: str, what: str) -> Callable[[CommandT], CommandT]:
    """The option *name*, a text that is empty where it is not given."""
    return click.option(name, default="", show_default=False, metavar=metavar, help=what)


def target(name: str) -> Path:
    """The type of a file to write, refused in a missing folder before the work starts."""
    path = Path(name)
    folder = path.absolute().parent
    if name == "-" or path.is_dir() or not folder.is_dir():
        raise click.UsageError(f"{path}: expected a file in an existing folder")
    if not os.access(folder, os.W_OK):
        raise click.UsageError(f"{path}: expected a folder that you may write to")
    return path


def say(line: str) -> None:
    """Print a line for people, without control characters that may come from a store or a file."""
    click.echo(printable(line))


def write_json(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write *rows* to a file, or to stdout where the path is -."""
    text = json.dumps(rows, indent=1)
    if str(path) == "-":
        click.echo(text)
    else:
        write_whole(path, f"{text}\n".encode())
