"""A reranker behind a search with offsets, asked only about the lists whose order its answer may change.

How much that may cost was certified when the offsets were learned (`tttembed_rag.offsets.rerankskips`). A tenth of all
texts, drawn before anything is known of them, is reranked as ever. Once some lists are served as they are, verdicts on
this tenth alone go to the log, so that whatever is kept there stays a fair sample of what is asked: else what is
learned next, and every certificate, would rest on the queries that are hard. By the same tenth a cascade watches
itself.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Generator, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tttembed_rag.errors import RewardError, check_above_zero, check_count
from tttembed_rag.gate.depth import lost_by, paid_for
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import CERTIFIED_LEVEL
from tttembed_rag.judges.contract import Judge, Scores, ascored, checked_judge, checked_rewards, scored
from tttembed_rag.offsets.codes import LOST, OTHER_JUDGE
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS
from tttembed_rag.offsets.orders import in_reward_order
from tttembed_rag.offsets.rerankskips import Skips
from tttembed_rag.serving.log import Log, checked_log
from tttembed_rag.serving.steering import Ranked, Request, Similarity
from tttembed_rag.serving.twopass import Question, adrive, drive
from tttembed_rag.system.failures import FailureLog

if TYPE_CHECKING:
    from cachetools import FIFOCache

_log = logging.getLogger(__name__)
# Explored requests after which a cascade looks at what it loses, each block anew.
WATCHED = 100
# Texts of queries whose verdicts are kept in memory, and tasks of versions that are watched, at most.
_KEPT, _WATCHES = 10_000, 1_000
_DIGEST = 16

# What is watched: a task, and what says which of its lists need no reranker.
_Watched: TypeAlias = tuple[str | None, Skips]


class Cascade:
    """What a search found, in the order of a reranker, which is asked only where its answer may change the list.

    The list is sorted by shared words first, where a rescorer is published. Then, in this order: verdicts of this
    process on the same text are used again, where they know the first documents (half of them, once); a text of the
    explored share is reranked; a list whose first document leads by enough is served as it is, if the reranker put that
    document first before, in this process or in what the version was learned from; all others are reranked. Nothing is
    skipped before a version certifies it, which takes 60 judged questions; from then on it is not asked either about a
    list that a floor refuses, unless the text is of the explored share. Whatever fails is logged, and the list is
    served as it is.

    Args:
        judge: The reranker, as a judge.
        log: Keeps verdicts; None keeps none. Its judge is declared: `Log.declare`.
        depth: Documents that the reranker reads, >= 1.
        loss: nDCG@10 of the judge that may be lost on the mean of all requests, by 90 % confidence, > 0.
        explore: Share of texts that are reranked in any case, in (0, 1].

    Raises:
        InputError: An option is none, or the log is for another judge.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        log: Log | None = None,
        depth: int = 10,
        loss: float = CERTIFIED_LOSS,
        explore: float = 0.1,
    ) -> None:
        from cachetools import FIFOCache

        check_count("depth", depth)
        check_above_zero("loss", loss)
        check_above_zero("explore", explore, most=1)
        self._judge: Judge = checked_judge(judge)
        if log is not None:
            checked_log(log).check_is_for(judge)
            log.declare(type(self).__name__)
        self._verdicts = log
        self._depth, self._loss, self._explore = depth, loss, explore
        self._key = secrets.token_bytes(16)
        self._kept: FIFOCache[bytes, dict[bytes, float]] = FIFOCache(_KEPT)
        self._best: FIFOCache[bytes, bool] = FIFOCache(_KEPT)
        self._seen: FIFOCache[_Watched, list[tuple[list[float], bool]]] = FIFOCache(_WATCHES)
        self._stopped: FIFOCache[_Watched, bool] = FIFOCache(_WATCHES)
        self._refused: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._failures = FailureLog(_log)

    def __deepcopy__(self, memo: object) -> Cascade:
        """Itself: hosts copy their components, and a copy shares the memory, the log and what is watched."""
        return self

    @property
    def counts(self) -> dict[str, int]:
        """Requests so far: *repeated* (verdicts used again), *skipped*, *reranked*, and of these *explored*."""
        names = ("repeated", "skipped", "reranked", "explored")
        return {name: self._counts[name] for name in names}

    def order(
        self,
        request: Request,
        texts: Sequence[str],
        scores: Sequence[float | None],
        *,
        similarity: Similarity = None,
        refused: bool = False,
    ) -> list[int]:
        """Places of what a search found, best first.

        Args:
            request: The request whose vector was searched with: see `Steering.request`.
            texts: Texts of the k candidates, in the order of the search: 20 to 100 where words sort them, else as many
                as are served.
            scores: Their scores, as the search gives them.
            similarity: Score to cosine similarity; None where scores are cosines.
            refused: Whether a floor refuses the list, of which nothing is served then: see `Request.refuses`.
        """
        steps = self._steps(request, texts, scores, similarity, refused=refused)
        return drive(steps, judge=partial(scored, self._judge, request.query))

    async def aorder(
        self,
        request: Request,
        texts: Sequence[str],
        scores: Sequence[float | None],
        *,
        similarity: Similarity = None,
        refused: bool = False,
    ) -> list[int]:
        """`order`, without blocking the event loop."""
        steps = self._steps(request, texts, scores, similarity, refused=refused)
        return await adrive(steps, judge=partial(ascored, self._judge, request.query))

    def _steps(
        self,
        request: Request,
        texts: Sequence[str],
        scores: Sequence[float | None],
        similarity: Similarity,
        *,
        refused: bool,
    ) -> Generator[Question, Any, list[int]]:
        """The places of a list; the one question there may be is what the judge says of its first documents."""
        query, task = request.query, request.task
        ranked = request.ranked(texts, scores, similarity=similarity)
        first = ranked.places[: self._depth]
        if ranked.refused or len(first) < 2:
            return ranked.places
        about = self._digest(request.tenant, task or "", query)
        # Whatever is known of it, a text is explored always or never, within one process.
        explored = int.from_bytes(self._digest(query)) < self._explore * 2 ** (8 * _DIGEST)
        skips = self._certified(ranked, task)
        leader = texts[first[0]]
        with self._lock:
            known = self._kept.get(about, {})
            was_best = self._digest(request.tenant, task or "", leader) in self._best
        sure = skips is not None and ranked.lead >= skips.lead(self._loss) and (was_best or skips.has_led(leader))
        if known:
            digests = {place: self._digest(texts[place]) for place in ranked.places}
            rewards = {place: known[digest] for place, digest in digests.items() if digest in known}
            missing = sum(place not in rewards for place in first)
            if not missing or (2 * missing <= len(first) and not explored):
                with self._lock:
                    self._counts["repeated"] += 1
                    if missing:  # they are used once more: the next time the text is reranked, with what is new
                        self._kept.pop(about, None)
                    else:
                        self._kept[about] = known
                return in_reward_order(ranked.places, rewards)
        # Before anything is certified all verdicts are kept, which without refused lists would be no fair sample.
        spared = not explored and (sure or (refused and skips is not None))
        with self._lock:
            self._counts["skipped" if spared else "reranked"] += 1
            self._counts["explored"] += explored
        if spared:
            return ranked.places
        judged = [texts[place] for place in first]
        try:
            answer: Scores = yield "judge", judged
            verdicts = checked_rewards(self._judge, answer).tolist()
            rewards = {place: reward for place, reward in zip(first, verdicts, strict=True) if not np.isnan(reward)}
            if not rewards:
                raise RewardError(f"judge: expected a score of one of {len(judged)} documents at least, got none")
            with self._lock:
                self._kept[about] = {self._digest(texts[place]): reward for place, reward in rewards.items()}
                best, worst = max(rewards.values()), min(rewards.values())
                leaders = [texts[place] for place, reward in rewards.items() if reward == best > worst]
                self._best.update((self._digest(request.tenant, task or "", text), True) for text in leaders)
            if explored and skips is not None:
                self._watch((task, skips), verdicts, sure)
            if self._verdicts is not None and (explored or skips is None):
                try:
                    self._verdicts.record(query, judged, answer, task=task, source="")
                except Exception:  # noqa: BLE001 - the list is reranked, whatever became of the log
                    self._failures.exception("verdicts were not kept")
            return in_reward_order(ranked.places, rewards)
        except Exception:  # noqa: BLE001 - whatever it is, the request goes on
            self._failures.exception("a list is served without the reranker")
            return ranked.places

    def _digest(self, *parts: str) -> bytes:
        """What the cascade calls texts, by a key that nobody else knows: it keeps none of them."""
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._key, digest_size=_DIGEST).digest()

    def _certified(self, ranked: Ranked, task: str | None) -> Skips | None:
        """What says which lists of the task need no reranker: this one, and so deep."""
        skips = ranked.skips
        if skips is None or self._depth > skips.depth or not skips.share(self._loss):
            return None
        if ranked.judge == self._judge.fingerprint:
            return None if (task, skips) in self._stopped else skips
        if ranked.judge not in self._refused:
            self._refused.add(ranked.judge)
            _log.warning(
                "%s: every list is reranked: what lists lose without %s was certified for %s",
                OTHER_JUDGE,
                self._judge.fingerprint,
                ranked.judge or "a judge that is not known",
            )
        return None

    def _watch(self, of: _Watched, rewards: list[float], sure: bool) -> None:
        """Rerank every list until the next version, where the explored requests of the last block lost too much."""
        with self._lock:
            seen = self._seen[of] = [*self._seen.get(of, []), (rewards, sure)]
            if len(seen) < WATCHED:
                return
            del self._seen[of]
        gains = np.full((len(seen), max(len(verdicts) for verdicts, _ in seen)), np.nan)
        for row, (verdicts, _) in enumerate(seen):
            gains[row, : len(verdicts)] = verdicts
        gains = np.nan_to_num(gains - np.nanmin(gains))  # what was not judged counts as the worst
        voices = np.ones(len(seen))
        lost = np.where([sure for _, sure in seen], lost_by(gains, 1, *paid_for(gains, voices)), 0.0)
        mean = Gain.measured(lost, voices, np.arange(len(seen)))
        if mean.below(CERTIFIED_LEVEL) > self._loss:
            with self._lock:
                self._stopped[of] = True
            _log.warning(
                "%s: task=%r: every list is reranked until the next version: %d explored requests lost %.3f nDCG@10",
                LOST,
                of[0],
                len(seen),
                mean.mean,
            )

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"Cascade({self._judge.fingerprint}, {counts})"
