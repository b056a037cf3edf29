"""The steps of a worker, as values a person can read; the docstring of `tttembed_store.worker` shows their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Action: TypeAlias = Literal[
    "judged",  # pairs were scored, or nothing is left to spend today
    "not judged",  # the judge broke down; its earlier answers are kept
    "learned nothing",  # too little is new, or there is nothing to learn from
    "published",  # a new version is served
    "abstained",  # the gate withholds every offset, and none was served before
    "kept",  # the gate withholds every offset for the first time: the live version stays
    "withdrawn",  # the gate withholds every offset again: base vectors are served
    "looked",  # the live version was tried on queries that it was not learned from
    "rolled back",  # fresh rewards contradict the live version
    "halted",  # the embedding model has changed: base vectors are served
    "resumed",  # offsets are served again
    "not probed",  # the embedding model did not answer its probe
    "failed",  # something of this tenant is broken; the others go on
    "standby",  # other workers are at work
]

# Actions that decide what is served; telemetry counts them.
DECISIONS = ("published", "abstained", "kept", "withdrawn", "rolled back", "halted", "resumed")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a worker did, for a tenant or (None) for all, with the *version* that is live now if that changed.

    The *detail* has the reason and the figures, in words.
    """

    action: Action
    detail: str
    tenant: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        who = "" if not self.tenant else f"{self.tenant}: "
        return f"{who}{self.action}: {self.detail}"
