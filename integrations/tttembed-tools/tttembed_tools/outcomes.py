"""What was asked and which items were used for it: kept in this process, or in a store that many processes share."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4
from zlib import crc32

from cachetools import LRUCache
from tttembed_store.capture.storelog import StoreLog
from tttembed_store.following import TenantOffsets, follow
from tttembed_store.sql.records import TOOL_CALLS

from tttembed_rag.capture.log import Known
from tttembed_rag.errors import InputError, LeaseLost, Superseded
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.vectors.checks import FloatArray
from tttembed_tools.catalog import Card

if TYPE_CHECKING:
    from tttembed_store.sql import Lease, Store

# Requests learned from, the last ones of each source; items of one request that are read.
LAST, _DEPTH = 2000, 200
# Items of which it is remembered that they were forgotten, so that a use that was under way does not bring them back.
_FORGOTTEN = 10_000
# Seconds that others wait for a process that was killed while it learned.
_SECONDS = 60.0
# Seconds that a caller waits at most until what it said is written.
_WRITTEN = 5.0
# Digests that are kept of requests that were learned from: searches over other items may share the store.
_SEEN = 4 * LAST
# Who publishes and forgets, in the log of changes of a store.
_BY = "search"


@dataclass(frozen=True, slots=True, eq=False)
class PastRequest:
    """A request for which items were used, with its base vector (d,).

    Its id is unique within its task, and empty while it is noted, for that of its text. *outcomes* are rewards of items
    by the keys of their cards; several sources may use items for the same request. The tenant is the one whose items
    they are.
    """

    query_id: str
    query: str
    vector: FloatArray
    task: str
    outcomes: Mapping[str, float]
    source: str = ""
    tenant: str = ""

    @property
    def digest(self) -> int:
        """A number of 32 bits that stands for the request with its outcomes."""
        return crc32(json.dumps([self.task, self.query_id, self.source, sorted(self.outcomes.items())]).encode())


class InProcess:
    """A memory of this process, safe between threads.

    Beyond `LAST` requests of a tenant, the oldest of the source with the most requests is forgotten.
    """

    def __init__(self) -> None:
        self.live = TenantOffsets()
        # By tenant, the vector and the outcomes of each task, request and source.
        self._kept: dict[str, OrderedDict[tuple[str, str, str], tuple[FloatArray, dict[str, float]]]] = {}
        self._versions: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        self._forgotten: LRUCache[tuple[str, str], float] = LRUCache(_FORGOTTEN)
        self._lock = Lock()

    def note(self, request: PastRequest, card: Card, vector: FloatArray, tenant: str | None, at: float) -> None:  # noqa: ARG002 - a store keeps it
        """Keep the outcome of one use of an item with a *card* and its *vector* (d,), unless it was forgotten since."""
        key = (request.task, request.query, request.source)
        with self._lock:
            if at <= self._forgotten.get((tenant or "", card.key), -1.0):
                return
            kept = self._kept.setdefault(tenant or "", OrderedDict())
            kept.setdefault(key, (request.vector, {}))[1].update(request.outcomes)
            kept.move_to_end(key)
            if len(kept) > LAST:
                ((most, _),) = Counter(source for *_, source in kept).most_common(1)
                del kept[next(one for one in kept if one[2] == most)]

    def requests(self, tenant: str, width: int) -> list[PastRequest]:
        """The last requests of a tenant with vectors (width,), newest first."""
        with self._lock:
            kept = list(self._kept.get(tenant, {}).items())
        return [
            PastRequest(query, query, vector, task, dict(outcomes), source, tenant)
            for (task, query, source), (vector, outcomes) in reversed(kept)
            if len(vector) == width
        ]

    def tenants(self) -> list[str]:
        """The tenants that have requests."""
        with self._lock:
            return sorted(self._kept)

    def forget(self, tenant: str, key: str) -> bool:
        """Forget an item of a tenant, and where it was used all that was learned from it; gives whether it was."""
        with self._lock:
            self._forgotten[tenant, key] = time.time()
            of_item = [one for _, one in self._kept.get(tenant, {}).values() if one.pop(key, None) is not None]
            if of_item:
                self._unlearn(tenant)
            return bool(of_item)

    def _unlearn(self, tenant: str) -> None:
        self.live.for_tenant(tenant).publish(None)
        self._versions[tenant] = self.version(tenant) + 1  # what is being learned is not published
        self._seen.pop(tenant, None)

    def seen(self, tenant: str) -> set[int]:
        """Digests of the requests that were learned from, or in vain."""
        return self._seen.get(tenant, set())

    def alone(self, tenant: str) -> AbstractContextManager[Lease | None]:  # noqa: ARG002 - a store has other learners
        """Nothing: no other process learns from it, and nothing is forgotten."""
        return nullcontext()

    def see(self, digests: Collection[int], tenant: str, lease: Lease | None) -> None:  # noqa: ARG002 - likewise
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
        from tttembed_store.sql import open_store

        self.store, self._is_own = (open_store(store), True) if isinstance(store, str) else (store, False)
        if not self.store.texts:
            raise InputError("store: expected one that keeps texts, which BM25 reads, got one without texts")
        self._embedder = embedder
        self._log = StoreLog(self.store, TOOL_CALLS, embedder=embedder)
        self.live = follow(self.store, embedder=embedder)

    def note(self, request: PastRequest, card: Card, vector: FloatArray, tenant: str | None, at: float) -> None:
        """Keep the outcome of one use for a request that was searched *at* a Unix second; it is written a moment later.

        Without a tenant, `StoreLog` decides.
        """
        known, rewards = Known(request.vector, vector[None], doc_ids=[card.key]), list(request.outcomes.values())
        names = {"task": request.task, "source": request.source}
        self._log.put(request.query, [card.text], rewards, known, tenant=tenant, at=at, **names)

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
            PastRequest(one.query_id, one.query, one.vector, one.task, outcomes, one.source, tenant)
            for one in served
            if one.vector is not None
            and one.query
            and (outcomes := {shown.doc_id: shown.reward for shown in one.candidates if shown.reward is not None})
        ]

    def tenants(self) -> list[str]:
        """Every tenant of the store."""
        self._log.flush()
        return self.store.tenants()

    def forget(self, tenant: str, key: str) -> bool:
        """Forget an item of a tenant, on disk too, and where it was used all that was learned from it.

        Gives whether the store had it.
        """
        self._log.flush()
        gone = self.store.forget(tenant=tenant, document_id=key, by=_BY)
        follow(self.store, tenants=[tenant], embedder=self._embedder)
        return gone.documents > 0

    def seen(self, tenant: str) -> dict[int, None]:
        """Digests of the requests that any process has learned from, or in vain, the first ones first."""
        from tttembed_store.sql.work.states import TOOLS

        return dict.fromkeys(self.store.states.get(TOOLS, tenant=tenant) or [])

    @contextmanager
    def alone(self, tenant: str) -> Iterator[Lease]:
        """The right to learn for a tenant, until the block is left; forgetting ends it.

        Raises:
            LeaseLost: Another process has it.
        """
        with self.store.leases.held(tenant, f"{socket.gethostname()}:{uuid4().hex}", _SECONDS) as lease:
            if lease is None:
                raise LeaseLost("another process learns for the tenant now")
            yield lease

    def see(self, digests: Collection[int], tenant: str, lease: Lease | None) -> None:
        """Add the digests of requests that were learned from now; the first of many are forgotten."""
        from tttembed_store.sql.work.states import TOOLS

        earlier = [one for one in self.seen(tenant) if one not in set(digests)]
        kept = [*earlier, *digests][-_SEEN:]
        self.store.states.set(TOOLS, kept, tenant=tenant, lease=lease)

    def version(self, tenant: str) -> int:
        """The number of the live version of a tenant, 0 for none."""
        live = self.store.registry.version("live", tenant=tenant)
        return 0 if live is None else live.number

    def publish(self, offsets: Offsets, tenant: str, *, instead_of: int, **facts: Any) -> bool:
        """Serve *offsets* to a tenant; False where another version than *instead_of* is live meanwhile."""
        model = self._embedder
        try:
            self.store.registry.publish(offsets, by=_BY, tenant=tenant, embedder=model, instead_of=instead_of, **facts)
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
Outcomes: TypeAlias = InProcess | InStore
