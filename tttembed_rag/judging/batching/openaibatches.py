"""Batches by the protocol of OpenAI, which Azure, vLLM and LiteLLM speak too, through openai.

A file of requests is uploaded, a batch is made of it, and results are downloaded once the batch has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tttembed_rag.errors import JudgeError
from tttembed_rag.judging.batching.lines import LineJudge, words_of
from tttembed_rag.judging.batching.service import ServiceBatch
from tttembed_rag.models.openaiclient import failures_of

# The name of the caller's key among the metadata of a batch.
_KEY = "tttembed"
# Characters of the name of a batch or a file, and of a service's own words that are shown.
_LONGEST_NAME, _SHOWN = 2000, 240
# Batches of a page of the list, and batches that are read at most.
_PAGE, _MOST = 100, 20_000
# Seconds that the clock of a service may be behind ours.
_BEHIND = 86_400.0


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
            return _name(self._client.files.create(file=file, purpose="batch").id)

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

    def find(self, key: str, requests: str, since: float) -> ServiceBatch | None:
        """The batch with a key, or of an uploaded file, that was made after a Unix second; None where there is none."""
        seen, old = set[str](), 0
        with failures_of(self._name, "a list of batches"):
            for batch in self._client.batches.list(limit=_PAGE):
                if _key(batch) == key or batch.input_file_id == requests:
                    return _batch(batch)
                is_old = isinstance(batch.created_at, int | float) and batch.created_at < since - _BEHIND
                old = old + 1 if is_old else 0
                if old == _PAGE or batch.id in seen:  # a page that comes again has no end
                    return None
                seen.add(batch.id)
                if len(seen) > _MOST:
                    raise JudgeError(f"{self._name}: expected a list of at most {_MOST} batches, got more")
        return None

    def delete(self, file: str) -> None:
        """Delete a file of requests or results at the service."""
        with failures_of(self._name, "an answer in JSON"):
            self._client.files.delete(file)

    def download(self, batch: ServiceBatch) -> list[bytes]:
        """The files of results of *batch*, each whole."""
        with failures_of(self._name, "a file"):
            return [self._client.files.content(name).content for name in batch.results]


def _name(name: Any) -> str:
    """The id of a file or a batch, which can be a part of an address."""
    is_odd = not isinstance(name, str) or not name.isprintable() or name in (".", "..")
    if is_odd or not 0 < len(name) <= _LONGEST_NAME:
        raise TypeError("expected an id")
    return str(name)


def _key(batch: Any) -> Any:
    return batch.metadata.get(_KEY) if isinstance(batch.metadata, Mapping) else None


def _batch(batch: Any) -> ServiceBatch:
    errors = batch.errors.data or [] if batch.errors else []
    return ServiceBatch(
        _name(batch.id),
        str(batch.status),
        results=tuple(_name(file) for file in (batch.output_file_id, batch.error_file_id) if file),
        why="; ".join(words_of(error.to_dict()) for error in errors)[:_SHOWN],
    )
