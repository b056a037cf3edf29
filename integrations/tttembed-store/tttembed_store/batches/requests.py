"""Requests of a batch from a plan, and the answers in what a service gave for it: both as bytes in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.clients.usage import Usage
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import Plan, Progress, verdicts_of
from tttembed_rag.judging.spending import Ledger, Price
from tttembed_rag.judging.walk import Walk
from tttembed_rag.rewards.observations import Served
from tttembed_store.batches.lines import LineJudge
from tttembed_store.sql.work.openbatches import OpenBatch

# Requests and bytes of a batch at most; services take more, and memory holds this.
REQUESTS, BYTES = 10_000, 50_000_000


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a batch, a line for each of its pairs; their highest usage, and the ids of their queries."""

    content: bytes
    pairs: int
    usage: Usage
    queries: tuple[str, ...]


def pack(plan: Plan, judge: LineJudge, answers: Answers) -> tuple[list[Requests], Walk]:
    """The requests that *plan* still needs under its caps, in batches, and the walk over the plan that found them.

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
    files: Iterable[bytes], batch: OpenBatch, judge: LineJudge, answers: Answers, asked: Container[bytes]
) -> Collected:
    """Keep the answers in the *files* of results of *batch*, in any order; to read them twice changes nothing.

    The price of the batch is that of its answers, and its mean highest cost that of a line without usage. *asked* are
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
        ours = pair in asked or pair in known
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
