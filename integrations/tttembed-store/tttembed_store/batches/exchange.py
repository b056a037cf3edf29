"""The steps of a batch, from when it is written down to when it is struck off.

A process may be killed between any two of them:

    the batch is written down            it counts as spent with its highest cost from now on
    its requests are uploaded            which costs nothing
    the name of their file is kept       without it nothing was asked for: the batch is struck off
    the service makes the batch          it carries the key that was written down, and the name of the file
    the name of the batch is kept        without it the service's list tells whether it was made
    it ends, and its results are read    by `collect`: each answer is kept as paid
    it is struck off                     its answers have been counted, and its highest cost is not any more
    its files are deleted                as far as the service allows it

A batch that the service refuses to make is struck off at once. Results that were read before a kill are read again,
which changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TypeVar
from uuid import uuid4

from tttembed_rag.clients.retrying import RefusedError
from tttembed_rag.errors import JudgeError
from tttembed_rag.judging.calls import in_time
from tttembed_rag.judging.spending import Price
from tttembed_rag.system.terminal import printable
from tttembed_store.batches.lines import Requests
from tttembed_store.batches.service import BatchService, ServiceBatch
from tttembed_store.sql.work.openbatches import GIVEN_UP, OpenBatch, TenantBooks

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class NeverMadeError(RefusedError):
    """A batch that its service refused to make, and that is struck off."""


class Exchange:
    """Sends requests to a batch service, writes them down in *books*, and says what became of them.

    The *price* is that of single requests. The service is waited for so many *seconds* at each step, and no longer than
    a few more once *stop* is set.
    """

    def __init__(self, service: BatchService, books: TenantBooks, price: Price, *, seconds: float, stop: Event) -> None:
        self._service, self._books, self._price = service, books, price
        self._seconds, self._stop = seconds, stop

    def send(self, requests: Requests, *, full: bool = False) -> OpenBatch | None:
        """Write a batch down and send it; None where a cap refuses it, and nothing was sent.

        Raises:
            NeverMadeError: The service refused to make it; it is struck off.
            JudgeError: Whether it was made is not known; `look` tells.
        """
        price, usage = self._price, requests.usage
        wanted = OpenBatch(
            key=uuid4().hex,
            judge=self._service.judge.fingerprint,
            at=self._books.now(),
            queries=requests.queries,
            pairs=requests.pairs,
            tokens=usage.tokens,
            usd=price.share(self._service.judge.price).of(usage),
            price=(price.input, price.output, price.request),
            full=full,
        )
        batch = self._books.add(wanted)
        if batch is None:
            return None
        file = self._asked(self._service.upload, requests.content)
        batch = self._books.note(replace(batch, file=file, at=self._books.now()))
        try:
            service_batch = self._asked(self._service.create, file, batch.key)
        except RefusedError as exc:
            self.close(batch)
            raise NeverMadeError(exc.brief, exc.answer) from exc
        return self._books.note(replace(batch, number=service_batch.number))

    def look(self, batch: OpenBatch) -> ServiceBatch | None:
        """The batch at its service once it has ended; None before, and where it was never made and is struck off.

        Raises:
            JudgeError: The service does not say; or the batch was given up without an end, and stays counted as spent.
        """
        if not batch.file:
            self.close(batch)
            return None
        age = self._books.now() - batch.at
        service_batch, why = None, f"the batch has not ended after {age / 86_400:.0f} days"
        try:
            if batch.number:
                service_batch = self._asked(self._service.get, batch.number)
            else:
                service_batch = self._asked(self._service.find, batch.key, batch.file, batch.at)
        except JudgeError as exc:
            if age < GIVEN_UP:
                raise
            why = str(exc)
        if service_batch is not None and service_batch.ended:
            return service_batch
        if age >= GIVEN_UP:
            self.close(batch, service_batch, lost=1.0)  # it may be paid for all the same
            raise JudgeError(why)
        if service_batch is None and age >= self._service.settling:
            self.close(batch)
        elif service_batch is not None and not batch.number:
            self._books.note(replace(batch, number=service_batch.number))
        return None

    def download(self, service_batch: ServiceBatch) -> Sequence[bytes]:
        """The files of results of a batch that has ended."""
        return self._asked(self._service.download, service_batch)

    def close(self, batch: OpenBatch, service_batch: ServiceBatch | None = None, *, lost: float = 0.0) -> None:
        """Strike *batch* off but for a share *lost*, and have the service delete its files, which hold texts.

        The service may refuse to delete them, which is told in the log.
        """
        self._books.close(batch, lost=lost)
        for file in filter(None, (batch.file, *(service_batch.results if service_batch else ()))):
            try:
                self._asked(self._service.delete, file)
            except JudgeError as exc:
                _log.warning("the file %s of a batch stays at the service: %s", printable(file), exc)

    def _asked(self, call: Callable[..., ResultT], *arguments: object) -> ResultT:
        judge = self._service.judge.fingerprint
        return in_time(self._service, judge, self._seconds, partial(call, *arguments), self._stop)
