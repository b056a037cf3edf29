"""Services that take requests as a file and answer within a day, by the protocol of OpenAI's batches.

A file of requests is uploaded, a batch is made of it, and results are downloaded once the batch has ended. OpenAI,
Azure and LiteLLM speak it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tttembed_rag.errors import JudgeError
from tttembed_rag.judging.batching.lines import LineJudge
from tttembed_rag.judging.batching.service import ServiceBatch, words_of
from tttembed_rag.models.endpoint import Endpoint
from tttembed_rag.models.retrying import Patience

# The name of the caller's key among the metadata of a batch.
_KEY = "tttembed"
# Characters of the name of a batch or a file, and of a service's own words that are shown.
_LONGEST_NAME, _SHOWN = 2000, 240
# Bytes of a file of results.
_LONGEST_FILE = 2**30
# Batches of a page of the list, and pages that are read at most.
_PAGE, _PAGES = 100, 200
# Seconds that the clock of a service may be behind ours.
_BEHIND = 86_400.0


class OpenAIBatches:
    """A service that a judge is asked through, a file of requests at a time.

    Args:
        judge: The judge, which makes the requests and reads the results.

        url: Where the service is, with its version: ``https://api.openai.com/v1``.

        path: The path of single requests, to which each request of a file goes: ``/v1/chat/completions``.

        key: Its secret; None where it needs none.

        header: Header that carries it.

        patience: How often and how fast it is asked.

        timeout: Seconds until an answer must be there, whole.

        settling: Seconds after which a batch that was asked for, and is not in the service's list, was never made.
    """

    def __init__(
        self,
        judge: LineJudge,
        url: str,
        path: str,
        *,
        key: str | None = None,
        header: str = "authorization",
        patience: Patience | None = None,
        timeout: float = 180.0,
        settling: float = 600.0,
    ) -> None:
        self._endpoint = Endpoint(
            url.rstrip("/"), key=key, header=header, patience=patience or Patience(attempts=3), timeout=timeout
        )
        self.judge = judge
        self._path = path
        self.settling = settling

    def upload(self, file: Path) -> str:
        """Upload a file of requests, which costs nothing; gives the service's name for it.

        Raises:
            JudgeError: The service refused, stayed busy, or answered something else.
        """
        form = {"purpose": "batch"}
        return self._endpoint.exchange("POST", "/files", _name, expected="the id of a file", form=form, file=file)

    def create(self, requests: str, key: str) -> ServiceBatch:
        """Make a batch of the uploaded file *requests*; it is asked for once only, for it costs money.

        Raises:
            RefusedError: It was not made.
            JudgeError: Whether it was made is not known; `find` tells.
        """
        body: dict[str, Any] = {"input_file_id": requests, "endpoint": self._path, "completion_window": "24h"}
        body["metadata"] = {_KEY: key}
        return self._endpoint.exchange("POST", "/batches", _batch, expected="a batch", body=body, once=True)

    def get(self, number: str) -> ServiceBatch:
        """The batch as it is now."""
        return self._endpoint.exchange("GET", f"/batches/{quote(number, safe='')}", _batch, expected="a batch")

    def find(self, key: str, requests: str, since: float) -> ServiceBatch | None:
        """The batch with a key, or of an uploaded file, that was made after a Unix second; None where there is none.

        Raises:
            JudgeError: The list cannot be read to its end.
        """
        after, seen = "", set[str]()
        for _ in range(_PAGES):
            parameters = {"limit": str(_PAGE)} | ({"after": after} if after else {})
            read = partial(_page, key=key, requests=requests)
            page, more = self._endpoint.exchange(
                "GET", "/batches", read, expected="a list of batches", parameters=parameters
            )
            for batch in page:
                if batch.key == key or (batch.requests and batch.requests == requests):
                    return batch
            fresh = [batch for batch in page if batch.number not in seen]
            if not more or not fresh or all(batch.created_at < since - _BEHIND for batch in fresh):
                return None
            seen.update(batch.number for batch in fresh)
            after = page[-1].number
        raise JudgeError(f"{self._endpoint.name}: expected a list of at most {_PAGES * _PAGE} batches, got more")

    def delete(self, file: str) -> None:
        """Delete a file of requests or results at the service.

        Raises:
            JudgeError: The service refused, or stayed busy.
        """
        self._endpoint.exchange("DELETE", f"/files/{quote(file, safe='')}", _anything, expected="an answer in JSON")

    def download(self, batch: ServiceBatch, folder: Path) -> list[Path]:
        """Write the files of results of *batch*, each whole, into a folder; gives their paths."""
        paths = [folder / f"results-{number}.jsonl" for number in range(len(batch.results))]
        for name, path in zip(batch.results, paths, strict=True):
            self._endpoint.download(f"/files/{quote(name, safe='')}/content", path, most=_LONGEST_FILE)
        return paths


def _anything(answer: Any) -> None:
    """Nothing is read from *answer*."""


def _name(answer: Any) -> str:
    """The id of a file or a batch."""
    name = answer["id"]
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or _is_odd(name):
        raise TypeError("expected an id")
    return name


def _is_odd(name: str) -> bool:
    """Whether *name* cannot be a part of an address: half of a pair of surrogates cannot be written in one at all."""
    return not name.isprintable() or name in (".", "..")


def _batch(answer: Any) -> ServiceBatch:
    metadata, errors = answer.get("metadata"), answer.get("errors")
    created = answer.get("created_at")
    is_time = isinstance(created, int | float) and not isinstance(created, bool)
    return ServiceBatch(
        _name(answer),
        _text(answer["status"]),
        key=_text(metadata.get(_KEY)) if isinstance(metadata, Mapping) else "",
        requests=_text(answer.get("input_file_id")),
        results=tuple(_name({"id": file}) for kind in ("output", "error") if (file := answer.get(f"{kind}_file_id"))),
        created_at=float(created) if is_time else float("inf"),
        why="; ".join(words_of(error) for error in (errors or {}).get("data") or [])[:_SHOWN],
    )


def _page(answer: Any, *, key: str, requests: str) -> tuple[list[ServiceBatch], bool]:
    """The batches of a page, and whether there are more; a batch of others that cannot be read is no reason to stop."""
    batches = []
    for one in answer["data"]:
        try:
            batches.append(_batch(one))
        except (AttributeError, KeyError, TypeError):
            if key in str(one) or requests in str(one):
                raise
    return batches, bool(answer.get("has_more")) and bool(batches)


def _text(said: Any) -> str:
    if said is not None and not isinstance(said, str):
        raise TypeError("expected a text")
    return (said or "")[:_LONGEST_NAME]
