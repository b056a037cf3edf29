"""The walk over a plan: which call comes next, what it is charged, and what is known without asking."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.clients.usage import Usage
from tttembed_rag.judges.contract import Judge, Request, documents_per_call, forecast_of, pairs_per_call
from tttembed_rag.judges.examination import examination_keys, has_passed, questions
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import Plan, Progress
from tttembed_rag.judging.spending import Account, Charge, Ledger
from tttembed_rag.rewards.observations import Candidate, Served

# A pair: its query, its candidate, and its address.
Addressed = tuple[Served, Candidate, bytes]
# The pairs of a call about several queries, by query.
Pack = Sequence[Sequence[Addressed]]


@dataclass(frozen=True, slots=True, eq=False)
class JudgeCall:
    """A call to make: queries, each with texts in the order of the pairs of the charge.

    Where it *examines* the judge, no other call begins before its answer.
    """

    questions: Sequence[Request]
    charge: Charge
    examines: bool = False


class Walk:
    """The calls that a plan still needs, in order, up to the call that could exceed a cap.

    With *examine*, the judge must have passed its examination before anything else is asked.
    """

    def __init__(self, plan: Plan, judge: Judge, account: Account, *, examine: bool = False) -> None:
        self._plan, self._judge, self._account = plan, judge, account
        self.answered: dict[bytes, Paid] = {}
        self.reached: list[tuple[str, str, bytes]] = []
        self.cached = 0
        self.usd = 0.0  # what the answers have cost that were there before
        self.stopped = ""
        self._asked: set[bytes] = set()
        self._examined = not examine
        self._look_up(examination_keys(judge.fingerprint))

    @property
    def pairs(self) -> int:
        """Number of pairs of the plan that are reached."""
        return len(self.reached)

    def calls(self) -> Generator[JudgeCall | None, None, None]:
        """Calls to make, each charged, to be settled by the caller; None: one that is under way must end first."""
        pack: list[Sequence[Addressed]] = []
        for served, candidates in self._plan.visits():
            addressed = [(served, shown, self._key(served.query, shown.text)) for shown in candidates]
            size = documents_per_call(self._judge)
            for start in range(0, len(addressed), size):
                pack.append(addressed[start : start + size])
                if sum(map(len, pack)) >= pairs_per_call(self._judge):
                    yield from self._ask_all(pack)
                    pack = []
                if self.stopped:
                    return
        yield from self._ask_all(pack)

    def examination(self) -> JudgeCall | None:
        """The examination of the judge, of one that has passed it the first question again; None where a cap ends."""
        chosen = questions()[: 1 if self._has_passed() else None]
        keys = examination_keys(self._judge.fingerprint, chosen)
        charge = self._account.charge(keys, forecast_of(self._judge, chosen), least=len(keys), anew=True)
        return None if charge is None else JudgeCall(chosen, charge, examines=True)

    def _ask_all(self, pack: Pack) -> Generator[JudgeCall | None, None, None]:
        """Reach the pairs of *pack*, in as many calls as caps and others who ask make of it."""
        self._look_up([key for part in pack for _, _, key in part])
        if any(self._is_fresh(key) for part in pack for _, _, key in part):
            yield from self._examine()
        while pack and not self.stopped:
            pack = yield from self._ask(pack)

    def _ask(self, pack: Pack) -> Generator[JudgeCall | None, None, Pack]:
        """Reach what is known of *pack*, and ask about the rest; gives what is still to be asked about."""
        pairs = [pair for part in pack for pair in part]
        fresh = {key: (served.query, shown.text) for served, shown, key in pairs if self._is_fresh(key)}
        call = None
        if fresh:
            estimate = forecast_of(self._judge, _questions(fresh.values()))
            charge = yield from self._charged(list(fresh), estimate)
            if charge is None:
                if len(pack) == 1:
                    self.stopped = self._account.ended
                    return ()
                half = len(pack) // 2
                left = yield from self._ask(pack[:half])
                return [*left, *pack[half:]]
            if charge.pairs:
                call = JudgeCall(_questions([fresh[key] for key in charge.pairs]), charge)
            self._asked.update(charge.pairs)
            self._look_up(list(fresh))
        known = [pair for pair in pairs if not self._is_fresh(pair[2])]
        self.cached += sum(key in self.answered for _, _, key in known)
        self.reached += [(served.query_id, shown.doc_id, key) for served, shown, key in known]
        if call is None:  # all is known, or others ask about the rest now
            return ()
        yield call
        left = [[pair for pair in part if self._is_fresh(pair[2])] for part in pack]
        return [part for part in left if part]

    def _examine(self) -> Generator[JudgeCall | None, None, None]:
        """Ask for the examination of the judge, unless its answers are kept or others ask for them now."""
        keys = examination_keys(self._judge.fingerprint)
        while not self._examined:
            self._look_up(keys)
            self._examined = self._has_passed()
            if self._examined:
                return
            charge = yield from self._charged(keys, forecast_of(self._judge, questions()), least=len(keys))
            if charge is None:
                self.stopped = self._account.ended
                return
            self._examined = len(charge.pairs) == len(keys)
            yield JudgeCall(questions(), charge, examines=True) if self._examined else None

    def _has_passed(self) -> bool:
        return has_passed(self._judge.fingerprint, lambda _: self.answered)

    def _charged(
        self, pairs: Sequence[bytes], estimate: Usage, *, least: int = 1
    ) -> Generator[None, None, Charge | None]:
        """The charge for a call about *pairs*; None where a cap has no room for it."""
        while (charge := self._account.charge(pairs, estimate, least=least)) is None and self._account.running:
            yield None
        return charge

    def _key(self, query: str, text: str) -> bytes:
        return pair_key(self._judge.fingerprint, query, text)

    def _is_fresh(self, key: bytes) -> bool:
        return key not in self.answered and key not in self._asked

    def _look_up(self, keys: Sequence[bytes]) -> None:
        """Take the answers to *keys* that are kept."""
        if missing := [key for key in dict.fromkeys(keys) if self._is_fresh(key)]:
            answers = self._account.get(missing)
            self.answered |= answers
            self.usd += sum(paid.usd for paid in answers.values())


def _questions(pairs: Iterable[tuple[str, str]]) -> list[Request]:
    """The queries of *pairs* of texts, in order, each with the documents that stand there together."""
    return [(query, [text for _, text in group]) for query, group in groupby(pairs, key=itemgetter(0))]


def forecast(plan: Plan, judge: Judge, cache: Answers, *, examine: bool = False) -> Progress:
    """The pairs that `judge_all` would judge and their highest cost, without asking the judge anything.

    With *examine*, that of its examination is counted too, where it has not passed it yet.
    """
    ledger = Ledger(plan.budget, plan.price, cache, judge.fingerprint)
    walk = Walk(plan, judge, ledger, examine=examine)
    usage = Usage()
    for call in walk.calls():
        if call is not None:
            ledger.settle(call.charge, call.charge.usage, {})
            usage += call.charge.usage
    return Progress(walk.pairs, walk.cached, usage, ledger.usd)
