"""Judging by batches: what waits is sent to a batch service, and results are read in later rounds.

A batch takes these steps, and the worker may be killed between any two of them:

    the judge passes its probe           by two single requests
    the batch is written down            it counts as spent with its highest cost from now on
    its requests are uploaded            which costs nothing
    the name of their file is kept       without it nothing was asked for: the batch is struck off
    the service makes the batch          it carries the key that was written down, and the name of the file
    the name of the batch is kept        without it the service's list tells whether it was made
    it ends, and its results are read    by the paths of single answers: kept as paid, then written as rewards
    it is struck off                     its answers have been counted, and its highest cost is not any more
    its files are deleted                as far as the service allows it

A batch that the service refuses to make is struck off at once, and what it asks about is set aside like any failure.
Results that were read before a kill are read again, which changes nothing. What has no answer in them is set aside and
sent again later, with longer waits from time to time.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar
from uuid import uuid4

from tttembed_rag.errors import DataError, InputError, JudgeError, StoreError, TTTEmbedError
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_GOOD, PROBE_QUERY, Judge
from tttembed_rag.judging.batching.byfile import answered, read_batch, write_batch
from tttembed_rag.judging.batching.outstanding import Outstanding
from tttembed_rag.judging.batching.service import BatchService, ServiceBatch
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import BUDGET_ENDED, Plan
from tttembed_rag.judging.running import LateError, check_once
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.retrying import BusyError, RefusedError
from tttembed_rag.models.usage import Usage
from tttembed_rag.rewards.observations import Observation
from tttembed_rag.stores import Store
from tttembed_rag.stores.records import Spend
from tttembed_rag.stores.work.openbatches import GIVEN_UP, OpenBatch
from tttembed_rag.system.terminal import printable
from tttembed_rag.worker.asking import Asked, CountedAnswers, Paying
from tttembed_rag.worker.holding import Holding
from tttembed_rag.worker.toolcalls import is_of_tools
from tttembed_rag.worker.wary import TimeLimit, Wary

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

# Queries that are sent at a time; requests and bytes of a batch.
_QUERIES, _REQUESTS, _BYTES = 1000, 10_000, 50_000_000
# Seconds that a tenant's next batch waits behind one that is open and was not full.
_NEXT = 3600.0
# Seconds between looks at a batch: a share of its age, up to the longest.
_LOOK_SHARE, _LONGEST_LOOK = 0.1, 60.0
# Lines of a file of results that are read at most: so many for each pair, and so many besides.
_LINES_PER_PAIR, _MORE_LINES = 10, 1000


class BatchAsking:
    """Has a judge score what waits in a store, through a batch service.

    Args:
        store: The store where pairs wait and answers are kept.

        judge: The judge, which is asked singly for its probe alone.

        service: The service; its judge is the same one.

        budget: Caps on what all judges of the store may cost in a day (UTC).

        price: What the judge's usage costs where it is asked singly.

        seconds: How long the service may take for one step.
    """

    def __init__(
        self,
        store: Store,
        judge: Judge,
        service: BatchService,
        *,
        budget: Budget,
        price: Price,
        seconds: float,
    ) -> None:
        Plan([], budget=budget, price=price)  # refuses a cap on money without a price
        judge.scale.check_calibrated()
        if judge.fingerprint != service.judge.fingerprint:
            raise InputError(
                f"batches: expected a service of the judge {judge.fingerprint}, got one of {service.judge.fingerprint}"
            )
        self._store = store
        self._queue, self._open, self._reservations = store.judge_queue, store.open_batches, store.reservations
        self.paid = Paying()
        self._judge = Wary(judge, CountedAnswers(self._queue.answers(), self.paid), price)
        self._service, self._lines = service, service.judge
        self._budget, self._price = budget, price
        self._limit = TimeLimit(judge.fingerprint, seconds)
        self._looked: dict[str, float] = {}  # when it looked at a batch the last time, by its key

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the judge."""
        return self._judge.fingerprint

    def tenants(self) -> set[str]:
        """Tenants for which something may be done: pairs wait, or a batch is open."""
        return self._open.tenants(self.fingerprint).union(self._queue.tenants(self.fingerprint))

    def judge(self, tenant: str, stop: Event, holding: Holding) -> Asked:
        """Read what has come of the tenant's batches, and send what waits besides.

        Nothing further is sent once *stop* is set, or by a worker that has lost what it was *holding*.
        """
        holding.check()
        told = Asked()
        try:
            for batch in self._mine(tenant):
                if not stop.is_set():
                    told += self._looked_at(batch, tenant, stop, holding)
            if not stop.is_set() and not is_of_tools(self._store, tenant):
                told += self._send_what_waits(tenant, stop, holding)
        except StoreError:
            raise
        except TTTEmbedError as exc:
            told += Asked(stopped=str(exc), broken=True)
        return told

    def _mine(self, tenant: str) -> list[OpenBatch]:
        return [batch for batch in self._open.of(tenant) if batch.judge == self.fingerprint]

    # Reading

    def _looked_at(self, batch: OpenBatch, tenant: str, stop: Event, holding: Holding) -> Asked:
        """What came of a look; a service that refuses to tell of one batch alone is not broken."""
        try:
            return self._look(batch, tenant, stop, holding)
        except (BusyError, LateError):
            raise
        except JudgeError as exc:
            return Asked(refused=batch.pairs, why=str(exc))

    def _look(self, batch: OpenBatch, tenant: str, stop: Event, holding: Holding) -> Asked:
        """Read the results of *batch* where it has ended, and strike it off where nothing will come of it."""
        close = partial(self._close, batch, tenant, stop, holding)
        if not batch.file:
            close()
            return Asked()
        age, now = max(0.0, time.time() - batch.at), time.monotonic()
        if now - self._looked.get(batch.key, -math.inf) < min(_LONGEST_LOOK, _LOOK_SHARE * age):
            return Asked()
        self._looked[batch.key] = now
        try:
            found = self._found(batch, stop)
            if found is not None and found.ended:
                return self._read(batch, found, tenant, stop, holding)
        except JudgeError as exc:
            if age < GIVEN_UP:
                raise
            found, why = None, str(exc)
        else:
            why = f"the batch has not ended after {age / 86_400:.0f} days"
        if age >= GIVEN_UP:  # it may be paid for all the same
            close(found, lost=1.0)
            return Asked(refused=batch.pairs, why=why)
        if found is None and age >= self._service.settling:
            close()
        elif found is not None and not batch.number:
            self._open.note(replace(batch, number=found.number), tenant=tenant, lease=holding.lease)
        return Asked()

    def _found(self, batch: OpenBatch, stop: Event) -> ServiceBatch | None:
        """The batch at the service; None where it is not in its list."""
        if batch.number:
            return self._limited(partial(self._service.get, batch.number), stop)
        return self._limited(partial(self._service.find, batch.key, batch.file, batch.at), stop)

    def _read(self, batch: OpenBatch, found: ServiceBatch, tenant: str, stop: Event, holding: Holding) -> Asked:
        """Keep the answers of a batch that has ended, write them as rewards, and strike it off."""
        waiting = self._queue.waiting_of(self.fingerprint, batch.queries, tenant=tenant)
        answers = CountedAnswers(self._queue.answers(waiting, day=batch.date), self.paid)
        plan = _plan(waiting, price=Price(*batch.price))
        failures: Counter[str] = Counter()
        lines = _LINES_PER_PAIR * batch.pairs + _MORE_LINES
        answered_now = unkept = 0
        with tempfile.TemporaryDirectory(prefix="tttembed-batch-") as folder:
            for path in self._limited(partial(self._service.download, found, Path(folder)), stop):
                holding.check()  # who lost it must write nothing
                with closing(Outstanding.open(None)) as outstanding:
                    try:
                        collected = read_batch([path], plan, self._lines, answers, outstanding, lines=lines)
                    except (DataError, JudgeError) as exc:
                        failures[str(exc).replace(str(path), "its results")] += 1
                        continue
                failures.update(collected.failures)
                answered_now += collected.answers
                unkept += collected.unkept
        scored = self._write(waiting, answers, tenant)
        left = self._queue.waiting_of(self.fingerprint, batch.queries, tenant=tenant)
        missing = sum(len(one.candidates) for one in left)
        why = next((reason for reason, _ in failures.most_common()), found.why or "not in its results")
        if left:
            why = f"batch {found.state}: {why}"
            self._queue.failed(self.fingerprint, {one.query_id: why for one in left}, tenant=tenant)
        # Answers were paid for as well where they cannot be read, or where their query or text is gone by now.
        lost = min(max(0, batch.pairs - answered_now), unkept) / batch.pairs
        self._close(batch, tenant, stop, holding, found, lost=lost)
        return Asked(scored=scored, refused=missing, why=why if missing else "")

    def _close(
        self,
        batch: OpenBatch,
        tenant: str,
        stop: Event,
        holding: Holding,
        found: ServiceBatch | None = None,
        *,
        lost: float = 0.0,
    ) -> None:
        """Strike *batch* off, and have the service delete its files, which hold texts; it may refuse to."""
        self._open.close(batch, tenant=tenant, lease=holding.lease, lost=lost)
        for file in filter(None, (batch.file, *(found.results if found else ()))):
            try:
                self._limited(partial(self._service.delete, file), stop)
            except JudgeError as exc:
                _log.warning("the file %s of a batch stays at the service: %s", printable(file), exc)

    def _write(self, observations: Sequence[Observation], answers: Answers, tenant: str) -> int:
        """Write the kept answers about *observations* as rewards; gives how many."""
        rewards = answered(_plan(observations), self._lines, answers).rewards if observations else {}
        return self._queue.judged(self.fingerprint, rewards, tenant=tenant) if rewards else 0

    # Sending

    def _send_what_waits(self, tenant: str, stop: Event, holding: Holding) -> Asked:
        """Send what waits of `_QUERIES` queries that no open batch asks about, as far as the day's budget goes."""
        ours = self._mine(tenant)
        if any(not one.full and time.time() - one.at < _NEXT for one in ours):
            return Asked()
        sent = {query for one in ours for query in one.queries}
        find = partial(self._queue.waiting, self.fingerprint, tenant=tenant, limit=_QUERIES, due=True, without=sent)
        observations = find()
        if scored := self._write(observations, self._queue.answers(observations), tenant):
            observations = find()
        if not observations:
            return Asked(scored)
        left, elsewhere = self._reserve(observations, holding)
        if left.pairs is not None and left.pairs < 1:
            return Asked(scored, stopped=BUDGET_ENDED)
        observations = [one for one in observations if one.query not in elsewhere]  # their answers are kept soon
        answers = CountedAnswers(self._queue.answers(observations), self.paid)
        full = len(observations) == _QUERIES
        with tempfile.TemporaryDirectory(prefix="tttembed-batch-") as folder, closing(Outstanding.open(None)) as none:
            plan, path = _plan(observations, left, self._price), Path(folder) / "requests.jsonl"
            written = write_batch(path, plan, self._lines, answers, none, probe=False, requests=_REQUESTS, size=_BYTES)
            if written.files:
                anew = CountedAnswers(self._queue.answers(), self.paid, uncached=True)
                self._limited(partial(check_once, self._judge, anew, price=self._price), stop)
            pairs, usd = 0, 0.0
            for file, costs in zip(written.files, written.costs, strict=True):
                if stop.is_set() or not (
                    batch := self._sent(file, costs, observations, tenant, stop, holding, full=full)
                ):
                    break
                pairs, usd = pairs + batch.pairs, usd + batch.usd
        if not pairs:
            return Asked(scored, stopped=written.stopped)
        said = f"{pairs} pairs sent as a batch, at most ${usd:.4f}"
        return Asked(
            scored, stopped="; ".join(filter(None, (said, written.stopped))), more=full and not written.stopped
        )

    def _sent(
        self,
        file: Path,
        costs: Mapping[bytes, Paid],
        observations: Sequence[Observation],
        tenant: str,
        stop: Event,
        holding: Holding,
        *,
        full: bool,
    ) -> OpenBatch | None:
        """Write a batch down and send it; None where the day's budget is spent meanwhile."""
        wanted = OpenBatch(
            key=uuid4().hex,
            judge=self.fingerprint,
            at=time.time(),
            queries=tuple(
                one.query_id
                for one in observations
                if any(pair_key(self.fingerprint, one.query, text) in costs for _, text in one.candidates)
            ),
            pairs=len(costs),
            tokens=sum(paid.tokens for paid in costs.values()),
            usd=sum(paid.usd for paid in costs.values()),
            price=(self._price.input, self._price.output, self._price.request),
            full=full,
        )
        batch = self._open.add(wanted, self._budget, tenant=tenant, lease=holding.lease)
        if batch is None:
            return None
        name = self._limited(partial(self._service.upload, file), stop)
        batch = self._open.note(replace(batch, file=name, at=time.time()), tenant=tenant, lease=holding.lease)
        try:
            found = self._limited(partial(self._service.create, name, batch.key), stop)
        except RefusedError as exc:
            self._queue.failed(self.fingerprint, dict.fromkeys(batch.queries, str(exc)), tenant=tenant)
            self._close(batch, tenant, stop, holding)
            raise
        return self._open.note(replace(batch, number=found.number), tenant=tenant, lease=holding.lease)

    def _reserve(self, asked: Sequence[Observation], holding: Holding) -> tuple[Budget, AbstractSet[str]]:
        """Of what is left of the day's budget behind a probe, enough for *asked*; and queries asked about elsewhere."""
        usage, pairs, documents = Usage(), 0, [PROBE_GOOD, PROBE_BAD]
        for one in asked:
            pairs += len(one.candidates)
            if self._budget.tokens is not None or self._budget.usd is not None:
                usage += self._lines.forecast(one.query, [text for _, text in one.candidates])
        probe = self._judge.forecast(PROBE_QUERY, documents)
        probe_usd = self._price.of(probe)
        usd = self._price.share(self._lines.price).of(usage)
        # A plan counts the probe that was passed before too.
        wanted = Spend(pairs + 2 * len(documents), usage.tokens + 2 * probe.tokens, usd + 2 * probe_usd)
        reserved = self._reservations.reserve(
            holding.lease, self.fingerprint, wanted, self._budget, {one.query for one in asked}
        )

        def behind(granted: float | None, cost: float) -> float | None:
            return None if granted is None else max(0.0, granted - cost)

        most = reserved.budget
        left = Budget(
            behind(most.pairs, len(documents)), behind(most.tokens, probe.tokens), behind(most.usd, probe_usd)
        )
        return left, reserved.elsewhere

    def _limited(self, call: Callable[[], ResultT], stop: Event) -> ResultT:
        """What *call* returns, unless it takes too long."""
        return self._limit.call(lambda _: call(), stop)


def _plan(observations: Sequence[Observation], budget: Budget | None = None, price: Price | None = None) -> Plan:
    deepest = max((len(one.candidates) for one in observations), default=1)
    return Plan(observations, (max(1, deepest),), budget or Budget(), price or Price())
