"""Gemini's batches through google-genai, in the steps of a `BatchService`: upload a file, make a batch, read results.

A batch carries the caller's key as its display name. Google deletes uploaded files, and the batches themselves, after
two days.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any, TypeVar

from tttembed_rag.errors import JudgeError
from tttembed_rag.judges.gemini import Gemini
from tttembed_rag.judging.batching.lines import LineJudge, words_of
from tttembed_rag.judging.batching.service import ServiceBatch
from tttembed_rag.models.googleclient import failures_of

ResultT = TypeVar("ResultT")

# The states of a batch that has ended, in the words of `ServiceBatch`.
_ENDED = {
    "JOB_STATE_SUCCEEDED": "completed",
    "JOB_STATE_PARTIALLY_SUCCEEDED": "completed",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_EXPIRED": "expired",
}
# Batches of a page of the list, and batches that are read at most.
_PAGE, _MOST = 100, 20_000


class GeminiBatches:
    """Gemini, asked a file of requests at a time; a `BatchService`. One by one, *chat* asks the same model."""

    def __init__(self, judge: LineJudge, chat: Gemini, *, settling: float = 600.0) -> None:
        self._client, self._model, self._ask = chat.client, chat.name, chat.ask
        self.judge, self.settling = judge, settling

    def upload(self, content: bytes) -> str:
        """Upload a file of requests; gives Google's name for it."""
        config = {"mime_type": "application/jsonl"}
        return self._asked(lambda: _text(self._client.files.upload(file=BytesIO(content), config=config).name))

    def create(self, requests: str, key: str) -> ServiceBatch:
        """Make a batch of the uploaded file *requests*; it is asked for once only, for it costs money."""
        config = {"display_name": key}
        return self._once(
            lambda: self._read(self._client.batches.create(model=self._model, src=requests, config=config))
        )

    def get(self, number: str) -> ServiceBatch:
        """The batch as it is now."""
        return self._asked(lambda: self._read(self._client.batches.get(name=number)))

    def find(self, key: str, requests: str, since: float) -> ServiceBatch | None:  # noqa: ARG002 (the list has none)
        """The batch with a key; None where there is none."""

        def look() -> ServiceBatch | None:
            for seen, job in enumerate(self._client.batches.list(config={"page_size": _PAGE})):
                if job.display_name == key:
                    return self._read(job)
                if seen >= _MOST:
                    raise JudgeError(f"{self._model}: expected a list of at most {_MOST} batches, got more")
            return None

        return self._asked(look)

    def delete(self, file: str) -> None:
        """Delete a file of requests or results."""
        self._asked(lambda: self._client.files.delete(name=file))

    def download(self, batch: ServiceBatch) -> list[bytes]:
        """The files of results of *batch*, each whole."""
        return [self._asked(partial(self._client.files.download, file=name)) for name in batch.results]

    def _asked(self, call: Callable[[], ResultT]) -> ResultT:
        """What *call* gives, asked again where that may help."""
        return self._ask(lambda: self._once(call))

    def _once(self, call: Callable[[], ResultT]) -> ResultT:
        with failures_of(self._model):
            return call()

    def _read(self, job: Any) -> ServiceBatch:
        """A batch as google-genai has it."""
        results = job.dest.file_name if job.dest is not None else None
        return ServiceBatch(
            _text(job.name),
            _ENDED.get(getattr(job.state, "name", ""), "in_progress"),
            results=(results,) if results else (),
            why=words_of(job.error.model_dump()) if job.error is not None else "",
        )


def _text(name: Any) -> str:
    """A name that the service gave."""
    if not isinstance(name, str) or not name:
        raise JudgeError(f"gemini: expected the name of a file or a batch, got {name!r:.80}")
    return name
