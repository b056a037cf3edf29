"""Nodes that retrievers returned, from LlamaIndex's instrumentation."""

from __future__ import annotations

import logging
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.schema import QueryBundle
from llama_index.embeddings.tttembed.resolvers import ids_of
from llama_index.postprocessor.tttembed.base import read_texts

from tttembed_rag import TextVectors
from tttembed_rag.adapting import FailureLog, Log, TaskSource, checked_log, checked_task, resolve_task

logger = logging.getLogger(__name__)

# The instrument tag that names the task.
TASK_TAG = "tttembed_task"


class RewardEventHandler(BaseEventHandler):
    """Notes the nodes of every retrieval, to be judged later: by `RewardLog.score_waiting`, or from a store.

    Add it to a dispatcher once: dispatchers have no way to remove it, so *enabled* turns it off. The
    task is the ``tttembed_task`` of ``instrument_tags``, else as in `TTTEmbedding`. Nested
    retrievers report the same pairs twice; the log keeps a pair once.

    Args:
        log: Keeps queries and nodes.
        task: As in `TTTEmbedding`, best the wrapped model itself.
        vectors: Keeps the id of each node in the index; give the same to `TTTEmbedding.rewards`.
    """

    enabled: bool = True
    _log: Log = PrivateAttr()
    _task: TaskSource = PrivateAttr()
    _vectors: TextVectors | None = PrivateAttr()
    _failures: FailureLog = PrivateAttr(default_factory=lambda: FailureLog(logger))

    def __init__(self, log: Log, *, task: TaskSource = None, vectors: TextVectors | None = None) -> None:
        super().__init__()
        self._log = checked_log(log)
        self._task = checked_task(task)
        self._vectors = vectors

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex knows it by."""
        return "RewardEventHandler"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:  # noqa: ARG002 - the framework's signature
        """Note the nodes of a finished retrieval; an error is logged, because LlamaIndex swallows it."""
        if not self.enabled or not isinstance(event, RetrievalEndEvent):
            return
        try:
            bundle = event.str_or_query_bundle
            query = bundle.query_str if isinstance(bundle, QueryBundle) else bundle
            named = (event.tags or {}).get(TASK_TAG)
            task = named if isinstance(named, str) else resolve_task(self._task, query)
            self._log.observe(query, read_texts(event.nodes), task=task)
            if self._vectors is not None:
                self._vectors.note(ids_of(event.nodes))
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("%d retrieved nodes were not recorded", len(event.nodes))
