"""Judging by batches: what waits is sent to a batch service, and results are read in later rounds.

The steps of a batch are those of `batches.exchange`. A judge passes its examination by single requests
before something is sent for the first time, and answers its first question well before each later time. Answers are
kept as paid before they are written as rewards, and a batch is struck off behind that. What has no answer in its
results is set aside and sent again later, with longer waits from time to time; so is what a refused batch asks about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Event

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.clients.retrying import BusyError
from tttembed_rag.errors import InputError, JudgeError, StoreError, TTTEmbedError
from tttembed_rag.judges.contract import forecast_of
from tttembed_rag.judges.examination import has_passed, questions
from tttembed_rag.judging.cache import Answers
from tttembed_rag.judging.calls import LateError
from tttembed_rag.judging.plan import Plan
from tttembed_rag.judging.spending import BUDGET_ENDED, Budget, Price
from tttembed_rag.rewards.observations import MAX_DEPTH, Served
from tttembed_store.batches.exchange import Exchange, NeverMadeError
from tttembed_store.batches.lines import answered, collect, pack
from tttembed_store.batches.service import BatchService, ServiceBatch
from tttembed_store.sql import Lease
from tttembed_store.sql.records import Spend
from tttembed_store.sql.work.openbatches import OpenBatch, TenantBooks
from tttembed_store.worker.asking import Asked, Asking

# Queries that are sent at a time.
_QUERIES = 1000
# Seconds that a tenant's next batch waits behind one that is open and was not full.
_NEXT = 3600.0


class BatchAsking:
    """Has a judge score what waits in a store, by a batch service of it; *singly* asks for its examination alone."""

    def __init__(self, singly: Asking, service: BatchService) -> None:
        self.fingerprint = singly.fingerprint
        if self.fingerprint != service.judge.fingerprint:
            raise InputError(
                f"batches: expected a service of the judge {self.fingerprint}, got one of {service.judge.fingerprint}"
            )
        self._singly, self._queue, self._open = singly, singly.queue, singly.store.open_batches
        self._service, self._lines = service, service.judge

    def tenants(self) -> set[str]:
        """Tenants for which something may be done: pairs wait, or a batch is open."""
        return self._open.tenants(self.fingerprint).union(self._queue.tenants(self.fingerprint))

    def judge(self, tenant: str, stop: Event, lease: Lease) -> Asked:
        """Read what has come of the tenant's batches, and send what waits besides.

        Nothing further is sent once *stop* is set, or under a *lease* that is lost.
        """
        outcome = Asked()
        books = self._open.books(tenant, self.fingerprint, caps=self._singly.budget, lease=lease)
        exchange = Exchange(self._service, books, self._singly.price, seconds=self._singly.seconds, stop=stop)
        try:
            for batch in books.open():
                if not stop.is_set():
                    outcome += self._looked_at(batch, exchange, tenant)
            if not stop.is_set():
                outcome += self._send_what_waits(books, exchange, tenant, stop, lease)
        except StoreError:
            raise
        except TTTEmbedError as exc:
            outcome += Asked(stopped=exc.brief, broken=True)
        return outcome

    def _looked_at(self, batch: OpenBatch, exchange: Exchange, tenant: str) -> Asked:
        """What came of a look; a service that refuses to tell of one batch alone is not broken."""
        try:
            service_batch = exchange.look(batch)
            return Asked() if service_batch is None else self._read(batch, service_batch, exchange, tenant)
        except (BusyError, LateError):
            raise
        except JudgeError as exc:
            return Asked(refused=batch.pairs, why=exc.brief)

    def _read(self, batch: OpenBatch, service_batch: ServiceBatch, exchange: Exchange, tenant: str) -> Asked:
        """Keep the answers of a batch that has ended, write them as rewards, and strike it off."""
        contents = exchange.download(service_batch)
        waiting = self._queue.waiting(self.fingerprint, queries=batch.queries, tenant=tenant)
        answers = self._queue.answers(waiting, day=batch.date)
        pairs = {
            pair_key(self.fingerprint, served.query, shown.text) for served in waiting for shown in served.candidates
        }
        collected = collect(contents, batch, self._lines, answers, pairs)
        scored = self._write(waiting, answers, tenant)
        left = self._queue.waiting(self.fingerprint, queries=batch.queries, tenant=tenant)
        why = f"batch {service_batch.state}"
        if left:
            reason = f"{why}: {next(iter(collected.failures), service_batch.why or 'not in its results')}"
            self._queue.failed(self.fingerprint, {observation.query_id: reason for observation in left}, tenant=tenant)
        exchange.close(batch, service_batch, lost=collected.lost)
        missing = sum(len(observation.candidates) for observation in left)
        usd = Price(*batch.price).share(self._lines.price).of(collected.usage)
        return Asked(scored, missing, why if missing else "", usage=collected.usage, usd=usd)

    def _write(self, observations: Sequence[Served], answers: Answers, tenant: str) -> int:
        """Write the kept answers about *observations* as rewards; gives how many."""
        rewards = answered(observations, self._lines, answers)
        return self._queue.judged(self.fingerprint, rewards, tenant=tenant) if rewards else 0

    def _send_what_waits(self, books: TenantBooks, exchange: Exchange, tenant: str, stop: Event, lease: Lease) -> Asked:
        """Send what waits of `_QUERIES` queries that no open batch asks about, as far as the day's budget goes."""
        open_batches = books.open()
        if any(not open_batch.full and books.now() - open_batch.at < _NEXT for open_batch in open_batches):
            return Asked()
        sent = {query for open_batch in open_batches for query in open_batch.queries}
        waiting = partial(self._queue.waiting, self.fingerprint, tenant=tenant, limit=_QUERIES, due=True, without=sent)
        observations = waiting()
        if scored := self._write(observations, self._queue.answers(observations), tenant):
            observations = waiting()
        if not observations:
            return Asked(scored)
        left = self._left()
        if left.pairs is not None and left.pairs < 1:
            return Asked(scored, stopped=BUDGET_ENDED)
        answers = self._queue.answers(observations)
        full = len(observations) == _QUERIES
        price = self._singly.price.share(self._lines.price)
        packed, walk = pack(Plan(observations, (MAX_DEPTH,), left, price), self._lines, answers)
        outcome = Asked(scored, stopped=walk.stopped)
        if packed:
            run = self._singly.run((), lease, stop)
            examined = run.examined()
            outcome = replace(outcome, usage=run.usage, usd=run.usd)
            if examined.stopped:
                return replace(outcome, stopped=examined.stopped, broken=examined.broken)
        pairs, usd = 0, 0.0
        for requests in packed:
            try:
                batch = None if stop.is_set() else exchange.send(requests, full=full)
            except NeverMadeError as exc:
                self._queue.failed(self.fingerprint, dict.fromkeys(requests.queries, str(exc)), tenant=tenant)
                raise
            if batch is None:
                break
            pairs, usd = pairs + batch.pairs, usd + batch.usd
        if not pairs:
            return outcome
        stopped = "; ".join(filter(None, (f"{pairs} pairs sent as a batch, at most ${usd:.4f}", walk.stopped)))
        return replace(outcome, stopped=stopped, more=full and not walk.stopped)

    def _left(self) -> Budget:
        """What is left of the day's budget behind the examination of the judge."""
        examination = questions()[: 1 if has_passed(self.fingerprint, self._queue.answers().get) else None]
        usage = forecast_of(self._lines.single, examination)
        spent = self._queue.spent() + Spend(2 * len(examination), usage.tokens, self._singly.price.of(usage))
        return self._singly.budget.without(pairs=spent.pairs, tokens=spent.tokens, usd=spent.usd)
