"""A service that takes requests as a file and answers within a day: what is needed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tttembed_rag.judging.batching.lines import LineJudge

# States of a batch that does not change any more.
_ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True, slots=True)
class ServiceBatch:
    """A batch, as its service describes it: its name there, its state, and the names of files of results and of errors.

    States are ``validating``, ``in_progress``, ``completed``, ``expired`` and so on. *why* it failed is said in the
    service's own words.
    """

    number: str
    state: str
    results: tuple[str, ...] = ()
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether there will be no further results."""
        return self.state in _ENDED


class BatchService(Protocol):
    """A service that a judge is asked through, a file of requests at a time.

    Attributes:
        judge: The judge, which makes the requests and reads the results.
        settling: Seconds after which a batch that was asked for, and is not in the service's list, was never made.
    """

    judge: LineJudge
    settling: float

    def upload(self, content: bytes) -> str:
        """Upload a file of requests, which costs nothing; gives the service's name for it.

        Raises:
            JudgeError: The service refused, stayed busy, or answered something else.
        """

    def create(self, requests: str, key: str) -> ServiceBatch:
        """Make a batch of the uploaded file *requests*; it is asked for once only, for it costs money.

        Raises:
            RefusedError: It was not made.
            JudgeError: Whether it was made is not known; `find` tells.
        """

    def get(self, number: str) -> ServiceBatch:
        """The batch as it is now."""

    def find(self, key: str, requests: str) -> ServiceBatch | None:
        """The batch with a key, or of an uploaded file; None where there is none."""

    def delete(self, file: str) -> None:
        """Delete a file of requests or results at the service.

        Raises:
            JudgeError: The service refused, or stayed busy.
        """

    def download(self, batch: ServiceBatch) -> Sequence[bytes]:
        """The files of results of *batch*, each whole."""


def named(name: object) -> str:
    """The *name* of a file or a batch, as a service gave it, which can be a part of an address."""
    if not isinstance(name, str) or not name.isprintable() or name.strip(".") == "":
        raise TypeError("expected a name")
    return name
