"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click

from tttembed_rag.cli.group import target, together
from tttembed_rag.rewards.scales import Scale

# The option that vouches for a judge.
_VOUCHED = "Whether you vouch for the judge, as you serve its order.  [default: what a store says, else the rewards]"
whether_trusted = click.option("--trusted/--untrusted", default=None, help=_VOUCHED)


on_scale = click.option(
    "--scale",
    type=Scale.parse,
    metavar="SCALE",
    help="probability, logit or rubric:LOW,HIGH.  [default: probability; that of grades for whole numbers in a FILE]",
)
by_language = click.option("--language", is_flag=True, help="The task of a query is its language.")


def warn_of_sources(sources: Collection[str], *, trusted: bool | None) -> None:
    """Say where --trusted means nothing: for rewards that have one of *sources*."""
    if trusted and any(sources):
        click.echo("warning: --trusted: rewards with a source are never vouched for, they must show a gain", err=True)


def path_or_url(name: str) -> Path | str:
    """A file or folder, as a path; or the URL of a store, as it is or in the variable of env:NAME."""
    from tttembed_rag.serving.saved import url_of

    url = url_of(name)
    return url if "://" in url else Path(url)


def path_alone(name: str) -> Path:
    """A path, where no store is taken; a URL is refused, and not shown, since it may hold a password."""
    if "://" in name:
        raise click.BadParameter("expected a folder or a file, got a URL: stores are not taken here")
    return Path(name)


rows_written = click.option(
    "--json",
    "json_path",
    type=lambda name: Path(name) if name == "-" else target(name),
    metavar="PATH",
    help="Write the rows there; - is stdout.",
)
# How much is printed of offsets.
printed_of_offsets = together(
    click.option("--all", "everything", is_flag=True, help="A line for every offset, private and local ones too."),
    click.option("--verbose", is_flag=True, help="Also what it was learned from, and the statistics of the gate."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per offset."),
)
