"""Batches of a plan, and what came of them, as bytes in memory: a request a line, an answer a line.

Two formats: batches as OpenAI defined them (LiteLLM and most others read them), and Gemini's. A line carries the
address of its pair, so results may be a part of what was asked, in any order, with lines twice or damaged: each line
speaks for itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tttembed_rag.clients.endpoint import UNREADABLE
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import JudgeError
from tttembed_rag.judges.chats import Gemini
from tttembed_rag.judges.contract import Scores
from tttembed_rag.judges.documents import Screened, readable
from tttembed_rag.judges.rubric import RubricJudge
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import Plan, Progress, verdicts_of
from tttembed_rag.judging.spending import Ledger, Price
from tttembed_rag.judging.walk import Walk
from tttembed_rag.rewards.observations import Served
from tttembed_store.sql.work.openbatches import OpenBatch

# Requests and bytes of a batch at most; services take more, and memory holds this.
REQUESTS, BYTES = 10_000, 50_000_000
# Characters of a service's own words that are shown.
_SHOWN = 120
# An address as it is written: the 32 bytes of a pair's key.
_ADDRESS = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LineResult:
    """What one line of results says of a pair, None where it cannot be read: a score, None if the judge declined.

    *usage* is None where the line does not say it. Where there is no answer, *failure* says why, and *billed* whether
    the service did answer, which costs money, although that cannot be read.
    """

    pair: bytes | None
    score: float | None = None
    usage: Usage | None = None
    failure: str = ""
    billed: bool = False


class LineJudge:
    """A judge that is asked by lines. Its fingerprint is that of the single judge: answers of both are one.

    Here *single* makes the requests, and is not asked. *path* is where OpenAI's protocol has such requests, and *price*
    what a request in a batch costs, as a share of a single one.
    """

    documents_per_call, path, price = 1, "/v1/chat/completions", 0.5

    def __init__(self, single: RubricJudge) -> None:
        self.single = single
        self.scale, self.fingerprint = single.scale, single.fingerprint
        self._is_gemini = isinstance(single.complete, Gemini)

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """Refused: this judge is asked by batches."""
        raise JudgeError(
            f"{self.fingerprint}: expected to be asked by batches, got {len(documents)} texts, {query!r:.40}"
        )

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """An upper estimate, one request a document that has text."""
        pairs = Screened.of([(query, documents)], self.single.longest_document).pairs
        return sum((self.single.forecast(query, [text]) for _, text in pairs), Usage())

    def line(self, pair: bytes, query: str, document: str) -> bytes | None:
        """The request about one document as a line, in ASCII; None for a document without text."""
        texts = [text for _, text in Screened.of([(query, [document])], self.single.longest_document).pairs]
        if not texts:
            return None
        body, address = self.single.request(query, texts), pair.hex()
        record = {"key": address, "request": body}
        if not self._is_gemini:
            record = {"custom_id": address, "method": "POST", "url": self.path, "body": body}
        return json.dumps(record).encode() + b"\n"

    def read(self, line: bytes) -> LineResult:
        """What a line of results says, whatever stands there."""
        try:
            record = json.loads(line)
            address = record["key" if self._is_gemini else "custom_id"]
            pair = bytes.fromhex(address) if _ADDRESS.fullmatch(address) else None
        except UNREADABLE:
            pair = None
        if pair is None:
            return LineResult(None, failure="not a line of results")
        try:
            answer, failure = _answer(record)
            if failure:
                return LineResult(pair, failure=failure)
            score, usage = self.single.read(answer)
        except (JudgeError, *UNREADABLE):
            return LineResult(pair, failure="an answer of another form", billed=True)
        return LineResult(pair, score, usage)


def _answer(record: Any) -> tuple[Any, str]:
    """The service's own answer in a line, which may be the body of a response with a status, or why there is none."""
    response, error = record.get("response"), record.get("error") or record.get("status")
    if error or not response:
        return None, words_of(error or "no answer")
    if "custom_id" not in record:
        return response, ""
    if not 200 <= (status := response.get("status_code") or 200) < 300:
        return None, f"{status} {words_of((response.get('body') or {}).get('error') or '')}"
    return response["body"], ""


def words_of(error: Any) -> str:
    """A service's own words on a failure, short and without anything hidden."""
    if isinstance(error, dict):
        error = " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    return readable(str(error), _SHOWN).replace("\n", " ").strip() or "failed"


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a batch, a line for each of its pairs; their highest usage, and the ids of their queries."""

    content: bytes
    pairs: int
    usage: Usage
    queries: tuple[str, ...]


def pack(plan: Plan, judge: LineJudge, answers: Answers) -> tuple[list[Requests], Walk]:
    """The requests that *plan* still needs under its caps, in batches, and the walk over the plan that came to them.

    The plan's price is that of batches. A document without text is noted in *answers* as declined, and not asked about.
    """
    ledger = Ledger(plan.budget, plan.price, answers, judge.fingerprint)
    walk = Walk(plan, judge, ledger)
    batches: list[dict[bytes, tuple[bytes, Usage]]] = []
    size = 0
    for call in walk.calls():
        if call is None:
            continue
        ledger.settle(call.charge, call.charge.usage, {})
        (pair,), ((query, (document,)),) = call.charge.pairs, call.questions
        line = judge.line(pair, query, document)
        if line is None:
            answers.put(judge.fingerprint, {pair: Paid(None)})
            continue
        if not batches or len(batches[-1]) == REQUESTS or size + len(line) > BYTES:
            batches.append({})
            size = 0
        size += len(line)
        batches[-1][pair] = line, call.charge.usage
    keys = {
        served.query_id: {pair_key(judge.fingerprint, served.query, shown.text) for shown in served.candidates}
        for served in (plan.observations if batches else ())
    }
    return [
        Requests(
            b"".join(line for line, _ in lines.values()),
            len(lines),
            sum((usage for _, usage in lines.values()), Usage()),
            tuple(query for query, candidates in keys.items() if candidates & lines.keys()),
        )
        for lines in batches
    ], walk


@dataclass(frozen=True, slots=True)
class Collected:
    """What the results of a batch said: how many new answers, with their usage as far as lines say it.

    Failures are numbers of lines without an answer, by the reason; their pairs may be asked about again. *lost* is the
    share of the batch, in [0, 1], that was paid for and is not kept: nobody asks about the pair any more, or its answer
    cannot be read.
    """

    answers: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    lost: float = 0.0


def collect(
    files: Iterable[bytes], batch: OpenBatch, judge: LineJudge, answers: Answers, wanted: Container[bytes]
) -> Collected:
    """Keep the answers in the *files* of results of *batch*, in any order; to read them twice changes nothing.

    The price of the batch is that of its answers, and its mean highest cost that of a line without usage. *wanted* are
    addresses of pairs that are still asked about.
    """
    results = [judge.read(line) for content in files for line in content.split(b"\n") if line.strip()]
    known = answers.get(list({result.pair for result in results if result.pair is not None}))
    price, highest = Price(*batch.price).share(judge.price), (batch.tokens / batch.pairs, batch.usd / batch.pairs)
    fresh: dict[bytes, Paid] = {}
    unkept, failures, usage = set[bytes](), Counter[str](), Usage()
    for result in results:
        if (pair := result.pair) is None:
            failures[result.failure] += 1
            continue
        ours = pair in wanted or pair in known
        if result.billed or not (result.failure or ours):
            unkept.add(pair)
        if result.failure:
            failures[result.failure] += ours
        elif ours and pair not in known and pair not in fresh:
            used = result.usage
            usage += used or Usage()
            fresh[pair] = Paid(result.score, *(highest if used is None else (used.tokens, price.of(used))))
    answers.put(judge.fingerprint, fresh)
    lost = min(max(0, batch.pairs - len(fresh)), len(unkept)) / batch.pairs
    return Collected(len(fresh), dict((+failures).most_common()), usage, lost)


def answered(observations: Sequence[Served], judge: LineJudge, answers: Answers) -> Mapping[str, Mapping[str, float]]:
    """The rewards in [0, 1], by query id and document id, that kept *answers* give *observations*; nothing is asked."""
    pairs = [
        (served.query_id, candidate.doc_id, pair_key(judge.fingerprint, served.query, candidate.text))
        for served in observations
        for candidate in served.candidates
    ]
    paid = answers.get([key for _, _, key in pairs])
    scored = [(query, document, paid[key].score) for query, document, key in pairs if key in paid]
    return verdicts_of(judge.scale, scored, Progress()).rewards
