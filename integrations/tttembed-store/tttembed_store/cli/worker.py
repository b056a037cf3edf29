"""`tttembed worker`: the loop that judges, learns and publishes in production."""

from __future__ import annotations

import json
import logging
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, get_args

import click

from tttembed_rag.cli.embedding import embedded_by
from tttembed_rag.cli.group import counted, say, text
from tttembed_rag.offsets.offset import AnyScope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.serving.saved import url_of
from tttembed_rag.system.failures import FailureLog
from tttembed_store.cli.embedding import check_has_vectors, fill

if TYPE_CHECKING:
    from tttembed_store.worker import Step

_log = logging.getLogger(__name__)

# Actions of steps that are printed once where they are the same every round.
_QUIET = ("learned nothing", "standby")
# Seconds that texts may still be embedded for once the worker has ended.
_GRACE = 5.0


@click.command(short_help="Judge what waits in a store, learn from it, and publish.")
@click.argument("url", metavar="URL", envvar="TTTEMBED_STORE", type=url_of)
@click.option("--judge", "spec", metavar="SPEC", help="Who judges what waits, as in `tttembed judge`.")
@click.option(
    "--rewards-of",
    metavar="JUDGE",
    help="Fingerprint of whose rewards count.  [default: --judge, or whoever gives most]",
)
@click.option("--once", is_flag=True, help="One round, for cron.")
@click.option("--every", default=60.0, metavar="SECONDS", help="Between rounds.")
@text("--budget", "CAPS", "Per day (UTC): pairs=N,tokens=N,usd=N.")
@text("--price", "USD", "input=N,output=N (per million tokens), request=N (each).")
@click.option("--tenant", "tenants", multiple=True, metavar="T", help="Whom to work for, any number.  [default: all]")
@click.option("--scope", default="auto", type=click.Choice(get_args(AnyScope)))
@click.option("--start", "started", metavar="FILE", type=Path, help="Offsets that are served already, as of `fit`.")
@click.option("--min-new", default=50, help="New rewards that are worth a fit (and a tenth of all).")
@click.option("--last", default=10_000, help="Queries learned from at most, the last served ones.")
@click.option("--embedder", metavar="NAME", help="Whose vectors are learned from.  [default: of most queries of late]")
@embedded_by("texts of the store that have no vector, before each round")
@click.option("--batch", is_flag=True, help="Ask --judge by batches of its service (openai:, gemini:).")
@counted("--concurrency", 8, "Calls of the judge in flight at once.")
@click.option("--lease", "lease_seconds", default=30.0, metavar="SECONDS", help="How long a dead worker is waited for.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a step.")
def worker(
    url: str,
    spec: str | None,
    every: float,
    budget: str,
    price: str,
    tenants: tuple[str, ...],
    embedder: str | None,
    embed: str | None,
    started: Path | None,
    *,
    batch: bool,
    once: bool,
    as_json: bool,
    **habits: Any,
) -> None:
    """Judge what waits in a store, learn from what is new, publish what the evidence supports; again and again.

    URL is sqlite:///FILE or postgresql+psycopg://..., env:NAME, or that of TTTEMBED_STORE; any number of workers share
    a store and its budget, and each works for one tenant at a time. Without --judge only rewards from elsewhere are
    learned from. With --batch, rewards come in a later round, within a day, at half the price. SIGTERM and
    SIGINT end it after the current step. Exit code 1: with --once, the judge or a tenant's part failed (the rest is
    done).
    """
    from tttembed_rag.judges.specs import FREE, open_judge
    from tttembed_rag.judging.spending import Budget, Price
    from tttembed_store.batches.service import open_batch_service
    from tttembed_store.sql import open_store
    from tttembed_store.sql.database import Database
    from tttembed_store.worker import Worker

    Database(url).check_file()
    caps, judge = Budget.parse(budget), None
    if batch and spec is None:
        raise click.UsageError("--batch: expected --judge SPEC with it")
    batches = open_batch_service(spec) if batch and spec is not None else None
    if spec is not None:
        judge = open_judge(spec)
        if spec.partition(":")[0] in FREE and not price:
            caps = replace(caps, usd=None)
    printed, stop = _Printed(as_json=as_json), Event()
    with open_store(url) as store:
        if embed is not None:
            embedder = fill(store, embed, embedder or "", only_without_any=True)[0]
        elif judge is not None:
            check_has_vectors(store)
        worker = Worker(
            store,
            judge,
            tenants=tenants or None,
            budget=caps,
            price=Price.parse(price),
            embedder=embedder,
            batches=batches,
            start=None if started is None else Offsets.load(started),
            **habits,
        )

        def end(number: int, _: object) -> None:
            stop.set()
            signal.signal(number, signal.SIG_DFL)  # a second one does not wait

        def keep_filled() -> None:
            failures = FailureLog(_log)
            while embed is not None and not once and not stop.wait(every):
                try:
                    fill(store, embed, embedder or "", only_without_any=True)
                except Exception:  # noqa: BLE001 - of a store or a model: the next time may succeed
                    failures.exception("new texts were not embedded")

        filling = Thread(target=keep_filled, name="tttembed-embed", daemon=True)
        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            filling.start()
            if once:
                worker.round(stop=stop, watch=printed)
            else:
                worker.run(every=every, stop=stop, watch=printed)
        finally:
            stop.set()
            filling.join(_GRACE)  # a model that hangs is left behind
            for number, handler in before.items():
                signal.signal(number, handler)
    if once and printed.failed:
        raise click.exceptions.Exit(1)


class _Printed:
    """Prints steps as lines, and remembers whether one failed."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: dict[str | None, str] = {}
        self.failed = False

    def __call__(self, step: Step) -> None:
        self.failed |= step.action in ("not judged", "failed")
        if step.action in _QUIET and self._last.get(step.tenant) == str(step):
            return
        self._last[step.tenant] = str(step)
        if self._as_json:
            record = {"at": round(time.time(), 3), "tenant": step.tenant, "action": step.action}
            click.echo(json.dumps(record | {"version": step.version, "detail": step.detail}))
        else:
            say(f"{time.strftime('%H:%M:%S')}  {step}")
