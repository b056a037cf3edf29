"""From a base vector to the vector that is searched with."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, VectorError, in_brief
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.rescorer import check_list
from tttembed_rag.offsets.skips import Skips
from tttembed_rag.serving.context import current_task
from tttembed_rag.serving.live import LiveOffsets, checked_offsets
from tttembed_rag.system import telemetry

_log = logging.getLogger(__name__)
# Attributes in which embedding models of the frameworks keep the width of their vectors.
_WIDTHS = ("dimensions", "embed_dim", "size")
# The largest cosine in float16, and by how much one of equal rank may rise.
_LARGEST, _TIES = 1.01, 1e-3


@runtime_checkable
class NamesTasks(Protocol):
    """A wrapper that knows the tasks of its queries, such as `Steering` and the wrapped embeddings of the adapters."""

    def task_of(self, query: str, /) -> str | None:
        """The task of *query*, None where nothing names one."""


# Score to cosine similarity; None where scores are cosines.
Similarity: TypeAlias = Callable[[float], float] | None
# A task key, a wrapper that names tasks, a function from query text to task key or None, or None.
TaskSource: TypeAlias = str | NamesTasks | Callable[[str], str | None] | None


def checked_task(source: TaskSource) -> TaskSource:
    """*source* as it came, or an InputError that names it ``task``."""
    if not (source is None or isinstance(source, str | NamesTasks) or callable(source)):
        raise InputError(
            f"task: expected a task key, wrapped embeddings, a function or None, got {type(source).__name__}"
        )
    return source


def resolve_task(source: TaskSource, query: str) -> str | None:
    """The task of *query*: a fixed *source*, else the caller's `context`, else what *source* answers.

    Where none of the three names a task, the query has none; that of the last query is never used. A wrapper as
    *source* decides as it does for its own queries, so that what is logged and what is asked for agree. A resolver
    that fails, or answers anything but a text, names no task; the failure is logged.
    """
    if source is None or isinstance(source, str):  # before the checks of protocols, which take longer than all else
        return current_task() if source is None else source
    if isinstance(source, NamesTasks):
        return source.task_of(query)
    task = current_task()
    if task is not None:
        return task
    try:
        answer = source(query)
    except Exception:  # noqa: BLE001 - the caller's code: whatever it raises, the query is answered
        _log.exception("%r named no task", source)
        return None
    return answer if isinstance(answer, str) else None


@dataclass(slots=True)
class Ranked:
    """What a search found, as it is served: the *places* in its list, best first.

    In the scores that sort it, the first leads by *lead*, which is not a number where the list stays as it came. Which
    lists of the *task* need no reranker, *skips* says by the verdicts of the *judge*. What is no query with texts and
    scores is *refused*, as nobody can sort it.
    """

    places: list[int]
    lead: float = math.nan
    skips: Skips | None = None
    judge: str = ""
    task: str | None = None
    refused: bool = False


class Steering:
    """Query vectors with their private offset, else that of their task; what offsets refuse is served as it came.

    A private offset is that of a query with rewards of its own: it is served wherever the same text is asked again in
    its task, or the caller's ``with context(..., query_id=...)`` names the id it was recorded under.

    Args:
        offsets: What was learned; `LiveOffsets` where it is replaced while serving.
        task: A task for every query, or a function from query text to task; a caller's `context` comes before the
            function. Where no task is named, the default task's or the global offset is looked up, as `Offsets.apply`
            does, and without one the base vector served.
        model: The embedding model; where it says how wide its vectors are, offsets of another width are refused here
            and not at the first query.

    Raises:
        InputError: *offsets* or *task* are something else, or the offsets are of another width than the model's.
    """

    def __init__(self, offsets: Offsets | LiveOffsets, task: TaskSource = None, *, model: Any = None) -> None:
        self._live = offsets if isinstance(offsets, LiveOffsets) else LiveOffsets(checked_offsets(offsets))
        widths = (getattr(model, name, None) for name in _WIDTHS)
        width = next((one for one in widths if type(one) is int and one > 0), None)
        if isinstance(offsets, Offsets) and width not in (None, offsets.width):
            raise InputError(
                f"offsets: expected the width of {type(model).__name__}, {width}, got {offsets.width}: they were "
                "learned for another embedding model"
            )
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

    def apply(self, vector: Any, query: str) -> Any:
        """The vector to search with: *vector* (d,) with its offset, as a list of Python floats.

        A vector that the offsets refuse (NaN, zero, another width) is handed back; the first
        refusal of a task is logged.
        """
        # Some providers hand out numpy arrays; stores expect Python floats.
        base = vector.tolist() if isinstance(vector, np.ndarray) else vector
        task = self.task_of(query)
        offsets, offset = self._live.serving(query, task)
        steered, served = base, False
        try:
            if offsets is not None:
                steered, served = offsets.apply_found(base, offset), offset is not None
        except VectorError as error:
            if ("vector", task) not in self._logged:
                self._logged.add(("vector", task))
                _log.warning("task=%r: base vectors are served where the offsets refuse them: %s", task, error)
        telemetry.applied.add((task, served))
        if served:  # a vector that a trace keeps must not be taken for a base vector
            telemetry.mark(steered=True)
        return steered

    def needs_scores(self, query: str) -> bool:
        """Whether `order` or a cascade makes anything of the scores of a list for *query*; else none need be known."""
        task = self.task_of(query)
        offsets, _ = self._live.serving(query, task)
        return offsets is not None and not (offsets.rescorer(task) is None and offsets.skips(task) is None)

    def order(
        self, query: str, texts: Sequence[str], scores: Sequence[float | None], *, similarity: Similarity = None
    ) -> list[int]:
        """Places of what a search with the vector of `apply` found, best first, by the words shared with *query* too.

        They stay as they came where no rescorer of the task is published, where the scores are no cosines, and whatever
        goes wrong; the first time is logged.

        Args:
            query: Its text.
            texts: Texts of the k candidates, in the order of the search: 20 to 100, before the list is cut.
            scores: Their scores, as the search gives them.
            similarity: Score to cosine similarity; None where scores are cosines.
        """
        return self.ranked(query, texts, scores, similarity=similarity).places

    def ranked(
        self, query: str, texts: Sequence[str], scores: Sequence[float | None], *, similarity: Similarity = None
    ) -> Ranked:
        """The same as `order`, with what is known of how sure the list is of its first place."""
        found = Ranked(list(range(len(texts))), refused=True)
        try:
            check_list(query, texts, scores)
            found.refused = False
            found.task = self.task_of(query)
            offsets, offset = self._live.serving(query, found.task)
            if offsets is None:
                return found
            found.judge = str(offsets.settings.get("judge", ""))
            if offset is None or offset.query_id is None:  # of lists under private offsets nothing is certified
                found.skips = offsets.skips(found.task)
            rescorer = offsets.rescorer(found.task)
            if rescorer is None and found.skips is None:
                return found
            by = _cosines(scores, similarity)
            if rescorer is not None:
                by = rescorer.scores(query, texts, by)
                found.places = np.argsort(-by, kind="stable").tolist()
            found.lead = float(by[found.places[0]] - by[found.places[1]]) if len(by) > 1 else math.inf
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on with the list of the search
            _log.debug("not sorted by words", exc_info=True)
            if ("list", None) not in self._logged:
                self._logged.add(("list", None))
                _log.warning("task=%r: not sorted by words: %s", found.task, in_brief(error))
        return found

    def __repr__(self) -> str:
        return f"{self._live!r}, task={self._task!r}"


def _cosines(scores: Sequence[float | None], similarity: Similarity) -> NDArray[np.float64]:
    """The *scores* of a list as cosines that fall from its first document to its last."""
    given = (np.nan if score is None else float(score) for score in scores)
    cosines = np.array([one if similarity is None else similarity(one) for one in given], dtype=np.float64)
    if (abs(cosines) <= _LARGEST).all() and (np.diff(cosines) <= _TIES).all():
        return cosines
    shown = ", ".join("none" if score is None else f"{score:.3g}" for score in scores[:3])
    raise InputError(f"scores: expected falling cosine similarities, got {shown}")
