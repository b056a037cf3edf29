"""`tttembed judge` by file: requests for a batch service, and the results that it gave."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.group import CommandT, say

if TYPE_CHECKING:
    from tttembed_rag.judging.batching.lines import LineJudge
    from tttembed_rag.judging.batching.outstanding import Outstanding
    from tttembed_rag.judging.cache import ScoreCache
    from tttembed_rag.judging.plan import Plan

# Requests of a file, as OpenAI takes them.
_REQUESTS = 50_000


@dataclass(frozen=True, slots=True)
class ByFile:
    """The files of a run of judging by file.

    Attributes:
        write: The first file of requests to write.

        read: Files of results to read.

        again: Whether requests without a result are written again.

        requests: Requests of one file at most.
    """

    write: Path | None
    read: tuple[Path, ...]
    again: bool
    requests: int

    def __bool__(self) -> bool:
        return self.write is not None or bool(self.read)


def by_file(command: CommandT) -> CommandT:
    """The options of judging by file, as one argument `batch`."""
    path = click.Path(path_type=Path, dir_okay=False)
    number = click.IntRange(min=1)

    @click.option("--write-batch", type=path, metavar="FILE", help="Write requests for a batch service; ask nothing.")
    @click.option(
        "--read-batch", type=path, metavar="FILE", multiple=True, help="Read results of one; may be repeated."
    )
    @click.option(
        "--again", is_flag=True, help="With --write-batch: also what earlier files ask, without a result yet."
    )
    @click.option(
        "--batch-requests", type=number, default=_REQUESTS, show_default=True, metavar="N", help="Requests of a file."
    )
    @wraps(command)
    def with_batch(
        *arguments: Any,
        write_batch: Path | None,
        read_batch: tuple[Path, ...],
        again: bool,
        batch_requests: int,
        **rest: Any,
    ) -> Any:
        if again and write_batch is None:
            raise click.UsageError("--again: expected --write-batch FILE with it")
        return command(*arguments, batch=ByFile(write_batch, read_batch, again, batch_requests), **rest)

    return with_batch  # type: ignore[return-value]  # click calls it by names


def run_by_file(
    files: ByFile,
    spec: str,
    plan: Plan,
    cache_path: Path | None,
    target: Path,
    *,
    dry_run: bool,
    probe: bool,
    as_json: bool,
) -> None:
    """Read results, then write requests, as *files* says.

    Args:
        files: What to read and to write.

        spec: The judge.

        plan: The pairs, caps and price.

        cache_path: The file of paid scores.

        target: Where rewards are written.

        dry_run: Whether the forecast is all.

        probe: Whether a judge must pass its probe first.

        as_json: One JSON object a step.
    """
    from tttembed_rag.judging.batching.byfile import forecast_batch
    from tttembed_rag.judging.batching.lines import open_by_file
    from tttembed_rag.judging.batching.outstanding import Outstanding
    from tttembed_rag.judging.cache import ScoreCache

    judge = open_by_file(spec)
    with closing(ScoreCache.open(cache_path)) as cache, closing(Outstanding.open(cache_path)) as outstanding:
        if dry_run:
            ahead = forecast_batch(plan, judge, cache, outstanding, probe=probe)
            record = {"judge": spec, "planned": plan.pairs, "pairs": ahead.pairs, "cached": ahead.cached}
            record |= {"tokens": ahead.usage.tokens, "usd": round(ahead.usd, 6)}
            _say(
                f"forecast by file: {ahead.pairs} of {plan.pairs} pairs, {ahead.cached} known or asked before, at most "
                f"{ahead.usage.tokens} tokens, at most ${ahead.usd:.4f}",
                record,
                as_json=as_json,
            )
            return
        if files.read:
            _read(files.read, spec, plan, judge, cache, outstanding, target, as_json=as_json)
        if files.write is not None:
            _write(files, files.write, spec, plan, judge, cache, outstanding, probe=probe, as_json=as_json)


def _read(
    paths: tuple[Path, ...],
    spec: str,
    plan: Plan,
    judge: LineJudge,
    cache: ScoreCache,
    outstanding: Outstanding,
    target: Path,
    *,
    as_json: bool,
) -> None:
    from tttembed_rag.judging.batching.byfile import answered, read_batch
    from tttembed_rag.judging.files import write_scores

    collected = read_batch(paths, plan, judge, cache, outstanding)
    verdicts = answered(plan, judge, cache)
    if verdicts.rewards:
        write_scores(target, verdicts)
    now = verdicts.progress
    rewards = sum(map(len, verdicts.rewards.values()))
    line = f"read: {collected.answers} answers, {collected.known} known before"
    for reason, count in collected.failures.items():
        line += f", {count} without an answer ({reason})"
    line += f", {collected.strangers} about pairs that were not asked about" if collected.strangers else ""
    line += f", ${collected.usd:.4f}"
    line += "; the judge passed its probe: --write-batch now asks about the rest" if collected.probed else ""
    line += f"\njudged: {now.cached} of {now.pairs} pairs, ${now.usd:.4f}; {verdicts.unjudged} without a score"
    line += f"; {rewards} rewards written to {target} (scale: probability)" if rewards else ""
    record = {"judge": spec, **asdict(collected), "pairs": now.pairs, "judged": now.cached}
    record |= {"unjudged": verdicts.unjudged, "out": str(target) if rewards else None}
    _say(line, record, as_json=as_json)


def _write(
    files: ByFile,
    path: Path,
    spec: str,
    plan: Plan,
    judge: LineJudge,
    cache: ScoreCache,
    outstanding: Outstanding,
    *,
    probe: bool,
    as_json: bool,
) -> None:
    from tttembed_rag.judging.batching.byfile import write_batch

    written = write_batch(
        path, plan, judge, cache, outstanding, probe=probe, again=files.again, requests=files.requests
    )
    now, names = written.progress, ", ".join(str(name) for name in written.files)
    if written.probe:
        line = f"written: {names}, the probe of this judge alone; read its results, and write again"
    elif written.requests:
        line = f"written: {written.requests} requests in {names}"
    else:
        line = "written: nothing, no pair is left to ask about"
    line += f"; at most {now.usage.tokens} tokens, at most ${now.usd:.4f} for all pairs"
    if written.waiting:
        line += f"; {written.waiting} asked about before have no result yet (--again asks once more, and may pay twice)"
    line += f"\nstopped: {written.stopped}" if written.stopped else ""
    record = {"judge": spec, "files": [str(name) for name in written.files], "requests": written.requests}
    record |= {"waiting": written.waiting, "probe": written.probe, "tokens": now.usage.tokens}
    record |= {"usd": round(now.usd, 6), "stopped": written.stopped}
    _say(line, record, as_json=as_json)


def _say(line: str, record: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(record))
        return
    for part in line.splitlines():
        say(part)
