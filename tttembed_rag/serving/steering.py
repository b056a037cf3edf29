"""From a query to the request that steers it: its vector and its sorted list, by one version of the offsets.

`Request.reason` says, and the log tells once, why a query was not steered.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError, TTTEmbedError, VectorError, in_brief
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.offsets.rerankskips import Skips
from tttembed_rag.offsets.rescorer import check_list
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.serving.context import current_tenant
from tttembed_rag.serving.live import LiveOffsets, Lookup, OffsetSupplier, checked_offsets, names_of
from tttembed_rag.serving.tasks import TaskSource, checked_task, resolve_task
from tttembed_rag.system import telemetry
from tttembed_rag.vectors.probe import Probe

_log = logging.getLogger(__name__)
# Attributes in which embedding models of the frameworks keep the width of their vectors.
_WIDTHS = ("dimensions", "embed_dim", "size")
# The largest cosine in float16, and by how much one of equal rank may rise.
_LARGEST, _TIES = 1.01, 1e-3
# Lines of the log of a kind about the requests of one `Steering`, at most: who makes tasks of texts fills no log.
_MOST_LOGGED = 20

# Score to cosine similarity; None where scores are cosines.
Similarity: TypeAlias = Callable[[float], float] | None


@dataclass(slots=True)
class Ranked:
    """What a search found, as it is served: the *places* in its list, best first.

    In the scores that sort it, the first leads by *lead*, which is not a number where the list stays as it came. Which
    lists of the task need no reranker, *skips* says by the verdicts of the *judge*. What is no query with texts and
    scores is *refused*, as nobody can sort it.
    """

    places: list[int]
    lead: float = math.nan
    skips: Skips | None = None
    judge: str = ""
    refused: bool = False


class Request:
    """One query, as `Steering.request` makes it: steered and sorted by the version that was live at that moment.

    A version that is published before the list is sorted serves the next request.

    Attributes:
        query: Its text.
        task: Its task; None where nothing named one.
        tenant: Whose it is by the caller's `context`; empty outside any.
    """

    __slots__ = ("_base", "_logged", "_offset", "_offsets", "_reason", "_steered", "query", "task", "tenant")

    def __init__(self, query: str, task: str | None, serving: Lookup, logged: set[tuple[str, str | None]]) -> None:
        self.query, self.task, self.tenant = query, task, current_tenant()
        self._offsets, self._offset, self._reason = serving
        self._logged = logged
        self._base: Any = None
        self._steered: Any = None

    @property
    def reason(self) -> str:
        """Why the query keeps its base vector; empty where an offset is added to it.

        It is that nothing is live for its tenant, that the live offsets hold nothing for its task, or, once `vector`
        was asked, that they refuse its vector.
        """
        if self._reason or self._offset is not None or self._offsets is None:
            return self._reason
        return self._offsets.why_base(self.task, *(() if self.tenant else names_of(self.query)))

    def vector(self, base: Any) -> Any:
        """The vector to search with: *base* (d,) with its offset, as a list of Python floats.

        A vector that the offsets refuse (NaN, zero, another width, whole numbers) is handed back. The first refusal of
        a task is logged, and so is a task that the offsets know nothing of.
        """
        # Some providers hand out numpy arrays; stores expect Python floats.
        base = base.tolist() if isinstance(base, np.ndarray) else base
        steered, served, offsets = base, False, self._offsets
        if offsets is not None:
            self._base, self._reason = None, ""
            try:
                if isinstance(base, list) and base and all(isinstance(number, int) for number in base):
                    raise VectorError("X: expected fractions, got whole numbers, as quantised vectors have them")
                steered, served = offsets.apply_found(base, self._offset), self._offset is not None
                self._base = base
                if not served and offsets.tasks and (self.task or DEFAULT_TASK) not in offsets.tasks:
                    self._log_first("task", self.task, "base vectors are served: ")
            except VectorError as error:
                self._reason = f"the offsets refuse its base vector: {error}"
                self._log_first("vector", self.task, "base vectors are served: ")
        telemetry.applied.add((self.task, served))
        if served:  # a vector that a trace keeps must not be taken for a base vector
            telemetry.mark(steered=True)
        self._steered = steered
        return steered

    def cosines(self, document_vectors: ArrayLike) -> list[float]:
        """The scores of documents with these vectors (k, d), by the vector that `vector` gave."""
        return cosines_of(self._steered, document_vectors)

    def serves(self, query: str) -> bool:
        """Whether *query* is the one of this request: the same text, asked for the same tenant."""
        return query == self.query and current_tenant() == self.tenant

    @property
    def needs_scores(self) -> bool:
        """Whether `order` or a cascade makes anything of the scores of a list; else none need be known."""
        offsets, task = self._offsets, self.task
        return offsets is not None and any(
            part(task) is not None for part in (offsets.rescorer, offsets.skips, offsets.certificate)
        )

    def order(
        self, texts: Sequence[str], scores: Sequence[float | None], *, similarity: Similarity = None
    ) -> list[int]:
        """Places of what a search with `vector` found, best first, by the words shared with the query too.

        They stay as they came where no rescorer of the task is published, where the scores are no cosines, and whatever
        goes wrong; the first time is logged.

        Args:
            texts: Texts of the k candidates, in the order of the search: 20 to 100, before the list is cut.
            scores: Their scores, as the search gives them.
            similarity: Score to cosine similarity; None where scores are cosines.
        """
        return self.ranked(texts, scores, similarity=similarity).places

    def ranked(self, texts: Sequence[str], scores: Sequence[float | None], *, similarity: Similarity = None) -> Ranked:
        """The same as `order`, with what is known of how sure the list is of its first place."""
        ranked = Ranked(list(range(len(texts))), refused=True)
        try:
            check_list(self.query, texts, scores)
            ranked.refused = False
            offsets, offset = self._offsets, self._offset
            if offsets is None:
                return ranked
            ranked.judge = str(offsets.settings.get("judge", ""))
            if offset is None or offset.query_id is None:  # of lists under private offsets nothing is certified
                ranked.skips = offsets.skips(self.task)
            rescorer = offsets.rescorer(self.task)
            if rescorer is None and ranked.skips is None:
                return ranked
            sorting = _cosines(scores, similarity)
            if rescorer is not None:
                sorting = rescorer.scores(self.query, texts, sorting)
                ranked.places = np.argsort(-sorting, kind="stable").tolist()
            first = sorting[ranked.places[:2]]
            ranked.lead = float(first[0] - first[1]) if len(first) > 1 else math.inf
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on with the list of the search
            _log.debug("not sorted by words", exc_info=True)
            self._log_first("list", None, "not sorted by words: ", error)
        return ranked

    def relevance(
        self, texts: Sequence[str], scores: Sequence[float | None], *, similarity: Similarity = None
    ) -> list[float] | None:
        """How likely each of what a search with `vector` found is relevant, as `Offsets.relevance` says.

        None where nobody knows, under a private offset, and whatever goes wrong; the first time is logged. Arguments
        are those of `order`.
        """
        offsets, offset = self._offsets, self._offset
        private = offset is not None and offset.query_id is not None
        if offsets is None or private or offsets.certificate(self.task) is None:
            return None
        try:
            check_list(self.query, texts, scores)
            cosines = _cosines(scores, similarity)
            likely = offsets.relevance(cosines, vector=self._base, query=self.query, texts=texts, task=self.task)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on with the list of the search
            self._log_first("floor", None, "relevance is not known: ", error)
            return None
        return None if likely is None else likely.tolist()

    def refuses(self, relevance: Sequence[float] | None, lost: float | None) -> bool:
        """Whether nothing fits: the best `relevance` lies below the floor that loses at most a share *lost*.

        Without *lost*, or where the relevance is not known, no list is refused.
        """
        if self._offsets is None or not relevance or lost is None:
            return False
        cut = self._offsets.floor(self.task, lost)
        return cut is not None and max(relevance) < cut

    def cosine_floor(self) -> float | None:
        """The cosine to its `vector` below which no document is an answer: for a search that is somebody else's.

        At most 5 % of the requests that have an answer are refused so (90 %). None where that is not certified, where
        the offsets refused the base vector, and under a private offset.
        """
        private = self._offset is not None and self._offset.query_id is not None
        if self._offsets is None or self._base is None or private:
            return None
        floor = self._offsets.certificate(self.task)
        return None if floor is None else floor.cosine(np.asarray(self._base))

    def _log_first(self, what: str, task: str | None, line: str, error: Exception | None = None) -> None:
        """Say why something is not done the first time, for an *error* or for the `reason` of the request."""
        if (what, task) in self._logged or sum(kind == what for kind, _ in self._logged.copy()) >= _MOST_LOGGED:
            return
        self._logged.add((what, task))
        task, reason = self.task or DEFAULT_TASK, self.reason if error is None else in_brief(error)
        _log.warning("task %r: %s%s", task, line, reason)


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


def cosines_of(vector: ArrayLike, document_vectors: ArrayLike) -> list[float]:
    """The cosine similarity of a query *vector* (d,) to each of *document_vectors* (k, d)."""
    query, documents = np.asarray(vector, dtype=np.float64), np.asarray(document_vectors, dtype=np.float64)
    norms = np.linalg.norm(documents, axis=1) * np.linalg.norm(query)
    cosines: list[float] = (documents @ query / norms).tolist()
    return cosines


def _cosines(scores: Sequence[float | None], similarity: Similarity) -> NDArray[np.float64]:
    """The *scores* of a list as cosines that fall from its first document to its last."""
    numbers = (np.nan if score is None else float(score) for score in scores)
    cosines = np.array([n if similarity is None else similarity(n) for n in numbers], dtype=np.float64)
    if (abs(cosines) <= _LARGEST).all() and (np.diff(cosines) <= _TIES).all():
        return cosines
    shown = ", ".join("none" if score is None else f"{score:.3g}" for score in scores[:3])
    raise InputError(f"scores: expected falling cosine similarities, got {shown}")
