"""`StoreLog`: a request puts what it served in a queue, which is written into a store from the background."""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Self

from numpy.typing import ArrayLike

from tttembed_rag.capture.log import Log, Logged
from tttembed_rag.capture.preparing import DAY_SECONDS, Call, Preparation, owned
from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.capture.writing import Writer
from tttembed_rag.errors import InputError, check_text
from tttembed_rag.judges.contract import Judge, checked_judge
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.context import current_query_id, said
from tttembed_rag.system import telemetry

if TYPE_CHECKING:
    from tttembed_rag.stores import Store


class Required(Enum):
    """The type of `REQUIRED`."""

    REQUIRED = "required"


# Instead of a tenant: each query must come with one, by the caller's `context`; one without is left out.
REQUIRED: Final = Required.REQUIRED

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Captured:
    """What became of the served queries that a log was given, in this process.

    Attributes:
        written: In the store, by its own count; a query that was served again counts again.
        queued: Waiting for the writer.
        dropped: Left out because the queue was full, or the log closed.
        sampled_out: Left out by the share or the daily budget.
        failed: Malformed, refused by the store, or lost at the end because it was away.
        forgotten: Left out by the store, as the query, or all of its tenant, was forgotten since it was served.
        without_tenant: Left out because it came without a tenant, where one is required.
    """

    written: int
    queued: int
    dropped: int
    sampled_out: int
    failed: int
    forgotten: int = 0
    without_tenant: int = 0


class StoreLog(Log):
    """A log like `tttembed_rag.capture.RewardLog`; its contents end in a store that all processes share.

    A call takes microseconds, never waits and never fails; wrong arguments are logged later. One thread writes
    batches, looks for vectors, and tries again while the store is away. Queries that still wait are written at exit.
    A log lives until it is closed, or its process ends.

    The tenant of a query is the one this log is fixed to, else the caller's ``with context(..., tenant=...)``. Where
    the caller says none, the query is the shared tenant's, but only in a store without other tenants: in one that has
    tenants it is left out, and counted, as nobody knows whose it is.

    Args:
        store: An open store, or its URL; it need not be reachable yet.
        judge: The judge that gave the recorded scores, or its fingerprint; empty where queries are only observed.
        scale: What the scores mean, for a fingerprint: a `Scale`, or its text.
        embed_query: Text to *base* query vector (d,), asked in the background; None where callers know it.
        embed_documents: Texts to document vectors, likewise.
        vectors: Where document vectors are looked for first; None remembers what was embedded.
        embedder: Fingerprint of the embedding model, the same wherever its vectors are captured.
        tenant: The tenant of all queries, "" for the shared one; None is the caller's `context`; `REQUIRED` is that,
            too, and leaves out queries of the shared tenant, also before the store has any other.
        share: Of the queries of a task and a day, the share that is kept, in (0, 1].
        pairs_a_day: Pairs kept in a UTC day, by this process; None is no limit.
        capacity: Served queries that may wait, >= 1.
        max_bytes: Bytes of served queries that may wait, >= 1.
        clock: Gives the Unix seconds at which a query is served.
        trusted: As the attribute, kept with the judge in the store; taps that record the order that is served set it
            to True where it is None.

    Raises:
        InputError: An option is out of its range, or there is no such scale.
        StoreError: The URL can never be that of a store.
    """

    def __init__(
        self,
        store: Store | str,
        judge: Judge | str = "",
        *,
        scale: Scale | str = "probability",
        embed_query: Callable[[str], ArrayLike] | None = None,
        embed_documents: Callable[[list[str]], Sequence[ArrayLike]] | None = None,
        vectors: TextVectors | None = None,
        embedder: str = "",
        tenant: str | Literal[Required.REQUIRED] | None = None,
        share: float = 1.0,
        pairs_a_day: int | None = None,
        capacity: int = 10_000,
        max_bytes: int = 256 * 2**20,
        clock: Callable[[], float] = time.time,
        trusted: bool | None = None,
    ) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share: expected a share in (0, 1], got {share:g}")
        if pairs_a_day is not None and pairs_a_day < 0:
            raise InputError(f"pairs_a_day: expected >= 0, got {pairs_a_day}")
        if capacity < 1:
            raise InputError(f"capacity: expected at least 1 query, got {capacity}")
        if max_bytes < 1:
            raise InputError(f"max_bytes: expected at least 1 byte, got {max_bytes}")
        if tenant is not REQUIRED:
            check_text("tenant", tenant)
        if not (isinstance(store, str) or hasattr(store, "observe")):
            raise InputError(f"store: expected an open store or its URL, got {type(store).__name__}")
        self.judge = judge if isinstance(judge, str) else checked_judge(judge).fingerprint
        self.scale = Scale.parse(scale if isinstance(judge, str) else judge.scale)
        self._tenant = tenant
        self._share = share
        self._clock = clock
        self.trusted = trusted
        models = embed_query, embed_documents, vectors or TextVectors()
        preparation = Preparation(self.scale, embedder, *models, pairs_a_day)
        self._writer = Writer(store, self, preparation, capacity=capacity, max_bytes=max_bytes)
        telemetry.watch(self)

    def note(self, call: Logged) -> None:
        """Put one call into the queue, with the caller's tenant and query id."""
        try:
            at = self._clock()
            if self._share < 1 and not self._is_sampled(call.query, call.task, at):
                self._writer.leave_out("sampled_out")
                return
            tenant = self._tenant if isinstance(self._tenant, str) else said("tenant")
            if not tenant and self._tenant is REQUIRED:
                self._writer.leave_out("without_tenant")
                return
            shown, scores = tuple(call.texts()), None if call.scores is None else tuple(call.scores)
            facts = owned(call.known)
            self.put(Call(call.query, shown, scores, call.task, tenant, at, facts, current_query_id(), call.source))
        except Exception:  # noqa: BLE001 - whatever a caller hands in, its request never fails for its log
            _log.exception("a served query was not noted")
            self._writer.leave_out("failed")

    def put(self, call: Call) -> None:
        """Put a call into the queue as it is, whatever the caller's `context` says."""
        self._writer.put(call)

    @property
    def counts(self) -> Captured:
        """What became of all served queries so far."""
        return Captured(queued=self._writer.queued, **self._writer.counts)

    @property
    def error(self) -> str | None:
        """Why the store could not be written to just now; None where it was."""
        return self._writer.reached.error()

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything noted so far is written or refused; gives whether it is after *timeout* seconds."""
        return self._writer.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Write what waits, and end; later calls are dropped. What could not be written is counted and logged.

        Args:
            timeout: Seconds that it may take, beyond the embedding that is in progress; None is as long as queries are
                being written, and gives up after 30 s in which none was.
        """
        self._writer.close(math.inf if timeout is None else timeout)

    def __repr__(self) -> str:
        return f"StoreLog({self.judge!r}, {self.counts})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self) -> Iterable[telemetry.Point]:
        """Served queries that wait, for telemetry."""
        return [telemetry.Point("tttembed.capture.queued", self._writer.queued, {})]

    def _is_sampled(self, query: str, task: str | None, at: float) -> bool:
        """Whether a query is in the day's share: the same answer for every tap, another one tomorrow."""
        drawn = zlib.crc32(f"{at // DAY_SECONDS}\n{task or DEFAULT_TASK}\n{query}".encode("utf-8", "surrogatepass"))
        return drawn < self._share * 2**32
