"""The walk over a plan: which call comes next, what it is charged, and what is known without asking."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tttembed_rag.judges.contract import (
    PROBE_BAD,
    PROBE_GOOD,
    PROBE_QUERY,
    Judge,
    documents_per_call,
    forecast_of,
)
from tttembed_rag.judging.accounts import Account, Charge, Ledger
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import Plan, Progress
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.usage import Usage
from tttembed_rag.rewards.observations import Observation

# A document of a query: its id, its text, and the address of the pair.
Addressed = tuple[str, str, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class JudgeCall:
    """A call to make.

    Attributes:
        query: The query.

        documents: Texts, in the order of the pairs of the charge.

        charge: What it was charged.

        probe: Whether it is the probe of the judge: no other call begins before its answer.
    """

    query: str
    documents: Sequence[str]
    charge: Charge
    probe: bool = False


def probe_keys(judge: Judge) -> list[bytes]:
    """The addresses of the two pairs that a judge is probed with, the good one first."""
    return [pair_key(judge.fingerprint, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)]


class Walk:
    """The calls that a plan still needs, in order, up to the call that could exceed a cap.

    Args:
        plan: The pairs.

        judge: The judge.

        account: What may be spent, and the answers that are kept.

        probe: Whether the judge must have passed its probe before anything else is asked.
    """

    def __init__(self, plan: Plan, judge: Judge, account: Account, *, probe: bool = False) -> None:
        self._plan, self._judge, self._account = plan, judge, account
        self.answered: dict[bytes, Paid] = {}
        self.reached: list[tuple[str, str, bytes]] = []
        self.cached = 0
        self.usd = 0.0  # what the answers have cost that were there before
        self.stopped = ""
        self._asked: set[bytes] = set()
        self._probed = not probe
        self._look_up(probe_keys(judge))

    @property
    def pairs(self) -> int:
        """Number of pairs of the plan that are reached."""
        return len(self.reached)

    def calls(self) -> Generator[JudgeCall | None, None, None]:
        """Calls to make, each charged, to be settled by the caller; None: one that is under way must end first."""
        for observation, candidates in self._plan.visits():
            addressed = [
                (document, text, pair_key(self._judge.fingerprint, observation.query, text))
                for document, text in candidates
            ]
            self._look_up([key for _, _, key in addressed])
            for part in self._parts(addressed):
                if any(self._is_fresh(key) for _, _, key in part):
                    yield from self._probe()
                left = part
                while left and not self.stopped:
                    left = yield from self._ask(observation, left)
                if self.stopped:
                    return

    def probe_anew(self) -> JudgeCall | None:
        """The probe of the judge, to be asked whatever is known of it; None where a cap has no room for it."""
        texts = [PROBE_GOOD, PROBE_BAD]
        estimate = forecast_of(self._judge, PROBE_QUERY, texts)
        keys = probe_keys(self._judge)
        charge = self._account.charge(self._judge.fingerprint, keys, estimate, least=len(keys), anew=True)
        return None if charge is None else JudgeCall(PROBE_QUERY, texts, charge, probe=True)

    def _ask(
        self, observation: Observation, part: Sequence[Addressed]
    ) -> Generator[JudgeCall | None, None, Sequence[Addressed]]:
        """Reach what is known of *part*, and ask about the rest; gives what is still to be asked about."""
        fresh = {key: text for _, text, key in part if self._is_fresh(key)}
        call = None
        if fresh:
            charge = yield from self._charged(observation.query, fresh)
            if charge is None:
                return ()
            if charge.pairs:
                call = JudgeCall(observation.query, [fresh[key] for key in charge.pairs], charge)
            self._asked.update(charge.pairs)
            self._look_up(list(fresh))
        known = [one for one in part if not self._is_fresh(one[2])]
        self.cached += sum(key in self.answered for _, _, key in known)
        self.reached += [(observation.query_id, document, key) for document, _, key in known]
        if call is None:  # all is known, or others ask about the rest now
            return ()
        yield call
        return [one for one in part if self._is_fresh(one[2])]

    def _probe(self) -> Generator[JudgeCall | None, None, None]:
        """Ask for the probe of the judge, unless its answers are kept or others ask for them now."""
        texts = dict(zip(probe_keys(self._judge), (PROBE_GOOD, PROBE_BAD), strict=True))
        while not self._probed:
            self._look_up(list(texts))
            self._probed = not texts.keys() - self.answered.keys()
            if self._probed:
                return
            charge = yield from self._charged(PROBE_QUERY, texts, least=len(texts))
            if charge is None:
                return
            self._probed = len(charge.pairs) == len(texts)
            yield JudgeCall(PROBE_QUERY, list(texts.values()), charge, probe=True) if self._probed else None

    def _charged(
        self, query: str, fresh: Mapping[bytes, str], *, least: int = 1
    ) -> Generator[None, None, Charge | None]:
        """The charge for a call about *fresh* pairs; None where a cap ends the walk."""
        estimate = forecast_of(self._judge, query, list(fresh.values()))
        while (charge := self._account.charge(self._judge.fingerprint, list(fresh), estimate, least=least)) is None:
            if not self._account.running:
                self.stopped = self._account.ended
                return None
            yield None
        return charge

    def _is_fresh(self, key: bytes) -> bool:
        return key not in self.answered and key not in self._asked

    def _look_up(self, keys: Sequence[bytes]) -> None:
        """Take the answers to *keys* that are kept."""
        if missing := [key for key in dict.fromkeys(keys) if self._is_fresh(key)]:
            found = self._account.get(missing)
            self.answered |= found
            self.usd += sum(paid.usd for paid in found.values())

    def _parts(self, addressed: Sequence[Addressed]) -> Iterator[Sequence[Addressed]]:
        size = documents_per_call(self._judge)
        for start in range(0, len(addressed), size):
            yield addressed[start : start + size]


def forecast(plan: Plan, judge: Judge, cache: Answers, *, probe: bool = False) -> Progress:
    """The pairs that `judge_all` would judge and their highest cost, without asking the judge anything.

    Args:
        plan: The pairs and the caps.

        judge: The judge.

        cache: Answers of earlier runs.

        probe: Whether the judge must pass its probe first, which is paid for where it has not passed it yet.
    """
    ledger = Ledger(plan.budget, plan.price, cache)
    walk = Walk(plan, judge, ledger, probe=probe)
    usage = Usage()
    for call in walk.calls():
        if call is not None:
            ledger.settle(judge.fingerprint, call.charge, call.charge.usage, {})
            usage += call.charge.usage
    return Progress(walk.pairs, walk.cached, usage, ledger.usd)
