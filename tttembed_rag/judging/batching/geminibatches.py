"""Gemini's batches through google-genai, in the steps of a `BatchService`: upload a file, make a batch, read results.

A batch carries the caller's key as its display name. Google deletes uploaded files, and the batches themselves, after
two days.
"""

from __future__ import annotations

from functools import partial
from io import BytesIO
from typing import Any

from tttembed_rag.judges.gemini import Gemini
from tttembed_rag.judging.batching.lines import LineJudge, words_of
from tttembed_rag.judging.batching.service import ServiceBatch, named

# The states of a batch that has ended, in the words of `ServiceBatch`.
_ENDED = {
    "JOB_STATE_SUCCEEDED": "completed",
    "JOB_STATE_PARTIALLY_SUCCEEDED": "completed",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_EXPIRED": "expired",
}


class GeminiBatches:
    """Gemini, asked a file of requests at a time; a `BatchService`. One by one, *chat* asks the same model."""

    def __init__(self, judge: LineJudge, chat: Gemini, *, settling: float = 600.0) -> None:
        self._google, self._client = chat.google, chat.client
        self.judge, self.settling = judge, settling

    def upload(self, content: bytes) -> str:
        """Upload a file of requests; gives Google's name for it."""
        config = {"mime_type": "application/jsonl"}
        return self._google.ask(lambda: named(self._client.files.upload(file=BytesIO(content), config=config).name))

    def create(self, requests: str, key: str) -> ServiceBatch:
        """Make a batch of the uploaded file *requests*; it is asked for once only, for it costs money."""
        asked = {"model": self._google.name, "src": requests, "config": {"display_name": key}}
        return self._google.ask_once(lambda: _batch(self._client.batches.create(**asked)))

    def get(self, number: str) -> ServiceBatch:
        """The batch as it is now."""
        return self._google.ask(lambda: _batch(self._client.batches.get(name=number)))

    def find(self, key: str, requests: str) -> ServiceBatch | None:  # noqa: ARG002 (the list has none)
        """The batch with a key; None where there is none."""
        listed = partial(self._client.batches.list, config={"page_size": 100})
        return self._google.ask(lambda: next((_batch(one) for one in listed() if one.display_name == key), None))

    def delete(self, file: str) -> None:
        """Delete a file of requests or results."""
        self._google.ask(lambda: self._client.files.delete(name=file))

    def download(self, batch: ServiceBatch) -> list[bytes]:
        """The files of results of *batch*, each whole."""
        return [self._google.ask(partial(self._client.files.download, file=name)) for name in batch.results]


def _batch(job: Any) -> ServiceBatch:
    """A batch as google-genai has it."""
    results = job.dest.file_name if job.dest is not None else None
    return ServiceBatch(
        named(job.name),
        _ENDED.get(getattr(job.state, "name", ""), "in_progress"),
        results=(results,) if results else (),
        why=words_of(job.error.model_dump()) if job.error is not None else "",
    )
