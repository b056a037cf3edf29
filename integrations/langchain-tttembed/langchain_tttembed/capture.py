"""Taps that write the retrieved and scored documents of an application into a log, and never disturb it.

A tap returns the result of the wrapped object, as a list where it can be read once alone. Its own failures are logged.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Annotated, Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict, PlainValidator, PrivateAttr

from langchain_tttembed.resolvers import ids_of
from tttembed_rag import InputError, TextVectors
from tttembed_rag.adapting import FailureLog, Log, TaskSource, checked_log, checked_task, resolve_task
from tttembed_rag.errors import check_count

logger = logging.getLogger(__name__)

# The key of a retriever's metadata, or of a call's, that names the task.
METADATA_KEY = "tttembed_task"

ItemsT = TypeVar("ItemsT", bound=Iterable[Any])


def _kept(items: ItemsT) -> ItemsT | list[Any]:
    """*items*, as a list where they can be read once alone."""
    return items if hasattr(items, "__len__") else list(items)


class RecordingCrossEncoder(BaseCrossEncoder):
    """The wrapped cross encoder; every pair it scores, kept or cut off later, goes to the log.

    Args:
        cross_encoder: The one to wrap.
        log: Keeps its scores; made for its fingerprint and scale. Its judge is declared: `Log.declare`.
        task: As in `TTTEmbeddings`; best the wrapped embeddings themselves, which ask for the same task then.
        source: Who gives the scores: empty is the judge itself, None the source of the caller's
            ``with tttembed_rag.context(..., source=...)``, for scores that are users' or agents' own.
    """

    def __init__(
        self, cross_encoder: BaseCrossEncoder, log: Log, *, task: TaskSource = None, source: str | None = ""
    ) -> None:
        if not isinstance(cross_encoder, BaseCrossEncoder):
            raise InputError(f"cross_encoder: expected a BaseCrossEncoder, got {type(cross_encoder).__name__}")
        self._cross_encoder = cross_encoder
        self._log = checked_log(log)
        self._task = checked_task(task)
        self._source = source
        self._failures = FailureLog(logger)
        if source == "":
            log.declare(type(self).__name__)

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """The wrapped cross encoder's scores, as they came; minus infinity is a pair that was not judged."""
        text_pairs = _kept(text_pairs)
        scores = _kept(self._cross_encoder.score(text_pairs))
        try:
            if len(scores) != len(text_pairs):
                raise InputError(
                    f"cross_encoder: expected a score for each of {len(text_pairs)} pairs, got {len(scores)}"
                )
            pairs: dict[str, list[tuple[str, float | None]]] = {}
            for (query, text), score in zip(text_pairs, scores, strict=True):
                pairs.setdefault(query, []).append((text, None if score == -math.inf else float(score)))
            for query, scored in pairs.items():
                texts, numbers = zip(*scored, strict=True)
                self._log.record(query, texts, numbers, task=resolve_task(self._task, query), source=self._source)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("scored pairs were not recorded")
        return scores


class RecordingCompressor(BaseDocumentCompressor):
    """The wrapped compressor; documents it leaves with a ``relevance_score`` go to the log.

    Compressors that keep the best few show nothing of the others: where there is a cross encoder,
    wrap that instead. *log* and *source* are those of `RecordingCrossEncoder`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    compressor: BaseDocumentCompressor
    log: Log
    task: Annotated[TaskSource, PlainValidator(checked_task)] = None
    source: str | None = ""
    _failures: FailureLog = PrivateAttr(default_factory=lambda: FailureLog(logger))

    def model_post_init(self, context: Any, /) -> None:
        """Declare the judge whose order is served."""
        super().model_post_init(context)
        if self.source == "":
            self.log.declare(type(self).__name__)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """What the wrapped compressor makes of *documents*."""
        return self._recorded(self.compressor.compress_documents(documents, query, callbacks), query)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """What the wrapped compressor makes of *documents*."""
        return self._recorded(await self.compressor.acompress_documents(documents, query, callbacks), query)

    def _recorded(self, documents: Sequence[Document], query: str) -> Sequence[Document]:
        documents = _kept(documents)
        try:
            scored = [document for document in documents if document.metadata.get("relevance_score") is not None]
            if documents and not scored:
                name = type(self.compressor).__name__
                raise InputError(f"{name} leaves no relevance_score: wrap its model in RecordingCrossEncoder")
            texts = [document.page_content for document in scored]
            scores = [float(document.metadata["relevance_score"]) for document in scored]
            self.log.record(query, texts, scores, task=resolve_task(self.task, query), source=self.source)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("compressed documents were not recorded")
        return documents


class RewardCallbackHandler(BaseCallbackHandler):
    """Notes the documents of retrievers, to be judged later: by `RewardLog.score_waiting`, or from a store.

    Pass it in ``config={"callbacks": [handler]}``. Start and end of a run are paired by its id. Only
    leaves count: a retriever that asked another one hands on documents that were noted there. The
    task is the ``tttembed_task`` of the run's metadata, else as in `TTTEmbeddings`.

    Args:
        log: Keeps queries and documents.
        task: As in `TTTEmbeddings`, best the wrapped embeddings themselves.
        vectors: Keeps the id of each document in the store; give the same to `TTTEmbeddings.rewards`.
        max_pending: Runs that may be open at once; beyond it the oldest is forgotten.
    """

    ignore_llm = True
    ignore_chain = True
    ignore_agent = True
    ignore_chat_model = True

    def __init__(
        self,
        log: Log,
        *,
        task: TaskSource = None,
        vectors: TextVectors | None = None,
        max_pending: int = 1024,
    ) -> None:
        check_count("max_pending", max_pending)
        self._log = checked_log(log)
        self._task = checked_task(task)
        self._vectors = vectors
        self._failures = FailureLog(logger)
        self._max_pending = max_pending
        self._pending: OrderedDict[UUID, tuple[str, str | None]] = OrderedDict()
        self._lock = Lock()

    def on_retriever_start(
        self,
        serialized: dict[str, Any],  # noqa: ARG002 - the framework's signature
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Remember the query; a retriever that asks another one is forgotten."""
        named = (metadata or {}).get(METADATA_KEY)
        task = named if isinstance(named, str) else resolve_task(self._task, query)
        with self._lock:
            if parent_run_id is not None:
                self._pending.pop(parent_run_id, None)
            self._pending[run_id] = (query, task)
            while len(self._pending) > self._max_pending:
                self._pending.popitem(last=False)

    def on_retriever_end(
        self,
        documents: Sequence[Document],
        *,
        run_id: UUID,
        **kwargs: Any,  # noqa: ARG002 - the framework's signature
    ) -> None:
        """Note the documents of a leaf."""
        with self._lock:
            query, task = self._pending.pop(run_id, (None, None))
        if query is None:
            return
        try:
            if not isinstance(documents, Sequence):  # whoever waits for them would find nothing
                raise InputError(f"documents: expected a list, got {type(documents).__name__}")
            self._log.observe(query, [document.page_content for document in documents], task=task)
            if self._vectors is not None:
                self._vectors.note(ids_of(documents))
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("retrieved documents were not recorded")

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Forget a run that failed."""
        with self._lock:
            self._pending.pop(run_id, None)
