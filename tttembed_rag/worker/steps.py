"""What a worker did, as values a person can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Action: TypeAlias = Literal[
    "judged",  # pairs were scored, or there is nothing left to spend today
    "not judged",  # the judge broke down; what it said before is kept
    "learned nothing",  # too little is new, or there is nothing to learn from
    "published",  # a new version is served
    "abstained",  # the gate withholds what was learned, and nothing was served before
    "kept",  # the gate withholds what was learned for the first time: the live version stays
    "withdrawn",  # the gate withholds what was learned again: base vectors are served
    "looked",  # the live version was tried on queries it was not learned from
    "rolled back",  # fresh rewards contradict the live version
    "drifted",  # queries or rewards are not what they were
    "halted",  # the embedding model is another one: base vectors are served
    "resumed",  # offsets are served again
    "not probed",  # the embedding model could not be asked who it is
    "failed",  # something of this tenant is broken; the others go on
    "standby",  # another worker is at work
]

# What concerns what is served.
DECISIONS = ("published", "abstained", "kept", "withdrawn", "rolled back", "halted", "resumed")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a worker did.

    Attributes:
        action: What.

        detail: Why, and with which figures, in words.

        tenant: For whom; None where it concerns all.

        version: The version that is live after it, where that changed.
    """

    action: Action
    detail: str
    tenant: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        who = "" if not self.tenant else f"{self.tenant}: "
        return f"{who}{self.action}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over one tenant.

    Attributes:
        tenant: Whose; None for what concerns all.

        steps: What was done, in order.
    """

    tenant: str | None
    steps: tuple[Step, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """What was done, without the reasons."""
        return tuple(step.action for step in self.steps)

    @property
    def version(self) -> int | None:
        """The version that went live; None if none did."""
        return next((step.version for step in reversed(self.steps) if step.version is not None), None)
