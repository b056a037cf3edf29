"""What was asked and which items were used for it, in a store: of many processes, or in the memory of this one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import finalize

from tttembed_store.capture.storelog import StoreLog
from tttembed_store.following import follow
from tttembed_store.sql.records import ANONYMOUS, TOOL_CALLS

from tttembed_rag.errors import InputError
from tttembed_rag.serving.context import context_value, current_tenant
from tttembed_rag.serving.log import Known
from tttembed_rag.vectors.checks import FloatArray
from tttembed_tools.catalog import Card

if TYPE_CHECKING:
    from tttembed_store.sql import Store

# The reward from which on an item helped.
HELPED = 0.5
# Requests of all tenants that are kept in the memory of a process, unless more of one are read, and after how many new
# ones they are counted.
_MOST, _COUNTED = 10_000, 1000
# Items of one request that are read.
_DEPTH = 200
# Seconds that a caller waits at most until its outcomes are written.
_WRITTEN = 5.0
# Who forgets, in the log of changes of a store.
_BY = "search"


@dataclass(frozen=True, slots=True, eq=False)
class PastRequest:
    """A request for which items were used.

    Attributes:
        query_id: Its id, unique within its task.
        query: Its text.
        vector: Its base vector (d,).
        task: Its task key.
        outcomes: Rewards of items by the keys of their cards.
        shown: The keys of the other items that were listed for it, in their order.
        source: Who used them; several sources may use items for the same request.
    """

    query_id: str
    query: str
    vector: FloatArray
    task: str
    outcomes: Mapping[str, float]
    shown: tuple[str, ...] = ()
    source: str = ""

    @property
    def helped(self) -> list[str]:
        """The keys of the items that helped."""
        return [key for key, reward in self.outcomes.items() if reward >= HELPED]


class Outcomes:
    """Outcomes, which are written to a store from the background, and what is published there, followed.

    Args:
        store: An open store, or its URL; None is one in the memory of this process.
        embedder: Fingerprint of the embedding model.
        last: Requests of a tenant that are read, the last ones of each source.

    Raises:
        StoreError: The store cannot be opened.
        InputError: It keeps no texts, which BM25 reads.
    """

    def __init__(self, store: Store | str | None, embedder: str, last: int) -> None:
        from tttembed_store.sql import memory_store, open_store

        self.shared, self._new = store is not None, count(1)
        self._is_own = store is None or isinstance(store, str)
        self.store = memory_store() if store is None else open_store(store) if isinstance(store, str) else store
        if not self.store.texts:
            raise InputError("store: expected one that keeps texts, which BM25 reads, got one without texts")
        self.embedder, self.last = embedder, last
        self._log = StoreLog(self.store, TOOL_CALLS, embedder=embedder)
        self.live = follow(self.store, embedder=embedder)

    def close_with(self, owner: object) -> None:
        """Close where *owner* is used no longer; in memory, nothing of it could be read again."""
        if not self.shared:
            finalize(owner, self.close)

    def note(self, query: str, cards: list[Card], rewards: list[float | None], known: Known, **facts: Any) -> None:
        """Keep what was listed for a request, and *rewards* of what was used; it is written soon, with its *facts*.

        Without a tenant it is the shared one's, unless a store of many processes has tenants: then nobody knows whose
        it is, and it is left out.
        """
        tenant = context_value("tenant") if self.shared else current_tenant()
        self._log.put(query, [card.text for card in cards], rewards, known, tenant=tenant, **facts)
        if not self.shared and next(self._new) % _COUNTED == 0:
            self.store.keep_newest(max(_MOST, self.last))

    def requests(self, tenant: str, width: int) -> list[PastRequest]:
        """The last requests of a tenant with vectors (width,), newest first.

        Raises:
            StoreUnavailable: The store cannot be read now.
        """
        served = self.store.history.recent(
            tenant, width=width, embedder=self.embedder, judge=TOOL_CALLS, limit=self.last, depth=_DEPTH, by_source=True
        )
        return [
            PastRequest(one.query_id, one.query, one.vector, one.task, outcomes, shown, one.source)
            for one in served
            for shown in [tuple(item.doc_id for item in one.candidates if item.reward is None)]
            if one.vector is not None
            and one.query
            and (outcomes := {item.doc_id: item.reward for item in one.candidates if item.reward is not None})
        ]

    def alone(self, tenant: str, requests: Sequence[PastRequest]) -> bool:
        """Whether *requests* are of one named source, and nobody else is served what they teach *tenant*."""
        names = {request.source for request in requests}
        return len(names) == 1 and not names & {"", ANONYMOUS} and bool(tenant or not self.store.has_tenants())

    def forget(self, tenant: str, keys: Collection[str]) -> Collection[str]:
        """Forget items of a tenant, on disk too, and where one was used all that was learned; gives the known ones."""
        self._log.flush()
        known = self.store.history.document_arrivals(tenant, list(keys))
        self.store.forget(tenant=tenant, document_id=keys, by=_BY)
        self.look(tenant)
        return known

    def look(self, tenant: str) -> None:
        """Serve a tenant what is published now, and do not wait for the next look at the store."""
        follow(self.store, tenants=[tenant], embedder=self.embedder)

    def flush(self) -> bool:
        """Write what waits; gives whether all of it is written."""
        return self._log.flush(_WRITTEN)

    def close(self) -> None:
        """Write what waits, and end."""
        self._log.close()
        self.live.close()
        if self._is_own:
            self.store.close()
