"""`LearnedSearch`: names of items for a request, better the more it was told of which of them helped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import finalize

import numpy as np
from cachetools import LRUCache
from tttembed_store.background import checked_interval

from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.embedders.wrapped import FrameworkEmbedder
from tttembed_rag.errors import InputError, check_count, check_text, in_brief
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.serving.context import context, context_value, current_tenant
from tttembed_rag.serving.log import Known
from tttembed_rag.vectors.checks import FloatArray
from tttembed_tools.catalog import Card
from tttembed_tools.explaining import explained
from tttembed_tools.index import Index, best, texts_of
from tttembed_tools.learning import FAILED, SUCCEEDED, Lesson, OutcomeLearner, any_served, fits, usable, weight_of
from tttembed_tools.outcomes import Outcomes, PastRequest

if TYPE_CHECKING:
    from tttembed_store.sql import Store
    from tttembed_store.worker import Step, Worker

    from tttembed_rag.offsets.offsets import Offsets

_log = logging.getLogger(__name__)
# Vectors and lists of the last requests, which outcomes are kept with; how much of a list is kept, and how long one is
# taken to be that nobody noted.
_REMEMBERED, _LONGEST, _ASSUMED = 5000, 50, 10
# Requests of a tenant that are learned from, where nothing else was said.
LAST = 2000
# A text that every model embeds.
_WORD = "text"
_EMPTY = Index()
# Seconds in which the last round of the background ends.
_LAST_ROUND = 30.0


class LearnedSearch:
    """Finds the items for a request among many short texts, and learns from which of them helped.

    Two searches are added: a dense one, moved by offsets, and BM25. What moves it is learned from uses (`used`), and
    served only where uses that it was not learned from support it. Safe between threads; in an event loop, `asearch`
    searches, and other methods that wait go into ``asyncio.to_thread``. Whose requests they are, and of which task, the
    caller's ``with tttembed_rag.context(...)`` says.

    Args:
        items: The items: a dict from name to text, or `Card` values; `add` brings more.
        embed: The embedding model: an `Embedder`, an object of LangChain or LlamaIndex, or the text of one as
            `tttembed_rag.embedders.open_embedder` takes it. None is all-MiniLM-L6-v2 (``minilm``).
        store: An open store, or its URL, shared by any number of processes; None learns in this process.
        abstain: Whether nothing is found where nothing fits: below the floor of a task's requests for which an item
            helped, of which at most 5 % are refused (90 %). It begins with 45 requests or named sources.
        last: Requests of a tenant that are learned from at most: the last ones of each source, >= 2.

    Raises:
        InputError: The items or the model are not what was expected.
        EmbedderError: The model cannot be loaded, or embeds no items.
        StoreError: The store cannot be opened.
    """

    # What items are called in messages, and whether each tenant has its own.
    _kind: ClassVar[str] = "items"
    _apart: ClassVar[bool] = False

    def __init__(
        self,
        items: Any,
        embed: Any = None,
        *,
        store: Store | str | None = None,
        abstain: bool = False,
        last: int = LAST,
    ) -> None:
        self._embedder = _embedder(embed)
        self._abstain = abstain
        self._adding = Lock()
        self._indexes: dict[str, Index] = {}  # by tenant, or that of all
        self._width = 0
        self.add(items)
        self._outcomes = Outcomes(store, self._embedder.fingerprint, last)
        if store is None:
            finalize(self, self._outcomes.close)  # nothing of it could be read again
        self._learner = OutcomeLearner(self._outcomes, self.index_of, abstain=abstain)
        self._vectors: LRUCache[str, FloatArray] = LRUCache(_REMEMBERED)
        # By tenant, task and text of a request, the names that were listed since an outcome of it was kept.
        self._listed: LRUCache[tuple[str, str, str], dict[str, None]] = LRUCache(_REMEMBERED)
        self._remembering = Lock()

    def __repr__(self) -> str:
        items = len(self._index)
        return f"{type(self).__name__}({items} {self._kind}, {self._embedder.fingerprint}, {self._outcomes.live!r})"

    @property
    def names(self) -> list[str]:
        """The names of all items."""
        return list(self._index.rows)

    @property
    def offsets(self) -> Offsets | None:
        """What is served to the caller's tenant, the learned weight of BM25 in its settings; None before anything."""
        return self._outcomes.live.current

    def index_of(self, tenant: str) -> Index:
        """The items that a tenant may find."""
        return self._indexes.get(tenant if self._apart else "", _EMPTY)

    @property
    def _index(self) -> Index:
        return self.index_of(current_tenant())

    @_index.setter
    def _index(self, index: Index) -> None:
        self._indexes[current_tenant() if self._apart else ""] = index

    def _cards(self, items: Any) -> list[Card]:
        """Items as cards, one for each name."""
        if isinstance(items, Mapping):
            items = [Card(name, text) for name, text in items.items()]
        cards = list(items) if isinstance(items, Iterable) and not isinstance(items, str) else [items]
        for card in cards:
            if not (isinstance(card, Card) and isinstance(card.text, str) and card.text.strip() and card.name):
                raise InputError(f"items: expected Card values or a dict from name to text, got {card!r:.80}")
        return list({card.name: card for card in cards}.values())

    def add(self, items: Any) -> int:
        """Add items, and renew those whose text has changed; gives how many were embedded.

        Items that are there already, with the same text, cost nothing. One whose text the model does not take, while it
        takes a word, is logged and left out.
        """
        cards = self._cards(items)
        with self._adding:
            index = self._index
            here = set(index.cards)
            fresh = [card for card in cards if card not in here]
            if fresh:
                index = self._grown(index, fresh)
                self._width = index.width or self._width
                self._index = index
            return len(set(index.cards).intersection(fresh))

    def _grown(self, index: Index, cards: list[Card]) -> Index:
        """*index* with those of the *cards* whose texts the model takes."""
        try:
            return index.plus(cards, self._embedder.embed_documents(texts_of(cards)))
        except Exception as exc:  # noqa: BLE001 - the caller's model: what it does not take is logged
            self._embedder.embed_documents([_WORD])  # where this fails too, the texts are not why
            if len(cards) > 1:
                middle = len(cards) // 2
                return self._grown(self._grown(index, cards[:middle]), cards[middle:])
            _log.warning("%s: %r is left out: its text is not embedded: %s", self._kind, cards[0].name, in_brief(exc))
            return index

    def remove(self, names: Collection[str]) -> None:
        """Take items away; what was learned of them stays, and serves again where they come back."""
        if isinstance(names, str):
            raise InputError(f"names: expected a list of names, got {names!r:.80}")
        with self._adding:
            self._index = self._index.without(names)

    def __call__(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """Names of the best items for a request, best first.

        What helped the source of the caller's `context` comes first where it asks the same again, or nearly the same;
        no other source finds it any better for that.

        An item whose name of several words (``create_invoice``, ``createInvoice``, ``mail.send``) stands in the request
        is always among them, in the last place where the search has not found it. Where the embedding model fails, that
        is logged, and BM25 alone finds them.

        Args:
            query: The request.
            k: Names at most, >= 1.
            among: The names that may be found; None is all.
        """
        _check(query, k)
        if not query.strip() or not len(self._index):
            return []
        vector, index = self._vector(query), self._index
        if not len(index):  # the last item went meanwhile
            return []
        task = context_value("task")
        offsets, offset, _ = self._outcomes.live.serving(query, task)
        named = [name for name in index.named(query) if among is None or name in among]
        own = self._own_rows(index, query, vector)
        if vector is not None and offsets is not None:
            if self._abstain and not own and not fits(offsets, index, vector, task):
                return named[:k]
            vector = offsets.apply_found(vector, offset)
        scores = index.scores(query, vector, weight_of(offsets), own)
        order = best(scores, k)
        if among is not None:
            rows = [index.rows[name] for name in dict.fromkeys(among) if name in index.rows]
            allowed = np.array(rows, dtype=np.intp)
            order = allowed[best(scores[allowed], k)]
        names = [index.cards[row].name for row in order]
        missed = [name for name in named if name not in names][:k]
        return self.listed(query, [*names[: k - len(missed)], *missed])

    def listed(self, query: str, names: list[str]) -> list[str]:
        """Note that *names* were listed for a request, where another search or process did it, and give them back.

        What this search finds is noted already. Of items that were listed and not used it is learned that they were no
        better; what was not listed was not refused. An outcome for a text that nothing was listed for, as in another
        process, is taken to be from a list of ten.
        """
        with self._remembering:
            self._listed.setdefault(_place(query), {}).update(dict.fromkeys(names))
        return names

    async def asearch(self, query: str, k: int = 5, *, among: Collection[str] | None = None) -> list[str]:
        """The same, without holding up the event loop."""
        return await asyncio.to_thread(self, query, k, among=among)

    def explain(self, query: str, k: int = 10) -> str:
        """Why these items are found: ranks before and now, and the nearest requests that each has helped."""
        _check(query, k)
        index, vector = self._index, self._vector(query)
        if vector is None or not len(index):
            raise InputError(f"query: expected a text that {self._embedder.fingerprint} embeds, got {query!r:.60}")
        own, task = self._own_rows(index, query, vector), context_value("task")
        return explained(index, query, vector, self.offsets, self.requests(), own=own, k=k, task=task)

    def _own_rows(self, index: Index, query: str, vector: FloatArray | None) -> list[int]:
        """The rows of the items that helped the caller's source with the same request."""
        source = context_value("source") or ""
        task = context_value("task") or DEFAULT_TASK
        helped = self._outcomes.helped(query, vector, index.middle, task=task, source=source)
        return [index.keys[key] for key in helped if key in index.keys]

    def used(
        self,
        query: str,
        name: str,
        succeeded: bool = True,
        *,
        source: str | None = None,
        at: float | None = None,
    ) -> bool:
        """Keep that an item was used for a request, and whether it helped; gives whether the model embedded that.

        Say what happened alone: an item that was found and not used is not judged. A failure is one of the item's own,
        not a service that is down.

        Args:
            query: The text of the request, as it was searched.
            name: The name of the item.
            succeeded: Whether it did what it was used for.
            source: Who used it, such as a user or an agent, of whom none counts as more than one voice near a
                request; None is the source of the caller's `context`. Without any, the request is a voice of its own.
            at: When the request was searched, in Unix seconds: where it was forgotten since, nothing is kept. None is
                now.

        Raises:
            InputError: There is no such item, the request is empty, or *succeeded* is neither True nor False.
        """
        at = time.time() if at is None else at  # what is forgotten from now on is not brought back
        _check(query, 1)
        check_text("source", source)
        if succeeded not in (True, False):  # any other word would count as a success
            raise InputError(f"succeeded: expected True or False, got {succeeded!r:.80}")
        index = self._index
        row = index.rows.get(name)
        if row is None:
            raise InputError(f"name: expected one of {len(index)} {self._kind}, got {name!r:.80}")
        if not query.strip():
            raise InputError(f"query: expected the text of the request, got {query!r}")
        vector = self._vector(query)
        if vector is None:
            return False  # logged
        source = context_value("source") or "" if source is None else source
        reward = SUCCEEDED if succeeded else FAILED
        if (place := _place(query)) not in self._listed:
            self(query, _ASSUMED)
        with self._remembering:  # a list is kept once
            listed, self._listed[place] = self._listed.get(place, {}), {}
        rows = list(dict.fromkeys([row, *(index.rows[other] for other in listed if other in index.rows)]))[:_LONGEST]
        cards = [index.cards[other] for other in rows]
        known = Known(vector, index.vectors[rows], doc_ids=[card.key for card in cards])
        self._outcomes.note(query, cards, reward, known, task=place[1], source=source, at=at)
        return True

    def requests(self) -> list[PastRequest]:
        """What the caller's tenant asked and which items were used for it, the last requests of each source.

        Raises:
            StoreUnavailable: The store is away.
        """
        self.flush()
        return self._outcomes.requests(current_tenant(), self._width)

    def learn(self) -> Lesson:
        """Learn from all uses of the caller's tenant, and serve what they support.

        Raises:
            StoreUnavailable: The store is away; what was served stays.
        """
        self.flush()  # what is written later is new in the next pass
        return self._lesson(self._worker().learn(current_tenant())[-1])

    def learn_for_all(self, *, growth: float = 0.0) -> dict[str, Lesson]:
        """The same for every tenant with something new, by name.

        Args:
            growth: Learn only where the outcomes that nothing was learned from are this share of the others, >= 0.
        """
        self.flush()
        steps = self._worker(growth).round()
        return {step.tenant: self._lesson(step) for step in steps if step.tenant is not None}

    @contextmanager
    def learning(self, every: float = 60.0, *, tenants: Sequence[str] | None = None) -> Iterator[Self]:
        """Within the block, learn from the background, whenever there is a tenth more to learn from.

        Args:
            every: Seconds between two rounds, > 0.
            tenants: The tenants that are learned for; None is all.
        """
        from tttembed_store.worker import GROWTH

        ended, worker = Event(), self._worker(GROWTH, tenants)
        options = {"every": checked_interval("every", every), "stop": ended, "watch": self._learned}
        thread = Thread(target=worker.run, kwargs=options, name="tttembed-search", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join(_LAST_ROUND)

    def _worker(self, growth: float = 0.0, tenants: Sequence[str] | None = None) -> Worker:
        """A worker of the store that learns from outcomes."""
        from tttembed_store.worker import Worker

        return Worker(self._outcomes.store, learner=self._learner, tenants=tenants, min_new=1, growth=growth)

    def _lesson(self, step: Step) -> Lesson:
        """What a *step* of the worker taught its tenant."""
        with context(tenant=step.tenant or ""):
            self._outcomes.look(step.tenant or "")
            requests = usable(self._outcomes.requests(current_tenant(), self._width), self._index)
            reason = step.detail.removeprefix(f"version {step.version}: ")
            served = self.offsets
            return Lesson(len(requests), weight_of(served), any_served(served), step.version is not None, reason)

    def _learned(self, step: Step) -> None:
        """Serve and log what the background learned."""
        if step.version is not None:
            _log.info("%s of tenant %r: %s", self._kind, step.tenant, self._lesson(step))

    def flush(self) -> bool:
        """Wait until all that was kept is written; gives whether it is, which it is not while the store is away."""
        return self._outcomes.flush()

    def close(self) -> None:
        """Write what waits, and follow the store no longer."""
        self._outcomes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _vector(self, query: str) -> FloatArray | None:
        """The base vector (d,) of a request, remembered for its outcomes; None where the model fails."""
        with self._remembering:
            if (known := self._vectors.get(query)) is not None:
                return known
        try:
            vector: FloatArray = self._embedder.embed_queries([query])[0]
        except Exception:  # noqa: BLE001 - the caller's model: its failure must not fail the agent's search
            _log.exception("a request was not embedded: BM25 alone finds its %s", self._kind)
            return None
        with self._remembering:
            self._vectors[query] = vector
        return vector


def _place(query: str) -> tuple[str, str, str]:
    """Where the list of a request stands: that of the caller's tenant and task."""
    return current_tenant(), context_value("task") or DEFAULT_TASK, query


def _embedder(embed: Any) -> Embedder:
    if isinstance(embed, Embedder):
        return embed
    if embed is None or isinstance(embed, str):
        from tttembed_rag.embedders.specs import open_embedder

        return open_embedder(embed or "minilm")
    return FrameworkEmbedder(embed)


def _check(query: str, k: int) -> None:
    if not isinstance(query, str):
        raise InputError(f"query: expected a text, got {type(query).__name__}")
    check_count("k", k)
