"""A plan judged by batches, from the first request to the last answer; any later run goes on where one was stopped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import JudgeError
from tttembed_rag.judges.examination import forecast_of_questions, has_passed, questions
from tttembed_rag.judging.accounts import Ledger
from tttembed_rag.judging.cache import Answers
from tttembed_rag.judging.plan import Plan, Progress, Verdicts
from tttembed_rag.judging.running import Run
from tttembed_rag.judging.walk import forecast
from tttembed_store.batches.exchange import Exchange
from tttembed_store.batches.openbatch import FiledBatches
from tttembed_store.batches.requests import answered, collect, pack
from tttembed_store.batches.service import BatchService

# Seconds between two looks at the open batches at least.
_LEAST_PAUSE = 1.0


def forecast_by_batches(
    plan: Plan, service: BatchService, answers: Answers, books: FiledBatches, *, examine: bool = True
) -> Progress:
    """The pairs that `judge_by_batches` would judge and their highest cost; nothing is asked."""
    judge = service.judge
    ahead = forecast(_at_price_of_batches(plan, service, books), judge, answers, examine=examine)
    if examine and ahead.pairs > ahead.cached and not has_passed(judge.fingerprint, answers.get):
        # It is asked singly, at the whole price.
        usage = forecast_of_questions(judge, questions())
        ahead = replace(ahead, usd=ahead.usd + plan.price.share(1.0 - judge.price).of(usage))
    return ahead


def judge_by_batches(
    plan: Plan,
    service: BatchService,
    answers: Answers,
    books: FiledBatches,
    *,
    examine: bool = True,
    watch: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Verdicts:
    """Have a batch service score the pairs of *plan* that *answers* has none for, and wait until it has.

    Batches of a run that was stopped are read first. A pair that got no answer is not asked about again in this run.

    Args:
        plan: The pairs, the caps, and the price of single requests.
        service: The service.
        answers: Answers that are kept; new ones are written to it.
        books: The open batches of the judge; they belong to the file of *answers*.
        examine: Whether a judge must pass the examination of `check_judge` first, by single requests.
        watch: Told in a sentence what was sent and what was read.
        sleep: Waits so many seconds.

    Raises:
        JudgeError: The service refused or stayed busy, or the judge fails its examination; run it again to go on.
    """
    judge = service.judge
    judge.scale.check_calibrated()
    exchange = Exchange(service, books, plan.price, seconds=None, stop=None)
    failures, usage = Counter[str](), Usage()

    def read_all() -> None:
        """Wait until no batch is open, and keep the answers of each."""
        nonlocal usage
        while batches := books.open():
            for batch in batches:
                if found := exchange.look(batch):
                    collected = collect(exchange.download(found), batch, judge, answers)
                    exchange.close(batch, found, lost=collected.lost)
                    failures.update(collected.failures)
                    usage += collected.usage
                    watch(f"read: {collected.answers} of {batch.pairs} answers of the batch {batch.number}")
            if pauses := [exchange.pause(batch) for batch in books.open()]:
                sleep(max(_LEAST_PAUSE, min(pauses)))

    read_all()
    failures.clear()  # their pairs are asked about now
    ahead = forecast_by_batches(plan, service, answers, books, examine=examine)
    if examine and ahead.pairs > ahead.cached and not has_passed(judge.fingerprint, answers.get):
        asked = Run(Ledger(plan.budget, plan.price, answers, judge.fingerprint), Plan([]), judge.single).examined()
        if asked.stopped:
            raise JudgeError(asked.stopped)
    packed, walk = pack(_at_price_of_batches(plan, service, books), judge, answers)
    for requests in packed:
        batch = exchange.send(requests)
        watch(f"sent: {batch.pairs} pairs as the batch {batch.number}, at most ${batch.usd:.4f}" if batch else "")
    read_all()
    verdicts = answered(plan, judge, answers)
    missing = walk.pairs - verdicts.progress.cached
    why = f"{missing} pairs have no answer: {next(iter(failures), 'not in the results')}" if missing > 0 else ""
    progress = Progress(walk.pairs, walk.cached, usage, verdicts.progress.usd)
    return replace(verdicts, progress=progress, stopped=why or walk.stopped, broken=bool(why))


def _at_price_of_batches(plan: Plan, service: BatchService, books: FiledBatches) -> Plan:
    """The plan at the price of batches, below its caps by what batches cost that gave nothing for it."""
    tokens, usd = books.lost()
    budget, price = plan.budget.without(tokens=tokens, usd=usd), plan.price.share(service.judge.price)
    return replace(plan, budget=budget, price=price)
