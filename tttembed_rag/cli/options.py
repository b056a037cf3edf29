"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from tttembed_rag.cli.group import target, together

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


rows_written = click.option(
    "--json", "json_path", type=target, metavar="PATH", help="Write the rows there; - is stdout."
)
# What is told of offsets.
told = together(
    click.option("--all", "everything", is_flag=True, help="A line for every offset, private and local ones too."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per offset."),
)
