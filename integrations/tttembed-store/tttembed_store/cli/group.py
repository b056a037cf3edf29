"""The group of commands on a store, and the options that they share."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tttembed_rag.cli.group import Commands, text, together

if TYPE_CHECKING:
    from tttembed_store.sql import Store

# What other distributions take for their commands.
__all__ = ["as_objects", "in_store", "of_tenant", "opened", "operators"]


@click.group("store", cls=Commands, short_help="What operators do: publish, roll back, halt, export, forget.")
def operators() -> None:
    """What operators do with a store: versions, halts, what is kept and what is forgotten."""


def user() -> str:
    """The name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user without a name, in a container
        return "tttembed"


# The store, and the tenant whose data in it are meant.
in_store = click.option(
    "--store", "url", required=True, envvar="TTTEMBED_STORE", metavar="URL", help="sqlite:///FILE or postgresql://..."
)
of_tenant = text("--tenant", "NAME", "Whose.  [default: the shared tenant]")
as_objects = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
# Who acts.
signed = click.option("--by", default=user, show_default="you", help="Who, for the audit.")


# The options that the log of changes keeps: who acts and why.
on_record = together(signed, text("--note", "TEXT", "Why, for the audit."))


def opened(url: str, *, create: bool = False) -> Store:
    """The store at *url*; nothing is made where none is, unless *create*."""
    from tttembed_store.sql import checked_url, open_store

    file = Path(checked_url(url).database or "")
    if url.startswith("sqlite") and not file.absolute().parent.is_dir():
        raise click.UsageError(f"{url}: expected a file in an existing folder")
    return open_store(url, create=create)
