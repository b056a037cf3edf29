"""What was asked and which tools were called for it: kept in this process, or in a store that many processes share."""

from __future__ import annotations

import json
import socket
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4
from zlib import crc32

from tttembed_rag.capture.log import Known
from tttembed_rag.capture.preparing import Call, owned
from tttembed_rag.capture.storelog import StoreLog
from tttembed_rag.errors import InputError, LeaseLost, Superseded
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.rewards.observations import TOOL_CALLS
from tttembed_rag.search.catalog import Card
from tttembed_rag.serving.following import follow
from tttembed_rag.serving.live import LiveOffsets
from tttembed_rag.vectors.checks import FloatArray

if TYPE_CHECKING:
    from tttembed_rag.stores import Store
    from tttembed_rag.worker.holding import Holding

# Requests learned from, the last ones of each source; tools of one request that are read.
LAST, _DEPTH = 2000, 200
# Seconds that others wait for a process that was killed while it learned.
_SECONDS = 60.0
# Seconds that a caller waits at most until what it said is written.
_WRITTEN = 5.0
# Digests that are kept of requests that were learned from: searches with other catalogues may share the store.
_SEEN = 4 * LAST


@dataclass(frozen=True, slots=True, eq=False)
class PastRequest:
    """A request of an agent for which tools were called, with its base vector (d,).

    Its task is a server or a namespace. Its id is unique within that, and empty while it is noted, for that of its
    text. *outcomes* are rewards of tools by the keys of their cards; several sources may call tools for the same
    request.
    """

    query_id: str
    query: str
    vector: FloatArray
    task: str
    outcomes: Mapping[str, float]
    source: str = ""

    @property
    def digest(self) -> int:
        """A number of 32 bits that stands for the request with its outcomes."""
        return crc32(json.dumps([self.task, self.query_id, self.source, sorted(self.outcomes.items())]).encode())


class InProcess:
    """A memory of this process, safe between threads.

    Beyond `LAST` requests of a tenant, the oldest of the source with the most requests is forgotten.
    """

    def __init__(self) -> None:
        self.live = LiveOffsets()
        # By tenant, the vector and the outcomes of each task, request and source.
        self._kept: dict[str, OrderedDict[tuple[str, str, str], tuple[FloatArray, dict[str, float]]]] = {}
        self._versions: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        self._lock = Lock()

    def note(self, request: PastRequest, card: Card, vector: FloatArray, tenant: str | None, at: float) -> None:  # noqa: ARG002 - a store keeps them
        """Keep the outcome of one call of a tool with a *card* and its *vector* (d,)."""
        key = (request.task, request.query, request.source)
        with self._lock:
            kept = self._kept.setdefault(tenant or "", OrderedDict())
            kept.setdefault(key, (request.vector, {}))[1].update(request.outcomes)
            kept.move_to_end(key)
            if len(kept) > LAST:
                ((most, _),) = Counter(source for *_, source in kept).most_common(1)
                del kept[next(one for one in kept if one[2] == most)]

    def requests(self, tenant: str, width: int) -> list[PastRequest]:
        """The last requests of a tenant with vectors (width,), newest first."""
        with self._lock:
            return [
                PastRequest(query, query, vector, task, dict(outcomes), source)
                for (task, query, source), (vector, outcomes) in reversed(self._kept.get(tenant, OrderedDict()).items())
                if len(vector) == width
            ]

    def tenants(self) -> list[str]:
        """The tenants that have requests."""
        with self._lock:
            return sorted(self._kept)

    def seen(self, tenant: str) -> set[int]:
        """Digests of the requests that were learned from, or in vain."""
        return self._seen.get(tenant, set())

    def alone(self, tenant: str) -> AbstractContextManager[Holding | None]:  # noqa: ARG002 - a store has other learners
        """Nothing: no other process learns from it, and nothing is forgotten."""
        return nullcontext()

    def see(self, digests: Collection[int], tenant: str, holding: Holding | None) -> None:  # noqa: ARG002 - likewise
        """Add the digests of requests that were learned from now."""
        self._seen[tenant] = self.seen(tenant).union(digests)

    def version(self, tenant: str) -> int:
        """How often something was published to a tenant."""
        return self._versions.get(tenant, 0)

    def publish(self, offsets: Offsets, tenant: str, *, instead_of: int, **_for_a_store: object) -> bool:
        """Serve *offsets* to a tenant; False where another version than *instead_of* is served meanwhile."""
        with self._lock:
            if self.version(tenant) != instead_of:
                return False
            self.live.for_tenant(tenant).publish(offsets)
            self._versions[tenant] = instead_of + 1
            return True

    def flush(self) -> bool:
        """True: nothing waits."""
        return True

    def close(self) -> None:
        """Nothing."""


class InStore:
    """A memory in a store: outcomes are written from the background, what is published reaches all processes.

    Raises:
        StoreError: It cannot be opened.
        InputError: It keeps no texts, which BM25 reads.
    """

    def __init__(self, store: Store | str, embedder: str) -> None:
        from tttembed_rag.stores import open_store

        self.store, self._is_own = (open_store(store), True) if isinstance(store, str) else (store, False)
        if not self.store.texts:
            raise InputError("store: expected one that keeps texts, which BM25 reads, got one without texts")
        self._embedder = embedder
        self._log = StoreLog(self.store, TOOL_CALLS, embedder=embedder)
        self.live = follow(self.store, embedder=embedder)

    def note(self, request: PastRequest, card: Card, vector: FloatArray, tenant: str | None, at: float) -> None:
        """Keep the outcome of one call of a request that was searched *at* a Unix second; it is written a moment later.

        Without a tenant, `StoreLog` decides.
        """
        known = owned(Known(request.vector, vector[None], doc_ids=[card.key]))
        rewards = tuple(request.outcomes.values())
        self._log.put(Call(request.query, (card.text,), rewards, request.task, tenant, at, known, "", request.source))

    def requests(self, tenant: str, width: int) -> list[PastRequest]:
        """The last requests of a tenant with vectors (width,), newest first.

        Raises:
            StoreUnavailable: The store cannot be read now.
        """
        self._log.flush()
        served = self.store.history.recent(
            tenant, width=width, embedder=self._embedder, judge=TOOL_CALLS, limit=LAST, depth=_DEPTH, by_source=True
        )
        return [
            PastRequest(one.query_id, one.query, one.vector, one.task, outcomes, one.source)
            for one in served
            if one.vector is not None
            and one.query
            and (outcomes := {shown.doc_id: shown.reward for shown in one.candidates if shown.reward is not None})
        ]

    def tenants(self) -> list[str]:
        """Every tenant of the store."""
        self._log.flush()
        return self.store.tenants()

    def seen(self, tenant: str) -> dict[int, None]:
        """Digests of the requests that any process has learned from, or in vain, the first ones first."""
        from tttembed_rag.stores.work.states import TOOLS

        return dict.fromkeys(json.loads(self.store.states.get(TOOLS, tenant=tenant) or "[]"))

    def alone(self, tenant: str) -> Holding:
        """The right to learn for a tenant, until the block is left; forgetting ends it.

        Raises:
            LeaseLost: Another process has it.
        """
        from tttembed_rag.worker.holding import Holding

        holding = Holding.take(self.store, tenant, f"{socket.gethostname()}:{uuid4().hex}", _SECONDS)
        if holding is None:
            raise LeaseLost("another process learns for the tenant now")
        return holding

    def see(self, digests: Collection[int], tenant: str, holding: Holding | None) -> None:
        """Add the digests of requests that were learned from now; the first of many are forgotten."""
        from tttembed_rag.stores.work.states import TOOLS

        earlier = [one for one in self.seen(tenant) if one not in set(digests)]
        kept = json.dumps([*earlier, *digests][-_SEEN:])
        self.store.states.set(TOOLS, kept, tenant=tenant, lease=None if holding is None else holding.lease)

    def version(self, tenant: str) -> int:
        """The number of the live version of a tenant, 0 for none."""
        live = self.store.registry.version("live", tenant=tenant)
        return 0 if live is None else live.number

    def publish(
        self, offsets: Offsets, tenant: str, *, holding: Holding | None, note: str, rewarded: int, instead_of: int
    ) -> bool:
        """Serve *offsets* to a tenant; False where another version than *instead_of* is live meanwhile."""
        try:
            self.store.registry.publish(
                offsets,
                by="tools",
                tenant=tenant,
                note=note,
                embedder=self._embedder,
                rewarded=rewarded,
                lease=None if holding is None else holding.lease,
                instead_of=instead_of,
            )
        except Superseded:
            return False
        follow(self.store, tenants=[tenant], embedder=self._embedder)  # this process need not wait for its next look
        return True

    def flush(self) -> bool:
        """Write what waits; gives whether all of it is written."""
        return self._log.flush(_WRITTEN)

    def close(self) -> None:
        """Write what waits, and end."""
        self._log.close()
        self.live.close()
        if self._is_own:
            self.store.close()


# Where outcomes are kept, and what was learned from them is served from.
CallMemory: TypeAlias = InProcess | InStore
