"""The rewards of a store as a folder of Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.group import CommandT

if TYPE_CHECKING:
    from tttembed_rag.stores import Store


@dataclass(frozen=True, slots=True)
class RewardExport:
    """Which rewards are written, and in how many files.

    Attributes:
        judge: The judge that gave them; empty for the one of the newest rewarded query.

        shards: Files of each table.
    """

    judge: str
    shards: int

    def write(self, store: Store, tenant: str, folder: Path) -> str:
        """Write the rewards of *tenant* to *folder*, and say so in one line."""
        judge = self.judge or store.judge(tenant=tenant)
        if judge is None:
            raise click.UsageError(f"export: expected rewards of tenant {tenant!r}, found none")
        rewards = store.rewards(judge, tenant=tenant)
        rewards.to_parquet(folder, shards=self.shards)
        return f"{folder}: {len(rewards)} queries, {rewards.budget} rewards of {judge}"


def of_rewards(command: CommandT) -> CommandT:
    """The options that export rewards instead of offsets, as one argument `rewards`."""

    @click.option("--rewards", is_flag=True, help="Write rewards, as Parquet files in the folder OUT.")
    @click.option("--judge", metavar="NAME", help="With --rewards: whose.  [default: of the newest rewarded query]")
    @click.option("--shards", type=click.IntRange(min=1), metavar="N", help="With --rewards: files.  [default: 1]")
    @wraps(command)
    def with_rewards(*arguments: Any, rewards: bool, judge: str | None, shards: int | None, **rest: Any) -> Any:
        if not rewards and (judge is not None or shards is not None):
            raise click.UsageError("--judge, --shards: expected --rewards with them")
        if rewards and rest["number"] is not None:
            raise click.UsageError("--version: expected offsets, got --rewards")
        return command(*arguments, rewards=RewardExport(judge or "", shards or 1) if rewards else None, **rest)

    return with_rewards  # type: ignore[return-value]  # click calls it by names
