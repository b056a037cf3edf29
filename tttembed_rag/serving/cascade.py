"""A reranker behind a search with offsets, asked only about the lists whose order its answer may change.

How much that may cost was certified when the offsets were learned (`tttembed_rag.offsets.skips`). A tenth of all texts,
drawn before anything is known of them, is reranked as ever. Once some lists are served as they are, verdicts on this
tenth alone go to the log, so that whatever is kept there stays a fair sample of what is asked: else what is learned
next, and every certificate, would rest on the queries that are hard. By the same tenth a cascade watches itself.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.gate.depth import lost_by
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import CERTIFIED_LEVEL
from tttembed_rag.judges.contract import Judge, Scores, checked_judge, checked_rewards
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.skips import Skips
from tttembed_rag.serving.context import current_tenant
from tttembed_rag.serving.live import LiveOffsets
from tttembed_rag.serving.steering import Ranked, Steering, TaskSource
from tttembed_rag.serving.twopass import in_reward_order
from tttembed_rag.system.failures import FailureLog

_log = logging.getLogger(__name__)
# Why a cascade asks about every list although something was certified: what it lost, and another judge.
LOST, OTHER_JUDGE = "TTT-C01", "TTT-C02"
# Explored requests after which a cascade looks at what it loses, each block anew.
WATCHED = 100
# Texts of queries whose verdicts are kept in memory.
_KEPT = 10_000
_DIGEST = 16


class Keeps(Protocol):
    """What a cascade asks of a log: `tttembed_rag.capture.Log`."""

    def declare(self) -> None:
        """Say that the order of its judge is served."""

    def check_is_for(self, judge: Judge, /) -> None:
        """Refuse another judge than its own."""

    def record(
        self,
        query: str,
        documents: Sequence[str],
        scores: Sequence[float | None],
        *,
        task: str | None = None,
        source: str | None = None,
    ) -> None:
        """Keep the scores of documents."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A list on its way through the cascade.

    Attributes:
        query: Its text.

        task: Its task.

        places: Of the documents in the list of the search, best first.

        asked: Texts of those that the reranker is asked about; none where it is not.

        about: What the cascade calls the tenant, the task and the text.

        skips: What says which lists need no reranker; None where nothing is certified.

        sure: Whether this one needs none.

        explored: Whether it is reranked in any case.
    """

    query: str
    task: str | None
    places: list[int]
    asked: list[str]
    about: bytes = b""
    skips: Skips | None = None
    sure: bool = False
    explored: bool = False


class Cascade:
    """What a search found, in the order of a reranker, which is asked only where its answer may change the list.

    The list is sorted by shared words first, where a rescorer is published. Then, in this order: verdicts of this
    process on the same text are used again, where they know half of the first documents; a text of the explored share
    is reranked; a list whose first document leads by enough is served as it is; all others are reranked. Nothing is
    skipped before a version certifies it, which takes 60 judged queries. Whatever fails is logged, and the list is
    served as it is.

    Args:
        offsets: What was learned; `LiveOffsets` where it is replaced while serving; or a `Steering`, which has a task.

        judge: The reranker, as a judge.

        task: As in `Steering`: a key, the wrapped model, a function of the query's text, or None.

        log: Keeps verdicts; None keeps none. Its judge is declared: `Log.declare`.

        depth: Documents that the reranker reads, >= 1.

        loss: nDCG@10 of the judge that may be lost on the mean of all requests, by 90 % confidence, > 0.

        explore: Share of texts that are reranked in any case, in (0, 1].

        similarity: Score of the search to cosine similarity; None where scores are cosines.

    Raises:
        InputError: An option is none, or the log is for another judge.
    """

    def __init__(
        self,
        offsets: Offsets | LiveOffsets | Steering,
        judge: Judge,
        *,
        task: TaskSource = None,
        log: Keeps | None = None,
        depth: int = 10,
        loss: float = CERTIFIED_LOSS,
        explore: float = 0.1,
        similarity: Callable[[float], float] | None = None,
    ) -> None:
        if depth < 1 or not loss > 0 or not 0 < explore <= 1:
            raise InputError(
                f"cascade: expected depth >= 1, loss > 0 and explore in (0, 1], got {depth}, {loss} and {explore}"
            )
        self._steering = offsets if isinstance(offsets, Steering) else Steering(offsets, task)
        self._judge: Judge = checked_judge(judge)
        if log is not None:
            log.check_is_for(judge)
            log.declare()
        self._log_of_verdicts = log
        self._depth, self._loss, self._explore, self._similarity = depth, loss, explore, similarity
        self._key = secrets.token_bytes(16)
        self._kept: OrderedDict[bytes, dict[bytes, float]] = OrderedDict()
        # Both as long as the version is served.
        self._seen: WeakKeyDictionary[Skips, list[tuple[list[float], bool]]] = WeakKeyDictionary()
        self._stopped: WeakSet[Skips] = WeakSet()
        self._refused = ""
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._failures = FailureLog(_log)

    @property
    def counts(self) -> dict[str, int]:
        """Requests so far: *repeated* (verdicts used again), *skipped*, *reranked*, and of these *explored*."""
        names = ("repeated", "skipped", "reranked", "explored")
        return {name: self._counts[name] for name in names}

    def order(self, query: str, texts: Sequence[str], scores: Sequence[float | None]) -> list[int]:
        """Places of what a search found, best first.

        Args:
            query: Its text.

            texts: Texts of the k candidates, in the order of the search: 20 to 100 where words sort them, else as many
                as are served.

            scores: Their scores, as the search gives them.
        """
        places = list(range(len(texts)))
        try:
            turn = self._turn(query, texts, scores)
            places = turn.places
            return self._reranked(turn, self._judge.score(query, turn.asked)) if turn.asked else places
        except Exception:  # noqa: BLE001 - whatever it is, the request goes on
            self._failures.exception("a list is served without the reranker")
            return places

    async def aorder(self, query: str, texts: Sequence[str], scores: Sequence[float | None]) -> list[int]:
        """`order`, without blocking the event loop."""
        places = list(range(len(texts)))
        try:
            turn = self._turn(query, texts, scores)
            places = turn.places
            return self._reranked(turn, await self._judge.ascore(query, turn.asked)) if turn.asked else places
        except Exception:  # noqa: BLE001 - whatever it is, the request goes on
            self._failures.exception("a list is served without the reranker")
            return places

    def _turn(self, query: str, texts: Sequence[str], scores: Sequence[float | None]) -> _Turn:
        """What is asked about this list."""
        ranked = self._steering.ranked(query, texts, scores, similarity=self._similarity)
        task = self._steering.task_of(query)
        first = ranked.places[: self._depth]
        about = self._digest(current_tenant() or "", task or "", query)
        if known := self._kept.get(about):
            rewards = {
                place: known[digest] for place in ranked.places if (digest := self._digest(texts[place])) in known
            }
            if 2 * sum(place in rewards for place in first) >= len(first):
                return self._counted(_Turn(query, task, in_reward_order(ranked.places, rewards), []), "repeated")
        skips = self._certified(ranked)
        sure = skips is not None and ranked.lead >= skips.lead(self._loss)
        # Whatever is known of it, a text is explored always or never, within one process.
        explored = int.from_bytes(self._digest(query)) < self._explore * 2 ** (8 * _DIGEST)
        if sure and not explored:
            return self._counted(_Turn(query, task, ranked.places, []), "skipped")
        turn = _Turn(query, task, ranked.places, [texts[place] for place in first], about, skips, sure, explored)
        return self._counted(turn, "reranked", *["explored"] * explored)

    def _counted(self, turn: _Turn, *names: str) -> _Turn:
        with self._lock:
            self._counts.update(names)
        return turn

    def _digest(self, *parts: str) -> bytes:
        """What the cascade calls texts, by a key that nobody else knows: it keeps none of them."""
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._key, digest_size=_DIGEST).digest()

    def _certified(self, ranked: Ranked) -> Skips | None:
        """What says which lists of the task need no reranker; None where every list does."""
        skips = ranked.skips
        if skips is None or not skips.share(self._loss) or skips in self._stopped:
            return None
        if ranked.judge == self._judge.fingerprint:
            return skips
        if self._refused != ranked.judge:
            self._refused = ranked.judge
            _log.warning(
                "%s: every list is reranked: what lists lose without %s was certified for %s",
                OTHER_JUDGE,
                self._judge.fingerprint,
                ranked.judge,
            )
        return None

    def _reranked(self, turn: _Turn, scores: Scores) -> list[int]:
        """The places by the verdicts, which are kept."""
        rewards = checked_rewards(self._judge, scores).tolist()
        judged = {place: reward for place, reward in zip(turn.places, rewards, strict=False) if not np.isnan(reward)}
        if len(judged) == len(turn.asked):
            with self._lock:
                self._kept[turn.about] = dict(zip(map(self._digest, turn.asked), rewards, strict=True))
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            if turn.explored and turn.skips is not None:
                self._watch(turn, turn.skips, rewards)
        if self._log_of_verdicts is not None and (turn.explored or turn.skips is None):
            self._log_of_verdicts.record(turn.query, turn.asked, scores, task=turn.task, source="")
        return in_reward_order(turn.places, judged)

    def _watch(self, turn: _Turn, skips: Skips, rewards: list[float]) -> None:
        """Rerank every list until the next version, where the explored requests of the last block lost too much."""
        with self._lock:
            seen = self._seen.setdefault(skips, [])
            seen.append((rewards, turn.sure))
            if len(seen) < WATCHED:
                return
            del self._seen[skips]
        voices, depth = np.ones(len(seen)), max(len(one) for one, _ in seen)
        least = min(min(one) for one, _ in seen)
        gains = np.array([np.pad(np.array(one) - least, (0, depth - len(one))) for one, _ in seen])
        lost = np.where([sure for _, sure in seen], lost_by(gains, voices, 1), 0.0)
        mean = Gain.measured(lost, voices, np.arange(len(seen)))
        if mean.below(CERTIFIED_LEVEL) > self._loss:
            self._stopped.add(skips)
            _log.warning(
                "%s: task=%r: every list is reranked until the next version: %d explored requests lost %.3f nDCG@10",
                LOST,
                turn.task,
                len(seen),
                mean.mean,
            )

    def __repr__(self) -> str:
        told = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"Cascade({self._steering!r}, {self._judge.fingerprint}, {told})"
