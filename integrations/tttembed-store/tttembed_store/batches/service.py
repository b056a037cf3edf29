"""Services that take requests as a file and answer within a day: those of OpenAI's protocol, and Gemini.

A file of requests is uploaded, a batch is made of it, and results are downloaded once the batch has ended. Azure and
LiteLLM speak the protocol of OpenAI too. Google deletes uploaded files, and the batches themselves, after two days.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, TypeAlias

from tttembed_rag.clients.openaiclient import failures_of
from tttembed_rag.clients.options import without_secrets
from tttembed_rag.errors import InputError
from tttembed_rag.judges.chats import Gemini
from tttembed_rag.judges.rubric import RubricJudge
from tttembed_rag.judges.specs import open_judge
from tttembed_store.batches.lines import LineJudge, words_of

# States of a batch that does not change any more: Google says succeeded where others say completed.
_ENDED = ("completed", "succeeded", "partially_succeeded", "failed", "expired", "cancelled")
# The name of the caller's key among the metadata of a batch.
_KEY = "tttembed"
# Characters of a service's own words that are shown.
_SHOWN = 240
# Batches of a page of the list: so many in a row that are older than what is looked for end the search.
_PAGE = 100
# Seconds that the clock of a service may be behind ours.
_BEHIND = 86_400.0


@dataclass(frozen=True, slots=True)
class ServiceBatch:
    """A batch, as its service describes it: its name there, its state, and the names of files of results and of errors.

    *why* it failed is said in the service's own words.
    """

    number: str
    state: str
    results: tuple[str, ...] = ()
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether there will be no further results."""
        return self.state in _ENDED


class OpenAIBatches:
    """A service of OpenAI's protocol, asked through *client*, an `openai.OpenAI`.

    Each method raises a `JudgeError` where the service refuses, stays busy, or answers something else. A batch that was
    asked for, and is not in the service's list after *settling* seconds, was never made.
    """

    def __init__(self, judge: LineJudge, client: Any, *, settling: float = 600.0) -> None:
        self._client = client
        self._name = f"{client.base_url.scheme}://{client.base_url.netloc.decode()}{client.base_url.path}"
        self.judge, self.settling = judge, settling

    def upload(self, content: bytes) -> str:
        """Upload a file of requests, which costs nothing; gives the service's name for it."""
        file = ("requests.jsonl", content, "application/jsonl")
        with failures_of(self._name, "the id of a file"):
            return _named(self._client.files.create(file=file, purpose="batch").id)

    def create(self, requests: str, key: str) -> ServiceBatch:
        """Make a batch of the uploaded file *requests*; it is asked for once only, for it costs money.

        Raises:
            RefusedError: It was not made.
            JudgeError: Whether it was made is not known; `find` tells.
        """
        create = self._client.with_options(max_retries=0).batches.create
        request = {"input_file_id": requests, "endpoint": self.judge.path, "completion_window": "24h"}
        with failures_of(self._name, "a batch"):
            return self._batch(create(**request, metadata={_KEY: key}))

    def get(self, number: str) -> ServiceBatch:
        """The batch as it is now."""
        with failures_of(self._name, "a batch"):
            return self._batch(self._client.batches.retrieve(number))

    def find(self, key: str, requests: str, since: float) -> ServiceBatch | None:
        """The batch with a key, or of an uploaded file, that was made after a Unix second; None where there is none."""
        seen, old = set[str](), 0
        with failures_of(self._name, "a list of batches"):
            for batch in self._client.batches.list(limit=_PAGE):
                metadata = batch.metadata if isinstance(batch.metadata, Mapping) else {}
                if metadata.get(_KEY) == key or batch.input_file_id == requests:
                    return self._batch(batch)
                is_old = isinstance(batch.created_at, int | float) and batch.created_at < since - _BEHIND
                old = old + 1 if is_old else 0
                if old == _PAGE or batch.id in seen:  # a page that comes again has no end
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

    @staticmethod
    def _batch(batch: Any) -> ServiceBatch:
        errors = batch.errors.data or [] if batch.errors else []
        results = tuple(filter(None, (batch.output_file_id, batch.error_file_id)))
        why = "; ".join(words_of(error.to_dict()) for error in errors)[:_SHOWN]
        return ServiceBatch(_named(batch.id), str(batch.status), results, why)


class GeminiBatches:
    """Gemini, asked through *chat*, with the methods of `OpenAIBatches`; a batch has its key for a display name."""

    def __init__(self, judge: LineJudge, chat: Gemini, *, settling: float = 600.0) -> None:
        self._google, self._client = chat.google, chat.client
        self.judge, self.settling = judge, settling

    def upload(self, content: bytes) -> str:
        """Upload a file of requests; gives Google's name for it."""
        config = {"mime_type": "application/jsonl"}
        return self._google.ask(lambda: _named(self._client.files.upload(file=BytesIO(content), config=config).name))

    def create(self, requests: str, key: str) -> ServiceBatch:
        """Make a batch of the uploaded file *requests*; it is asked for once only, for it costs money."""
        request = {"model": self._google.name, "src": requests, "config": {"display_name": key}}
        return self._google.ask_once(lambda: self._batch(self._client.batches.create(**request)))

    def get(self, number: str) -> ServiceBatch:
        """The batch as it is now."""
        return self._google.ask(lambda: self._batch(self._client.batches.get(name=number)))

    def find(self, key: str, requests: str, since: float) -> ServiceBatch | None:  # noqa: ARG002 (the list has none)
        """The batch with a key; None where there is none."""
        listed = partial(self._client.batches.list, config={"page_size": _PAGE})
        return self._google.ask(
            lambda: next((self._batch(batch) for batch in listed() if batch.display_name == key), None)
        )

    def delete(self, file: str) -> None:
        """Delete a file of requests or results."""
        self._google.ask(lambda: self._client.files.delete(name=file))

    def download(self, batch: ServiceBatch) -> list[bytes]:
        """The files of results of *batch*, each whole."""
        return [self._google.ask(partial(self._client.files.download, file=name)) for name in batch.results]

    @staticmethod
    def _batch(job: Any) -> ServiceBatch:
        results = job.dest.file_name if job.dest is not None else None
        state = getattr(job.state, "name", "").removeprefix("JOB_STATE_").lower()
        why = words_of(job.error.model_dump()) if job.error is not None else ""
        return ServiceBatch(_named(job.name), state, (results,) if results else (), why)


BatchService: TypeAlias = OpenAIBatches | GeminiBatches


def _named(name: object) -> str:
    """The *name* of a file or a batch, as a service gave it, which can be a part of an address."""
    if not isinstance(name, str) or not name.isprintable() or not name.strip("."):
        raise TypeError("expected a name")
    return name


def open_batch_service(spec: str) -> BatchService:
    """The service with batches of the judge that *spec* names, as in `open_judge`: nothing is asked.

    ``openai:MODEL`` (``url=`` for another service of the same protocol) or ``gemini:MODEL``.

    Raises:
        InputError: No such kind or option, a key is missing, or a kind without batches.
    """
    judge = open_judge(spec) if spec.partition(":")[0] in ("openai", "gemini") else None
    if not isinstance(judge, RubricJudge):
        raise InputError(
            f"judge: expected openai:MODEL or gemini:MODEL where it is asked by batches, got {without_secrets(spec)!r}"
        )
    if isinstance(judge.complete, Gemini):
        return GeminiBatches(LineJudge(judge), judge.complete)
    return OpenAIBatches(LineJudge(judge), judge.complete.client)
