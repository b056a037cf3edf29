"""Options that several commands on a store share."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tttembed_rag.cli.group import text, together

if TYPE_CHECKING:
    from tttembed_rag.stores import Store

# What other distributions take for their commands.
__all__ = ["as_objects", "in_store", "judged", "of_tenant", "opened"]

# The option that vouches for a judge.
_VOUCHED = "Whether you vouch for the judge, as you serve its order.  [default: what a store says, else the rewards]"
whether_trusted = click.option("--trusted/--untrusted", default=None, help=_VOUCHED)


def path_or_url(given: str) -> Path | str:
    """A file or folder, as a path; or the URL of a store, as it is."""
    return given if "://" in given else Path(given)


def path_alone(given: str) -> Path:
    """A path, where no store is taken; a URL is refused, and not shown, since it may hold a password."""
    if "://" in given:
        raise click.BadParameter("expected a folder or a file, got a URL: stores are not taken here")
    return Path(given)


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


# The options that the audit trail keeps: who acts and why.
on_record = together(signed, text("--note", "TEXT", "Why, for the audit."))
# The options of a judge that is asked about tools that nobody called.
judged = together(
    click.option("--judge", metavar="SPEC", help="Asked about a sample of the tools that were listed and not called."),
    click.option("--budget", default="pairs=200", metavar="CAPS", help="Of --judge, per day (UTC)."),
    text("--price", "USD", "As for `tttembed worker`."),
)
# What is told of offsets.
told = together(
    click.option("--all", "everything", is_flag=True, help="A line for every offset, private and local ones too."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per offset."),
)


def opened(url: str, *, create: bool = False) -> Store:
    """The store at *url*; nothing is made where none is, unless *create*."""
    from tttembed_rag.stores import checked_url, open_store

    file = Path(checked_url(url).database or "")
    if url.startswith("sqlite") and not file.absolute().parent.is_dir():
        raise click.UsageError(f"{url}: expected a file in an existing folder")
    return open_store(url, create=create)
