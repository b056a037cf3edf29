"""Judging served queries under a budget: what to ask in which order, what is known, when to stop.

Stopping and continuing equals never stopping: caps count what the pairs of a result cost, whenever
they were paid for, and every answer is kept as soon as it is known.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tttembed_rag.budget import in_turns
from tttembed_rag.errors import DataError, InputError, JudgeError
from tttembed_rag.files import write_whole
from tttembed_rag.judges.cache import Answers, Paid, pair_key
from tttembed_rag.judges.contract import (
    PROBE_BAD,
    PROBE_GOOD,
    PROBE_QUERY,
    Judge,
    check_judge,
    documents_per_call,
    forecast_of,
    rewards_of,
)
from tttembed_rag.judges.spending import Budget, Ledger, Price, Usage, metered

_log = logging.getLogger(__name__)

# Ids are columns of a text file.
_PLAIN_ID = re.compile(r"[^\t\n\r\ud800-\udfff]+")

# Why a run stopped that came to a cap.
BUDGET_ENDED = "budget: the next answer could exceed a cap"
# Calls that may fail one after the other before the rest is left for another day.
_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """A query that was served.

    Attributes:
        query_id: The same for the same query, in all tasks: scores are written by it.

        query: Its text.

        candidates: (id, text) of what the retriever returned, in base order.

        task: Its task key.
    """

    query_id: str
    query: str
    candidates: Sequence[tuple[str, str]]
    task: str = "default"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which pairs are judged, in which order, at which price.

    Attributes:
        observations: Served queries.

        depths: Candidates per query, in stages: with (10, 30) every query is judged to depth 10 before
            any is judged to 30. (1, 2, ...) is breadth first, one depth is depth first. Within a stage
            tasks take turns, one query each, as in the paper.

        budget: Caps.

        price: What the judge's usage costs.

        seed: Order of the queries within a task.
    """

    observations: Sequence[Observation]
    depths: Sequence[int] = (10,)
    budget: Budget = field(default_factory=Budget)
    price: Price = field(default_factory=Price)
    seed: int = 1000

    def __post_init__(self) -> None:
        for one in self.observations:
            for name in (one.query_id, *(document for document, _ in one.candidates)):
                if not _PLAIN_ID.fullmatch(name):
                    raise InputError(f"observations: expected ids without tabs and line breaks, got {name!r}")
        if not self.depths or sorted(set(self.depths)) != list(self.depths) or self.depths[0] < 1:
            raise InputError(f"depths: expected rising numbers >= 1, got {list(self.depths)}")
        if self.budget.usd is not None and self.price == Price() and self.budget.usd > 0:
            raise InputError(
                "price: expected one, as input=2,output=12 or request=0.002, where the budget caps usd, got none"
            )
        texts: dict[str, str] = {}
        for one in self.observations:
            if texts.setdefault(one.query_id, one.query) != one.query:
                raise InputError(f"observations: expected one text per query id, got two for {one.query_id!r}")

    def visits(self) -> Iterator[tuple[Observation, Sequence[tuple[str, str]]]]:
        """Queries with the candidates to judge next, in order, under the cap of pairs."""
        tasks: dict[str, list[Observation]] = {}
        for observation in self.observations:
            tasks.setdefault(observation.task, []).append(observation)
        groups = list(tasks.values())
        order = in_turns([len(group) for group in groups], seed=self.seed)
        left = self.budget.pairs if self.budget.pairs is not None else float("inf")
        for above, depth in zip((0, *self.depths), self.depths, strict=False):
            for task, place in order:
                observation = groups[task][place]
                some = observation.candidates[above:depth]
                some = some[: int(left)] if left < len(some) else some
                left -= len(some)
                if some:
                    yield observation, some

    @property
    def pairs(self) -> int:
        """Pairs of the plan, under the cap of pairs."""
        return sum(len(some) for _, some in self.visits())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far judging is.

    Attributes:
        pairs: Pairs the plan has come to.

        cached: How many of them were known already.

        usage: What was used in this run.

        usd: What all answers of the result cost, in this run or before.
    """

    pairs: int = 0
    cached: int = 0
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a judge said.

    Attributes:
        rewards: In [0, 1], by query id and document id, in the order of the plan. A pair that is not there was
            not judged.

        unjudged: Pairs the judge was asked about and gave no score.

        progress: Pairs, usage and money at the end.

        stopped: Why it ended before the plan did; empty if it did not.

        failed: Why, for every pair whose call failed, by (query id, document id).
    """

    rewards: Mapping[str, Mapping[str, float]]
    unjudged: int
    progress: Progress
    stopped: str = ""
    failed: Mapping[tuple[str, str], JudgeError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    query: str
    documents: list[str]
    keys: list[bytes]
    estimate: Usage


def forecast(plan: Plan, judge: Judge, cache: Answers, *, probe: bool = False) -> Progress:
    """What `judge_all` would do and cost at most, without asking the judge anything.

    Args:
        plan: What to judge, and under which caps.

        judge: Who judges.

        cache: What is known.

        probe: Whether `check_once` is asked before, and paid for if it has not passed yet.
    """
    walk = _Walk(plan, judge, cache)
    usage = Usage()
    if probe and len(cache.get(_probe_keys(judge))) < 2:
        usage = forecast_of(judge, PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
        walk.ledger.count(usage.tokens, plan.price.of(usage))
    for call in walk.calls():
        if call is not None:
            walk.ledger.settle(call, call.estimate)
            usage += call.estimate
    return Progress(walk.pairs, walk.cached, usage, walk.ledger.usd)


def check_once(judge: Judge, cache: Answers, *, price: Price | None = None) -> None:
    """Refuse a judge that fails the probe of `check_judge`; one that passed before is not asked again.

    What it costs counts against the caps of every result of that judge in *cache*.

    Raises:
        JudgeError: It cannot tell good from bad.
    """
    keys = _probe_keys(judge)
    if len(cache.get(keys)) < len(keys):
        with metered() as meter:
            passed = check_judge(judge)
        used = meter.usage if meter.heard else forecast_of(judge, PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
        cache.put(judge.fingerprint, _shared(keys, passed, used, (price or Price()).of(used)))


def _probe_keys(judge: Judge) -> list[bytes]:
    return [pair_key(judge.fingerprint, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)]


def _shared(keys: Sequence[bytes], scores: Sequence[float | None], used: Usage, usd: float) -> dict[bytes, Paid]:
    """The *scores* of one call, each with an equal share of what it cost."""
    share = len(keys)
    return {key: Paid(score, used.tokens / share, usd / share) for key, score in zip(keys, scores, strict=True)}


def judge_all(
    plan: Plan,
    judge: Judge,
    cache: Answers,
    *,
    concurrency: int = 8,
    watch: Callable[[Progress], None] | None = None,
) -> Verdicts:
    """Score the pairs of *plan* that *cache* does not know, until the plan or a cap ends.

    Every answer is kept as soon as it is known. A cap is never exceeded while judges use no more than they
    forecast. A judge that fails three times in a row ends the run; what was scored stays scored.

    Args:
        plan: What to judge, and under which caps.

        judge: Who judges.

        cache: What is known; new answers are written to it.

        concurrency: Calls in flight at once.

        watch: Called with the progress after every answer.
    """

    async def judged() -> Verdicts:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max(1, concurrency)))
        return await ajudge_all(plan, judge, cache, concurrency=concurrency, watch=watch)

    return asyncio.run(judged())


async def ajudge_all(
    plan: Plan,
    judge: Judge,
    cache: Answers,
    *,
    concurrency: int = 8,
    watch: Callable[[Progress], None] | None = None,
) -> Verdicts:
    """`judge_all` inside a running event loop (a notebook, a server)."""
    judge.scale.to_unit(rewards_of(judge, []))  # refuses an unbounded scale before anything is paid
    if concurrency < 1:
        raise InputError(f"concurrency: expected at least 1, got {concurrency}")
    return await _Run(plan, judge, cache, concurrency, watch or (lambda _: None)).finish()


def read_log(path: Path) -> list[Observation]:
    """Served queries from a log of JSON lines.

    A line is ``{"query_id": ..., "query": ..., "task": ..., "candidates": [{"id": ..., "text": ...}, ...]}``,
    candidates in base order, the task optional.

    Raises:
        DataError: Not such a file; the message names the line.
    """
    observations = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    observations.append(_observation(path, number, line))
    except FileNotFoundError as exc:
        raise DataError(f"{path}: expected a BEIR folder or a log of served queries, found none") from exc
    except UnicodeDecodeError as exc:
        raise DataError(f"{path}: expected UTF-8 text, got other bytes") from exc
    return observations


def _observation(path: Path, number: int, line: str) -> Observation:
    try:
        record = json.loads(line)
        candidates = [(one["id"], one["text"]) for one in record["candidates"]]
        observation = Observation(record["query_id"], record["query"], candidates, record.get("task", "default"))
    except (KeyError, TypeError, ValueError) as exc:
        raise DataError(f"{path}:{number}: expected query_id, query and candidates with id and text") from exc
    texts = (observation.query_id, observation.query, observation.task, *(part for one in candidates for part in one))
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{path}:{number}: expected texts, got another kind of value")
    return observation


def write_scores(path: Path, verdicts: Verdicts) -> None:
    """Write rewards in [0, 1] to *path* as query-id, corpus-id, score with a header line, all or nothing."""
    lines = [
        f"{query}\t{document}\t{reward:.9g}\n"
        for query, rewards in verdicts.rewards.items()
        for document, reward in rewards.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(["query-id\tcorpus-id\tscore\n", *lines]).encode())


_END = _Call("", [], [], Usage())


class _Walk:
    """The calls that a plan still needs, in order; stops where a cap would be exceeded."""

    def __init__(self, plan: Plan, judge: Judge, cache: Answers) -> None:
        self._plan, self._judge, self._cache = plan, judge, cache
        self.ledger = Ledger(plan.budget, plan.price)
        self.known: dict[bytes, Paid] = {}
        self.reached: list[tuple[str, str, bytes]] = []
        self.cached = 0
        self.stopped = ""
        self._asked: set[bytes] = set()
        self._look_up(_probe_keys(judge))

    @property
    def pairs(self) -> int:
        """Pairs the plan has come to."""
        return len(self.reached)

    def calls(self) -> Generator[_Call | None, None, None]:
        """Calls to make, each reserved in the ledger, to be settled there; None: settle a running one first."""
        for observation, candidates in self._plan.visits():
            addressed = [
                (document, text, pair_key(self._judge.fingerprint, observation.query, text))
                for document, text in candidates
            ]
            self._look_up([key for _, _, key in addressed])
            for some in self._parts(addressed):
                fresh = {key: text for _, text, key in some if key not in self.known and key not in self._asked}
                if fresh:
                    texts = list(fresh.values())
                    estimate = forecast_of(self._judge, observation.query, texts)
                    while not self.ledger.admits(estimate):
                        if not self.ledger.running:
                            self.stopped = BUDGET_ENDED
                            return
                        yield None
                    call = _Call(observation.query, texts, list(fresh), estimate)
                    self.ledger.reserve(call, estimate)
                self._asked.update(fresh)
                self.cached += sum(key in self.known for _, _, key in some)
                self.reached += [(observation.query_id, document, key) for document, _, key in some]
                if fresh:
                    yield call

    def _look_up(self, keys: Sequence[bytes]) -> None:
        """What the cache knows of *keys*; its price counts as the price of this result."""
        missing = [key for key in dict.fromkeys(keys) if key not in self.known and key not in self._asked]
        for key, paid in self._cache.get(missing).items():
            self.known[key] = paid
            self.ledger.count(paid.tokens, paid.usd)

    def _parts(self, addressed: Sequence[tuple[str, str, bytes]]) -> Iterator[Sequence[tuple[str, str, bytes]]]:
        size = documents_per_call(self._judge)
        for start in range(0, len(addressed), size):
            yield addressed[start : start + size]


class _Run:
    """One run of a plan: workers that take calls in turn."""

    def __init__(
        self, plan: Plan, judge: Judge, cache: Answers, concurrency: int, watch: Callable[[Progress], None]
    ) -> None:
        self._walk = _Walk(plan, judge, cache)
        self._judge, self._cache, self._concurrency, self._watch = judge, cache, concurrency, watch
        self._usage = Usage()
        self._failures = 0
        self._failed: dict[bytes, JudgeError] = {}
        self._stopped = ""
        self._settled = asyncio.Event()

    async def finish(self) -> Verdicts:
        """All that could be judged; an error ends it when the answers under way, which cost money, are kept."""
        calls = self._walk.calls()
        ends = await asyncio.gather(*(self._work(calls) for _ in range(self._concurrency)), return_exceptions=True)
        for failed in ends:
            if failed is not None:
                raise failed
        return self._verdicts()

    async def _work(self, calls: Generator[_Call | None, None, None]) -> None:
        try:
            while not self._stopped and (call := next(calls, _END)) is not _END:
                if call is None:
                    self._settled.clear()
                    await self._settled.wait()
                    continue
                await self._answer(call)
                self._settled.set()
                self._watch(self._progress())
        finally:
            calls.close()
            self._settled.set()

    async def _answer(self, call: _Call) -> None:
        with metered() as meter:
            try:
                said = await self._judge.ascore(call.query, call.documents)
                scores = [None if score is None else float(score) for score in said]
                if len(scores) != len(call.keys):
                    raise JudgeError(f"judge: expected {len(call.keys)} scores, got {len(scores)}")
            except JudgeError as exc:
                self._walk.ledger.settle(call, meter.usage)
                self._failures += 1
                self._failed |= dict.fromkeys(call.keys, exc)
                _log.warning("not judged: %s", exc)
                if self._failures >= _FAILURES:
                    self._stopped = str(exc)
                return
        self._failures = 0
        rewards_of(self._judge, scores)  # a score off the scale is never kept
        silent = not meter.heard and any(text.strip() for text in call.documents)
        used = call.estimate if silent else meter.usage  # a cap can only hold if something is counted
        answers = _shared(call.keys, scores, used, self._walk.ledger.settle(call, used))
        self._cache.put(self._judge.fingerprint, answers)
        self._walk.known.update(answers)
        self._usage += used

    def _progress(self) -> Progress:
        return Progress(self._walk.pairs, self._walk.cached, self._usage, self._walk.ledger.usd)

    def _verdicts(self) -> Verdicts:
        found = [(query, document, self._walk.known.get(key)) for query, document, key in self._walk.reached]
        scores = [paid.score if paid else None for _, _, paid in found]
        rewards: dict[str, dict[str, float]] = {}
        for (query, document, _), score, reward in zip(
            found, scores, rewards_of(self._judge, scores).tolist(), strict=True
        ):
            if score is not None:
                rewards.setdefault(query, {})[document] = reward
        failed = {
            (query, document): self._failed[key] for query, document, key in self._walk.reached if key in self._failed
        }
        return Verdicts(rewards, scores.count(None), self._progress(), self._stopped or self._walk.stopped, failed)
