"""Batches by the protocol of OpenAI, which Azure, vLLM and LiteLLM speak too, through openai.

A file of requests is uploaded, a batch is made of it, and results are downloaded once the batch has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tttembed_rag.judging.batching.lines import LineJudge, words_of
from tttembed_rag.judging.batching.service import ServiceBatch, named
from tttembed_rag.models.openaiclient import failures_of

# The name of the caller's key among the metadata of a batch.
_KEY = "tttembed"
# Characters of a service's own words that are shown.
_SHOWN = 240
# Batches of a page of the list.
_PAGE = 100


class OpenAIBatches:
    """A `BatchService` of OpenAI's protocol, asked through *client*, an `openai.OpenAI`."""

    def __init__(self, judge: LineJudge, client: Any, *, settling: float = 600.0) -> None:
        self._client = client
        self._name = f"{client.base_url.scheme}://{client.base_url.netloc.decode()}{client.base_url.path}"
        self.judge, self.settling = judge, settling

    def upload(self, content: bytes) -> str:
        """Upload a file of requests, which costs nothing; gives the service's name for it."""
        file = ("requests.jsonl", content, "application/jsonl")
        with failures_of(self._name, "the id of a file"):
            return named(self._client.files.create(file=file, purpose="batch").id)

    def create(self, requests: str, key: str) -> ServiceBatch:
        """Make a batch of the uploaded file *requests*; it is asked for once only, for it costs money."""
        create = self._client.with_options(max_retries=0).batches.create
        asked = {"input_file_id": requests, "endpoint": self.judge.path, "completion_window": "24h"}
        with failures_of(self._name, "a batch"):
            return _batch(create(**asked, metadata={_KEY: key}))

    def get(self, number: str) -> ServiceBatch:
        """The batch as it is now."""
        with failures_of(self._name, "a batch"):
            return _batch(self._client.batches.retrieve(number))

    def find(self, key: str, requests: str) -> ServiceBatch | None:
        """The batch with a key, or of an uploaded file; None where there is none."""
        seen = set[str]()
        with failures_of(self._name, "a list of batches"):
            for batch in self._client.batches.list(limit=_PAGE):
                if _key(batch) == key or batch.input_file_id == requests:
                    return _batch(batch)
                if batch.id in seen:  # a page that comes again has no end
                    return None
                seen.add(batch.id)
        return None

    def delete(self, file: str) -> None:
        """Delete a file of requests or results at the service."""
        with failures_of(self._name, "an answer in JSON"):
            self._client.files.delete(file)

    def download(self, batch: ServiceBatch) -> list[bytes]:
        """The files of results of *batch*, each whole."""
        with failures_of(self._name, "a file"):
            return [self._client.files.content(name).content for name in batch.results]


def _key(batch: Any) -> Any:
    return batch.metadata.get(_KEY) if isinstance(batch.metadata, Mapping) else None


def _batch(batch: Any) -> ServiceBatch:
    errors = batch.errors.data or [] if batch.errors else []
    return ServiceBatch(
        named(batch.id),
        str(batch.status),
        results=tuple(filter(None, (batch.output_file_id, batch.error_file_id))),
        why="; ".join(words_of(error.to_dict()) for error in errors)[:_SHOWN],
    )
