"""From a query to the request that steers it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tttembed_rag.errors import InputError, TTTEmbedError
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.serving.live import LiveOffsets, OffsetSupplier, checked_offsets
from tttembed_rag.serving.request import Request
from tttembed_rag.serving.tasks import TaskSource, checked_task, resolve_task
from tttembed_rag.system import telemetry
from tttembed_rag.vectors.probe import Probe

_log = logging.getLogger(__name__)
# Attributes in which embedding models of the frameworks keep the width of their vectors.
_WIDTHS = ("dimensions", "embed_dim", "size")


class Steering:
    """Query vectors with their private offset, else that of their task; what offsets refuse is served as it came.

    A private offset is that of a query with rewards of its own: it is served wherever the same text is asked again in
    its task, or the caller's ``with context(..., query_id=...)`` names the id it was recorded under.

    Args:
        offsets: What was learned; `LiveOffsets`, or what `tttembed_store.follow` gives, where it is replaced while
            serving.
        task: A task for every query, or a function from query text to task; a caller's `context` comes before the
            function. Where no task is named, the default task's or the global offset is looked up, as `Offsets.apply`
            does, and without one the base vector served.
        model: The embedding model. Offsets that are there and were learned for another one are refused here, and not at
            the first query: by the width that it says its vectors have, and by its vectors of the texts of their probe.

    Raises:
        InputError: *offsets* or *task* are something else, or the offsets were learned for another model.
    """

    def __init__(self, offsets: Offsets | OffsetSupplier, task: TaskSource = None, *, model: Any = None) -> None:
        self._live = offsets if isinstance(offsets, OffsetSupplier) else LiveOffsets(checked_offsets(offsets))
        if model is not None:
            _check_model(offsets if isinstance(offsets, Offsets) else getattr(offsets, "current", None), model)
        telemetry.instruments()
        self._task = checked_task(task)
        # What is logged once: tasks with a vector that the offsets refused, and that a list was not sorted.
        self._logged: set[tuple[str, str | None]] = set()

    def for_task(self, task: TaskSource) -> Steering:
        """Steering for another task, by the same live offsets."""
        other = Steering(self._live, task)
        other._logged = self._logged
        return other

    def task_of(self, query: str) -> str | None:
        """The task of *query*; None where nothing names one."""
        return resolve_task(self._task, query)

    def request(self, query: str) -> Request:
        """*query* with what is live now: its vector, and the order of what a search with that finds.

        `Request.reason` says why a query is not steered.
        """
        task = self.task_of(query)
        return Request(query, task, self._live.serving(query, task), self._logged)

    def apply(self, vector: Any, query: str) -> Any:
        """The vector to search with, for who sorts no list: that of `request`, made of the base *vector* (d,)."""
        steering, request = _search.get()
        if request is None or steering is not self or not request.serves(query):
            request = self.request(query)
        return request.vector(vector)

    def apply_each(self, vectors: Iterable[Any], queries: list[str]) -> list[Any]:
        """`apply` of several *vectors*, one for each of the *queries*; a vector of None stays None."""
        pairs = zip(vectors, queries, strict=True)
        return [None if vector is None else self.apply(vector, query) for vector, query in pairs]

    @contextmanager
    def searching(self, query: str) -> Iterator[Request]:
        """A request for a search that embeds its query itself: in the block, `apply` steers *query* by that request.

        A search that embeds in a thread or task of its own, which does not carry the caller's context, asks anew.
        """
        request = self.request(query)
        token = _search.set((self, request))
        try:
            yield request
        finally:
            _search.reset(token)

    def __repr__(self) -> str:
        return f"{self._live!r}, task={self._task!r}"


def _check_model(offsets: Offsets | None, model: Any) -> None:
    """Refuse *offsets* that were learned for another embedding model than *model*."""
    from tttembed_rag.embedders.wrapped import FrameworkEmbedder

    if offsets is None:
        return
    widths = (getattr(model, name, None) for name in _WIDTHS)
    width = next((width for width in widths if type(width) is int and width > 0), None)
    name, why = type(model).__name__, ""
    if width not in (None, offsets.width):
        why = f"expected the width of {name}, {width}, got {offsets.width}"
    elif "probe" in offsets.settings and FrameworkEmbedder.takes(model):
        embed = FrameworkEmbedder(model).embed_queries
        try:
            now = Probe.of(lambda text: embed([text])[0])
        except TTTEmbedError as exc:
            _log.warning("%s was not asked whether offsets were learned for it: %s", name, exc.brief)
            return
        why = Probe.from_json(str(offsets.settings["probe"])).difference(now)
    if why:
        raise InputError(f"offsets: {why}: they were learned for another embedding model")


# The search that is under way: who steers it, and by which request.
_search: ContextVar[tuple[Steering | None, Request | None]] = ContextVar("tttembed_rag.search", default=(None, None))
