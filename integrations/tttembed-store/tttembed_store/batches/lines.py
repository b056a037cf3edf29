"""Judges that are asked by batches: a request a line, an answer a line.

Two formats: batches as OpenAI defined them, for chat and for ``/v1/score`` (OpenAI, vLLM, LiteLLM and most others read
them), and Gemini's. A line carries the address of its pair, so results may be a part of what was asked, in any order,
with lines twice or damaged: each line speaks for itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tttembed_rag.clients.endpoint import UNREADABLE
from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import InputError, JudgeError, RewardError
from tttembed_rag.judges.chats import Gemini
from tttembed_rag.judges.contract import Scores, checked_rewards
from tttembed_rag.judges.documents import Screened, readable
from tttembed_rag.judges.http import HttpJudge
from tttembed_rag.judges.rubric import RubricJudge

# What a service takes for a request in a batch, as a share of the price of a single request.
_HALF = 0.5
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

    documents_per_call = 1

    def __init__(self, single: RubricJudge | HttpJudge) -> None:
        self.single = single
        self.scale, self.fingerprint = single.scale, single.fingerprint
        self._is_gemini = isinstance(single, RubricJudge) and isinstance(single.complete, Gemini)
        self.path, self.price = "/v1/chat/completions", _HALF
        if isinstance(single, HttpJudge):
            self.path, self.price = "/v1/score", 1.0
            if single.model is None:
                raise InputError(f"judge: expected ?model=NAME where it is asked by batches, got {single.fingerprint}")

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
            checked_rewards(self.single, [score])
        except RewardError:
            return LineResult(pair, failure=f"a score off the scale {self.scale}", billed=True)
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
