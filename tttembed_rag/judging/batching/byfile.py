"""Judging by file: requests are written for a batch service, and its results are read, whole or in parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Self

from tttembed_rag.errors import DataError, InputError, JudgeError
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_GOOD, PROBE_QUERY, check_probe, rewards_of
from tttembed_rag.judging.batching.lines import LineJudge, LineResult
from tttembed_rag.judging.batching.outstanding import Outstanding, PaidOrOutstanding
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import BUDGET_ENDED, Plan, Progress, Verdicts
from tttembed_rag.judging.running import Walk, forecast, probe_keys
from tttembed_rag.judging.spending import Price
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.usage import Usage
from tttembed_rag.system.files import whole_file

# Requests of one file: the most that OpenAI takes.
REQUESTS = 50_000
# Bytes of one file: a little below the 200 MB that OpenAI takes.
BYTES = 190_000_000
# Bytes of a line of results that are read.
_LONGEST_LINE = 8 * 2**20
# What stands for a longer one, and cannot be read.
_TOO_LONG = b"-"
# Distinct reasons of failures that are kept; `_OTHER` stands for the rest, as a service may say another one each time.
_REASONS, _OTHER = 100, "other"
# Lines that are read before their answers are kept.
_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Written:
    """The requests that were written.

    Attributes:
        files: Files, in order; none where there is nothing to ask.

        costs: The pairs that each of the files asks about, with the most that they may cost.

        requests: Number of requests in them.

        waiting: Pairs of the plan that an earlier file asks about, left out here.

        probe: Whether the file holds the judge's probe alone: its results must be read before anything else is asked.

        progress: Pairs of the plan that are reached, and the most that everything may cost.

        stopped: Why the requests end before the plan does; empty if they do not.
    """

    files: Sequence[Path]
    costs: Sequence[Mapping[bytes, Paid]]
    requests: int
    waiting: int
    probe: bool
    progress: Progress
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """What files of results said.

    Attributes:
        answers: Pairs with an answer that was not known before.

        known: Lines about pairs with an answer that was known before.

        failures: Number of lines without an answer, by the reason; their pairs may be asked about again.

        strangers: Lines about pairs that nobody asked about.

        unkept: Pairs with an answer that was paid for and is not kept, because nobody asks about the pair any more or
            because the answer cannot be read; `REQUESTS` at most.

        usage: Usage of the new answers.

        usd: What they cost.

        probed: Whether the judge's probe was read, and passed.
    """

    answers: int = 0
    known: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    strangers: int = 0
    unkept: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0
    probed: bool = False


def write_batch(
    path: Path,
    plan: Plan,
    judge: LineJudge,
    cache: Answers,
    outstanding: Outstanding,
    *,
    probe: bool = True,
    again: bool = False,
    requests: int = REQUESTS,
    size: int = BYTES,
) -> Written:
    """Write the requests that *plan* still needs under its caps, in files of a size that services take.

    A judge that has not passed its probe is asked that alone, two requests; read their results, and write again.

    Args:
        path: The first file, such as ``requests.jsonl``; further ones are ``requests-2.jsonl`` and so on.

        plan: The pairs, the caps, and the price of single requests, of which a batch costs the judge's share.

        judge: The judge.

        cache: Answers that are kept.

        outstanding: Pairs that earlier files ask about.

        probe: Whether a judge must pass the probe of `check_judge` first.

        again: Whether outstanding pairs are asked about again, such as those of a batch that expired without results.

        requests: Requests of one file at most.

        size: Bytes of one file at most, where a single request is not longer.

    Raises:
        InputError: A file is there already; its requests may wait to be sent.
        JudgeError: The judge's probe is outstanding.
    """
    judge.scale.check_calibrated()
    if requests < 1:
        raise InputError(f"requests: expected at least 1, got {requests}")
    plan = replace(plan, price=plan.price.share(judge.price))
    seen = PaidOrOutstanding(cache, None if again else outstanding)
    walk = Walk(plan, judge, seen)
    unproven = probe and len(cache.get(probe_keys(judge))) < len(probe_keys(judge))
    usage = Usage()
    with _Files(path, judge, plan.price, outstanding, requests, size) as files:
        for call in walk.calls():
            if call is None:
                continue
            walk.ledger.settle(call, call.estimate)
            usage += call.estimate
            if unproven:
                return _probe(plan, judge, seen, files)
            (pair,), (document,) = call.keys, call.documents
            if not files.add(pair, call.query, document, call.estimate):
                cache.put(judge.fingerprint, {pair: Paid(None)})  # nothing to read, nothing to ask
        files.close()
    progress = Progress(walk.pairs, walk.cached, usage, walk.ledger.usd)
    waiting, stopped = len(seen.waiting), walk.stopped
    return Written(files.names, files.costs, files.requests, waiting, probe=False, progress=progress, stopped=stopped)


def forecast_batch(
    plan: Plan, judge: LineJudge, cache: Answers, outstanding: Outstanding, *, probe: bool = True
) -> Progress:
    """The pairs that `write_batch` would ask about and their highest cost; nothing is written."""
    plan = replace(plan, price=plan.price.share(judge.price))
    return forecast(plan, judge, PaidOrOutstanding(cache, outstanding), probe=probe)


def _probe(plan: Plan, judge: LineJudge, seen: PaidOrOutstanding, files: _Files) -> Written:
    """The requests of the judge's probe, where the caps leave room for them."""
    keys, texts = probe_keys(judge), (PROBE_GOOD, PROBE_BAD)
    seen.get(keys)
    if seen.waiting & set(keys):
        raise JudgeError(
            f"{judge.fingerprint}: expected the results of its probe, which an earlier file asks for: read them, "
            "or ask for them again"
        )
    ledger = Walk(plan, judge, seen).ledger
    usage = judge.forecast(PROBE_QUERY, texts)
    if not ledger.admits(usage):
        return Written((), (), 0, len(seen.waiting), probe=False, progress=Progress(), stopped=BUDGET_ENDED)
    for key, text in zip(keys, texts, strict=True):
        files.add(key, PROBE_QUERY, text, judge.forecast(PROBE_QUERY, [text]))
    files.close()
    progress = Progress(0, 0, usage, plan.price.of(usage))
    return Written(files.names, files.costs, files.requests, len(seen.waiting), probe=True, progress=progress)


class _Files:
    """Files of requests, each whole or not at all; what a file asks about is noted before it is there."""

    def __init__(
        self, path: Path, judge: LineJudge, price: Price, outstanding: Outstanding, requests: int, size: int
    ) -> None:
        self._path, self._judge, self._price, self._outstanding = path, judge, price, outstanding
        self._most, self._size = requests, size
        self._costs: dict[bytes, Paid] = {}
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._open = ExitStack()
        self.names: list[Path] = []
        self.costs: list[Mapping[bytes, Paid]] = []
        self.requests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(*error)  # type: ignore[arg-type]  # a file that is not finished is not there

    def add(self, pair: bytes, query: str, document: str, estimate: Usage) -> bool:
        """Add a request; False where the document has no text, and there is none."""
        line = self._judge.line(pair, query, document)
        if line is None:
            return False
        if self._costs and (len(self._costs) == self._most or self._bytes + len(line) > self._size):
            self.close()
        if self._file is None:
            number = len(self.names) + 1
            name = self._path if number == 1 else self._path.with_stem(f"{self._path.stem}-{number}")
            if name.exists():
                raise InputError(f"{name}: expected no such file yet, its requests may wait to be sent")
            self._file = self._open.enter_context(whole_file(name))
            self.names.append(name)
        self._file.write(line)
        self._bytes += len(line)
        self._costs[pair] = Paid(None, estimate.tokens, self._price.of(estimate))
        self.requests += 1
        return True

    def close(self) -> None:
        """Finish the file that is being written, if there is one."""
        if self._file is not None:
            self._outstanding.note(self._costs, self._price)
            self.costs.append(self._costs)
        self._open.close()
        self._file, self._costs, self._bytes = None, {}, 0


def read_batch(
    paths: Sequence[Path],
    plan: Plan,
    judge: LineJudge,
    cache: Answers,
    outstanding: Outstanding,
    *,
    lines: int | None = None,
) -> Collected:
    """Keep the answers in files of results, each as it is read; reading a file twice changes nothing.

    Args:
        paths: Files of results and of errors, in any order.

        plan: The pairs that may be asked about, and the price of single requests.

        judge: The judge.

        cache: Answers that are kept; new ones are written to it.

        outstanding: Pairs that were asked about; those with an answer or a failure are released.

        lines: Lines of a file that are read at most; None for all.

    Raises:
        DataError: A file is not there, or none of its lines is one of results.
        JudgeError: The judge failed its probe.
    """
    reading = _Reading(plan, judge, cache, outstanding)
    for path in paths:
        reading.file(path, lines)
    return reading.finish()


class _Reading:
    """The answers of files, checked against what was asked."""

    def __init__(self, plan: Plan, judge: LineJudge, cache: Answers, outstanding: Outstanding) -> None:
        self._judge, self._cache, self._outstanding = judge, cache, outstanding
        self._price = plan.price.share(judge.price)
        self._asked = {
            pair_key(judge.fingerprint, one.query, text): (one.query, text)
            for one in plan.observations
            for _, text in one.candidates
        }
        self._probe_keys = probe_keys(judge)
        self._asked |= {
            key: (PROBE_QUERY, text) for key, text in zip(self._probe_keys, (PROBE_GOOD, PROBE_BAD), strict=True)
        }
        self._probe: dict[bytes, Paid] = {}
        self._failures: Counter[str] = Counter()
        self._failed: set[bytes] = set()
        self._unkept: set[bytes] = set()
        self._answers = self._known = self._strangers = 0
        self._usage, self._usd = Usage(), 0.0

    def file(self, path: Path, lines: int | None) -> None:
        """Keep the answers of one file."""
        read = 0
        for results in _in_parts(path, self._judge.read, lines):
            read += sum(result.pair is not None for result in results)
            self._part(results)
        if not read and path.stat().st_size:
            raise DataError(f"{path}: expected lines of results, each with the address of a pair, found none")

    def _part(self, results: Sequence[LineResult]) -> None:
        keys = list({result.pair for result in results if result.pair is not None})
        noted, known = self._outstanding.get(keys), self._cache.get(keys).keys()
        fresh: dict[bytes, Paid] = {}
        for result in results:
            pair = result.pair
            if pair is None:
                self._failure(result.failure)
            elif pair not in self._asked and pair not in noted and pair not in known:
                self._strangers += 1
                if not result.failure or result.billed:
                    self._not_kept(pair)
            elif result.failure:
                self._failure(result.failure)
                self._failed.add(pair)
                if result.billed:
                    self._not_kept(pair)
            elif pair in known or pair in fresh or pair in self._probe:
                self._known += 1
            else:
                paid = self._paid(pair, result, noted.get(pair))
                (self._probe if pair in self._probe_keys else fresh)[pair] = paid
        self._cache.put(self._judge.fingerprint, fresh)
        self._answers += len(fresh)
        self._outstanding.release(list(noted.keys() & (fresh.keys() | known)))

    def _failure(self, reason: str) -> None:
        kept = reason in self._failures or len(self._failures) < _REASONS
        self._failures[reason if kept else _OTHER] += 1

    def _not_kept(self, pair: bytes) -> None:
        """Note an answer that was paid for and is not kept; a file asks about `REQUESTS` pairs at most."""
        if len(self._unkept) < REQUESTS:
            self._unkept.add(pair)

    def _paid(self, pair: bytes, result: LineResult, noted: tuple[Paid, Price] | None) -> Paid:
        """An answer with its cost, at the price that it was asked at; the highest cost where the line says none."""
        price = noted[1] if noted else self._price
        usage = result.usage
        if usage is None and pair in self._asked:
            query, text = self._asked[pair]
            usage = self._judge.forecast(query, [text])
        if usage is None:
            cost = noted[0] if noted else Paid(None)
        else:
            self._usage += usage
            cost = Paid(None, usage.tokens, price.of(usage))
        self._usd += cost.usd
        return replace(cost, score=result.score)

    def finish(self) -> Collected:
        """The counts; pairs that failed and have no answer in any file are outstanding no more."""
        failed = list(self._failed)
        noted, answered = self._outstanding.get(failed), self._cache.get(failed)
        self._outstanding.release([pair for pair in noted if pair not in answered])
        if self._probe:
            self._check_probe()
        return Collected(
            self._answers,
            self._known,
            dict(self._failures.most_common()),
            self._strangers,
            len(self._unkept),
            self._usage,
            self._usd,
            probed=bool(self._probe),
        )

    def _check_probe(self) -> None:
        """Keep the answers of the probe where the judge passes it; ask again else."""
        if len(self._probe) == len(self._probe_keys):
            self._outstanding.release(self._probe_keys)
            check_probe(self._judge, [self._probe[key].score for key in self._probe_keys])
            self._cache.put(self._judge.fingerprint, self._probe)
        elif len(self._cache.get(self._probe_keys)) < len(self._probe_keys):
            self._outstanding.release(self._probe_keys)
            raise JudgeError(
                f"{self._judge.fingerprint}: expected both answers of its probe, got one; ask for it again"
            )


def _in_parts(path: Path, read: Callable[[bytes], LineResult], most: int | None) -> Iterator[list[LineResult]]:
    """What the lines of a file say, some at a time; only one of them, which may be long, is in memory."""
    try:
        with path.open("rb") as file:
            lines = _lines(file.readline)
            some = filter(bytes.strip, islice(lines, most))
            while part := [read(line) for line in islice(some, _AT_ONCE)]:
                yield part
            if next(lines, None) is not None:
                yield [LineResult(None, failure=f"expected at most {most} lines, got more, which are not read")]
    except FileNotFoundError as exc:
        raise DataError(f"{path}: expected a file of results, found none") from exc


def _lines(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """The lines of a file; one that is too long becomes one that cannot be read."""
    while line := readline(_LONGEST_LINE):
        end = line
        while not end.endswith(b"\n") and (end := readline(_LONGEST_LINE)):
            line = _TOO_LONG
        yield line


def answered(plan: Plan, judge: LineJudge, cache: Answers) -> Verdicts:
    """The verdicts of *plan* that are there; nothing is asked."""
    rewards: dict[str, dict[str, float]] = {}
    pairs = cached = unjudged = 0
    paid: dict[bytes, Paid] = {}
    for observation, candidates in plan.visits():
        keys = [pair_key(judge.fingerprint, observation.query, text) for _, text in candidates]
        kept = cache.get(keys)
        paid |= kept
        pairs, cached = pairs + len(keys), cached + sum(key in kept for key in keys)
        scored = [key in kept and kept[key].score is not None for key in keys]
        unjudged += sum(key in kept for key in keys) - sum(scored)
        values = rewards_of(judge, [kept[key].score if key in kept else None for key in keys]).tolist()
        for (document, _), value, is_scored in zip(candidates, values, scored, strict=True):
            if is_scored:
                rewards.setdefault(observation.query_id, {})[document] = value
    paid |= cache.get(probe_keys(judge))
    return Verdicts(rewards, unjudged, Progress(pairs, cached, Usage(), sum(one.usd for one in paid.values())))
