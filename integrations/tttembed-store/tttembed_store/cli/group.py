"""The group of commands on a store, the options that they share, and versions as lines that people read."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.group import Commands, say, text, together

if TYPE_CHECKING:
    from tttembed_store.sql import Store, Version

# What other distributions take for their commands.
__all__ = ["as_objects", "in_store", "named", "of_tenant", "opened", "operators"]


@click.group("store", cls=Commands, short_help="What operators do: publish, roll back, halt, export, forget.")
def operators() -> None:
    """What operators do with a store: versions, halts, what is kept and what is forgotten."""


def user() -> str:
    """The name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user without a name, in a container
        return "tttembed"


# The store, and the tenant, or all tenants, whose data in it are meant.
in_store = click.option(
    "--store", "url", required=True, envvar="TTTEMBED_STORE", metavar="URL", help="sqlite:///FILE or postgresql://..."
)
of_tenant = text("--tenant", "NAME", "Whose.  [default: the shared tenant]")
of_all = click.option("--tenant", metavar="NAME", help="Whose.  [default: all]")
as_objects = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
# What the log of changes keeps: who acts, and why.
signed = click.option("--by", default=user, show_default="you", help="Who, for the audit.")
on_record = together(signed, text("--note", "TEXT", "Why, for the audit."))


def opened(url: str, *, create: bool = False) -> Store:
    """The store at *url*; nothing is made where none is, unless *create*."""
    from tttembed_store.sql import checked_url, open_store

    file = Path(checked_url(url).database or "")
    if url.startswith("sqlite") and not file.absolute().parent.is_dir():
        raise click.UsageError(f"{url}: expected a file in an existing folder")
    return open_store(url, create=create)


def print_versions(store: Store, tenant: str, limit: int, *, as_json: bool) -> None:
    """Print a line for each version, newest first."""
    aliases = sorted(store.registry.aliases(tenant=tenant).items())
    versions = store.registry.versions(tenant=tenant, limit=limit)
    if not (as_json or versions):
        say(f"no versions of {named(tenant)}")
    for version in versions:
        stand_for = [alias for alias, number in aliases if number == version.number]
        if as_json:
            click.echo(json.dumps(version_facts(version) | {"aliases": stand_for}))
            continue
        say(
            f"{version.number:>6}  {when(version.at)}  {version.by:<14.14}  {','.join(stand_for):<10}"
            f"{version.served:>6} of {version.kept:<6} served  {store.history.in_words(tenant, version.evidence)}"
        )


def served_now(store: Store, tenant: str) -> str:
    """One line that says which version *tenant* is served now, of which tenant, or why it is served base vectors."""
    now = store.serving(tenant=tenant)
    owner = "" if now.version is None else now.version.tenant
    if now.halted is not None:
        own = ((named(name), store.registry.halted(tenant=name, own=True)) for name in (tenant, owner))
        halted, why = next((halt for halt in own if halt[1] is not None), ("all tenants", now.halted))
        what = f"base vectors, halted for {halted}{f': {why}' if why else ''}"
    elif now.version is None:
        what = "base vectors, nothing was published"
    else:
        what = f"version {now.version.number}{'' if owner == tenant else f' of {named(owner)}'}"
    return f"served to {named(tenant)}: {what}"


def named(tenant: str) -> str:
    """The name of a tenant in words."""
    return f"tenant {tenant!r}" if tenant else "the shared tenant"


def version_facts(version: Version) -> dict[str, Any]:
    """A version as a JSON object."""
    names = ("number", "tenant", "at", "by", "note", "embedder", "width", "rewarded", "kept", "served", "evidence")
    return {name: getattr(version, name) for name in names}


def when(at: float) -> str:
    """A Unix second as a date and time by UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
