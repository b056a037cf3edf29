"""Judges that are asked by file: a request a line, an answer a line.

Two formats: batches as OpenAI defined them, for chat and for ``/v1/score`` (OpenAI, `vllm run-batch`, LiteLLM and most
others read them), and Gemini's. A line carries the address of its pair, so a file of results may be a part of what was
asked, in any order, with lines twice or damaged: each line speaks for itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any
from urllib.parse import urlsplit

from tttembed_rag.errors import InputError, JudgeError, RewardError
from tttembed_rag.judges.chatservice import OUTPUT_TOKENS as OPENAI_TOKENS
from tttembed_rag.judges.contract import Blocking, Scores, rewards_of
from tttembed_rag.judges.documents import Screened, readable
from tttembed_rag.judges.gemini import OUTPUT_TOKENS as GEMINI_TOKENS
from tttembed_rag.judges.http import HttpJudge, score_of_one
from tttembed_rag.judges.rubric import RubricJudge, grade_of
from tttembed_rag.models.fingerprints import INSTRUCTION
from tttembed_rag.models.options import Options, without_secrets
from tttembed_rag.models.usage import MOST_USED, Usage

FILE_KINDS = "openai:MODEL, gemini:MODEL or http+vllm-score://HOST?model=NAME"
# What a service takes for a request in a batch, as a share of the price of a single request.
HALF = 0.5
# Characters of a service's own words that are shown.
_SHOWN = 120
# An address as it is written: the 32 bytes of a pair's key.
_ADDRESS = re.compile(r"[0-9a-f]{64}")
# What reading a line of another form raises.
_UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError, JudgeError)


@dataclass(frozen=True, slots=True)
class LineResult:
    """What one line of results says.

    Attributes:
        pair: The pair's address; None where the line cannot be read.

        score: On the judge's scale; None where the judge declined, which is an answer too.

        usage: Requests and tokens; None where the line does not say.

        failure: Why there is no answer; empty where there is one.

        billed: Whether the service did answer, which costs money, although the answer cannot be read.
    """

    pair: bytes | None
    score: float | None = None
    usage: Usage | None = None
    failure: str = ""
    billed: bool = False


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How one kind of service is asked and answers by file.

    Attributes:
        request: Address, query and document to the request, a JSON object.

        answer: A line of results to the service's own answer.

        read: That answer to a score and its usage.

        address: The field that holds the address.

        price: What a request costs, as a share of the price of a single request.
    """

    request: Callable[[str, str, str], dict[str, Any]]
    answer: Callable[[Any], Any]
    read: Callable[[Any], tuple[float | None, Usage | None]]
    address: str
    price: float


class LineJudge(Blocking):
    """A judge that is asked by file. Its fingerprint is that of `judge`: answers of both are one.

    Args:
        judge: The same judge, as it is asked one by one; it makes the prompts, and is never asked.

        format: How it is asked by file.

        longest_document: Characters of a document that are sent.
    """

    documents_per_call = 1

    def __init__(self, judge: RubricJudge | HttpJudge, format: LineFormat, longest_document: int) -> None:  # noqa: A002
        self._judge = judge
        self._format = format
        self._longest = longest_document
        self.scale = judge.scale
        self.fingerprint = judge.fingerprint
        self.price = format.price

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """Refused: this judge is asked by file."""
        raise JudgeError(
            f"{self.fingerprint}: expected to be asked by file, got {len(documents)} documents for {query[:40]!r}"
        )

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """An upper estimate, one request a document that has text."""
        usage = Usage()
        for text in Screened.of(documents, self._longest).texts:
            usage += self._judge.forecast(query, [text])
        return usage

    def line(self, pair: bytes, query: str, document: str) -> bytes | None:
        """The request about one document as a line, in ASCII; None for a document without text."""
        texts = Screened.of([document], self._longest).texts
        if not texts:
            return None
        return json.dumps(self._format.request(pair.hex(), query, texts[0])).encode() + b"\n"

    def read(self, line: bytes) -> LineResult:
        """What a line of results says, whatever stands there."""
        try:
            record = json.loads(line)
            address = record[self._format.address]
            if not _ADDRESS.fullmatch(address):
                return LineResult(None, failure="not an address of a pair")
            pair = bytes.fromhex(address)
        except _UNREADABLE:
            return LineResult(None, failure="not a line of results")
        try:
            score, usage = self._format.read(self._format.answer(record))
            rewards_of(self._judge, [score])
        except _FailedError as exc:
            return LineResult(pair, failure=str(exc))
        except RewardError:
            return LineResult(pair, failure=f"a score off the scale {self.scale}", billed=True)
        except _UNREADABLE:
            return LineResult(pair, failure="an answer of another form", billed=True)
        return LineResult(pair, score, usage)


class _FailedError(Exception):
    """A request that the service says has failed, or has expired."""


def open_by_file(spec: str) -> LineJudge:
    """The judge that *spec* names, asked by file; no key is needed, and nothing is asked.

    ``openai:MODEL`` (options tokens, temperature, url for another service of the same protocol), ``gemini:MODEL``,
    ``http+vllm-score://HOST?model=NAME``; further options as in `open_judge`.

    Raises:
        InputError: No such kind or option, or a kind that cannot be asked by file.
    """
    kind, _, rest = spec.partition(":")
    target, _, query = rest.partition("?")
    if kind in ("http+vllm-score", "https+vllm-score"):
        return _scored(spec)
    if kind not in ("openai", "gemini") or not target:
        raise InputError(f"judge: expected {FILE_KINDS} where it is asked by file, got {without_secrets(spec)!r}")
    options = Options("judge", spec, query)
    for name in ("key", "per_minute"):
        options.take(name, "")  # where it is asked one by one
    instruction, longest = options.take("instruction", INSTRUCTION), options.whole("characters", 12_000)
    chat = _openai(target, options) if kind == "openai" else _gemini(target, options)
    options.check_all_used()
    judge = RubricJudge(
        _never,
        model=chat.name,
        settings=chat.settings,
        instruction=instruction,
        longest_document=longest,
        output_tokens=chat.tokens,
    )

    def request(address: str, asked: str, document: str) -> dict[str, Any]:
        return chat.request(address, judge.prompt(asked, document))

    return LineJudge(judge, LineFormat(request, chat.answer, chat.read, chat.address, HALF), longest)


@dataclass(frozen=True, slots=True)
class _Chat:
    """A chat model in a batch; name and settings as where it is asked one by one."""

    name: str
    settings: str
    tokens: int
    request: Callable[[str, str], dict[str, Any]]
    answer: Callable[[Any], Any]
    read: Callable[[Any], tuple[float | None, Usage | None]]
    address: str


def _never(_: str) -> str | None:
    raise JudgeError("judge: expected to be asked by file")


def _openai(model: str, options: Options) -> _Chat:
    url, temperature = options.take("url", ""), options.number("temperature", nan)
    tokens = options.whole("tokens", OPENAI_TOKENS)
    host = urlsplit(url).netloc.rpartition("@")[2]
    # The newer name is refused by older servers, and the older one by OpenAI's newer models.
    limit = "max_tokens" if host and "azure.com" not in host else "max_completion_tokens"
    settings = {} if isnan(temperature) else {"temperature": temperature}

    def request(address: str, prompt: str) -> dict[str, Any]:
        body = {"model": model, limit: tokens, **settings, "messages": [{"role": "user", "content": prompt}]}
        return {"custom_id": address, "method": "POST", "url": "/v1/chat/completions", "body": body}

    return _Chat(
        name=f"openai:{model}@{host}" if host else f"openai:{model}",
        settings=f"n={tokens} t={temperature}",
        tokens=tokens,
        request=request,
        answer=_of_openai,
        read=_read_openai,
        address="custom_id",
    )


def _of_openai(record: Any) -> Any:
    response, error = record.get("response"), record.get("error")
    if error or not response:
        raise _FailedError(_words(error or "no answer"))
    if not 200 <= (status := response.get("status_code") or 200) < 300:
        raise _FailedError(f"{status} {_words((response.get('body') or {}).get('error') or '')}".strip())
    return response["body"]


def _read_openai(body: Any) -> tuple[float | None, Usage | None]:
    choice, used = body["choices"][0], body.get("usage") or {}
    said = choice["message"].get("content") if choice.get("finish_reason") in ("stop", None) else None
    return grade_of(_text(said)), _usage(used.get("prompt_tokens"), used.get("completion_tokens"))


def _gemini(model: str, options: Options) -> _Chat:
    options.take("url", "")  # where it is asked one by one; no part of its name
    config = {"maxOutputTokens": GEMINI_TOKENS, "thinkingConfig": {"thinkingLevel": "LOW"}}

    def request(address: str, prompt: str) -> dict[str, Any]:
        contents = [{"role": "user", "parts": [{"text": prompt}]}]
        return {"key": address, "request": {"contents": contents, "generationConfig": config}}

    return _Chat(
        name=model,
        settings=f"thinking=low n={GEMINI_TOKENS}",
        tokens=GEMINI_TOKENS,
        request=request,
        answer=_of_gemini,
        read=_read_gemini,
        address="key",
    )


def _of_gemini(record: Any) -> Any:
    failed = record.get("error") or record.get("status")
    if failed or not record.get("response"):
        raise _FailedError(_words(failed or "no answer"))
    return record["response"]


def _read_gemini(body: Any) -> tuple[float | None, Usage | None]:
    used = body.get("usageMetadata") or {}
    written = [used.get(name) or 0 for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    usage = _usage(used.get("promptTokenCount"), sum(written))
    candidate = (body.get("candidates") or [{}])[0]
    if candidate.get("finishReason") != "STOP":
        return None, usage
    parts = (candidate.get("content") or {}).get("parts") or []
    said = [_text(part.get("text")) or "" for part in parts if not part.get("thought")]
    return grade_of("".join(said)), usage


def _scored(spec: str) -> LineJudge:
    from tttembed_rag.judges.specs import open_judge

    judge = open_judge(spec)
    if not isinstance(judge, HttpJudge) or judge.model is None:
        raise InputError(f"judge: expected ?model=NAME where it is asked by file, got {without_secrets(spec)!r}")

    def request(address: str, query: str, document: str) -> dict[str, Any]:
        body = judge.request(query, [document])
        return {"custom_id": address, "method": "POST", "url": "/v1/score", "body": body}

    def read(body: Any) -> tuple[float | None, Usage | None]:
        used = body.get("usage") or {}
        return score_of_one(judge.fingerprint, body["data"]), _usage(used.get("total_tokens"), 0)

    return LineJudge(judge, LineFormat(request, _of_openai, read, "custom_id", 1.0), judge.longest_document)


def _text(said: Any) -> str | None:
    if said is not None and not isinstance(said, str):
        raise TypeError("expected a text")
    return said


def _usage(read: Any, written: Any) -> Usage | None:
    """The usage that a service says; None where it is none that one request can have."""
    counts = (read, written)
    if any(isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_USED for count in counts):
        return None
    return Usage(1, read, written)


def _words(error: Any) -> str:
    """A service's own words on a failure, short and without anything hidden."""
    if isinstance(error, dict):
        error = " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    return readable(str(error), _SHOWN).replace("\n", " ").strip() or "failed"
