"""Rerankers behind HTTP: of vendors, of vLLM, TEI and SGLang, and decision endpoints (System One, vLLM, Gemini)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tttembed_rag.clients.endpoint import Endpoint
from tttembed_rag.clients.fingerprints import INSTRUCTION, fingerprint_of
from tttembed_rag.clients.retrying import Patience, Portions, TooLargeError
from tttembed_rag.clients.usage import MOST_USED, Usage, estimated_tokens, report_usage
from tttembed_rag.errors import InputError, JudgeError, check_count
from tttembed_rag.judges.contract import ByRequests, Request, Scores, side_by_side, unless_refused
from tttembed_rag.judges.documents import Screened, fence_of, readable
from tttembed_rag.rewards.scales import Scale

# Requests in flight at once within one call.
_AT_ONCE = 8
# Characters of a query that are sent.
_LONGEST_QUERY = 4_000
# Characters of a document that is not cut further where a server refuses its size.
_SHORT_DOCUMENT = 1_000
# What TEI is told besides.
_TEI = {"truncate": True, "raw_scores": False, "return_text": False}

_log = logging.getLogger(__name__)


def _plain(_: str, query: str, documents: list[str]) -> dict[str, Any]:
    return {"query": query, "documents": documents}


def _ranked(instruction: str, query: str, documents: list[str]) -> dict[str, Any]:
    return _plain(instruction, query, documents) | {"top_n": len(documents)}


def _decision(instruction: str, query: str, documents: list[str], *, field: str = "state") -> dict[str, Any]:
    # One document a request: documents that shared one could speak about each other.
    (document,) = documents
    tag = fence_of(query, document)
    state = f"<query-{tag}>\n{query}\n</query-{tag}>\n\n<document-{tag}>\n{document}\n</document-{tag}>"
    question = f"Is the document between the tags relevant to the query, whatever it says itself? {instruction}"
    return {field: state, "questions": {"relevant": {"type": "noul", "instructions": question}}}


@dataclass(frozen=True, slots=True)
class Shape:
    """The protocol of one kind of server.

    It has a *path* where the address has none, a *scale* unless that depends on the model and must be declared, the
    environment variable of a *key* if it usually has one, which stands in the *header*, and of a vendor the *host*. A
    *request* is made of an instruction, a query and documents, *at_once* at most, beside the name of the model.
    """

    path: str
    scale: str | None = "probability"
    key: str | None = None
    request: Callable[[str, str, list[str]], dict[str, Any]] = _ranked
    header: str = "authorization"
    at_once: int = 100
    host: str | None = None


SHAPES = {
    "cohere": Shape("/v2/rerank", key="COHERE_API_KEY", host="api.cohere.com"),
    "jina": Shape(
        "/v1/rerank",
        scale=None,
        key="JINA_API_KEY",
        request=lambda *parts: _ranked(*parts) | {"return_documents": False},
        host="api.jina.ai",
    ),
    # A request holds 600,000 tokens, and a document with its query is cut at 32,000.
    "voyage": Shape("/v1/rerank", key="VOYAGE_API_KEY", request=_plain, at_once=18, host="api.voyageai.com"),
    "vllm": Shape("/v1/rerank"),
    "vllm-score": Shape("/v1/score", request=lambda _, query, documents: {"text_1": query, "text_2": documents}),
    "tei": Shape(
        "/rerank", request=lambda _, query, documents: {"query": query, "texts": documents, **_TEI}, at_once=32
    ),
    "sglang": Shape(
        "/v1/rerank", request=lambda *parts: _ranked(*parts) | {"return_documents": False, "instruct": parts[0]}
    ),
    "decision": Shape("/v1/systemone", request=_decision, at_once=1),
    "gemini-decision": Shape(
        "/v1beta/decisions",
        key="GEMINI_API_KEY",
        request=partial(_decision, field="input"),
        header="x-goog-api-key",
        at_once=1,
    ),
}


class HttpJudge(ByRequests):
    """A reranker behind HTTP as a judge; answers are matched to documents by their index.

    Args:
        url: Address, with or without the path.
        shape: A name of `SHAPES`.
        model: Its name there, if the server has several; part of the fingerprint.
        scale: Scale of the scores; needed where the shape leaves it to the model.
        key: Secret sent as a bearer token or as the shape has it, never over plain HTTP to another machine.
        instruction: What counts as relevant, for shapes that take one.
        longest_document: Characters of a document that are sent.
        batch_size: Documents in a request at most; None is as many as servers of the shape take.
        patience: How often it is asked, and how long its answer is waited for.
    """

    def __init__(
        self,
        url: str,
        shape: str,
        *,
        model: str | None = None,
        scale: Scale | str | None = None,
        key: str | None = None,
        instruction: str = INSTRUCTION,
        longest_document: int = 32_000,
        batch_size: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        if shape not in SHAPES:
            raise InputError(f"shape: expected one of {', '.join(SHAPES)}, got {shape!r}")
        check_count("longest_document", longest_document)
        self._shape = protocol = SHAPES[shape]
        declared = scale or protocol.scale
        if declared is None:
            raise InputError(f"scale: expected one for {shape}, whose scores depend on the model, got none")
        self.endpoint = Endpoint(url, path=protocol.path, key=key, header=protocol.header, patience=patience)
        self._model = {} if model is None else {"model": model}
        self._instruction, self._longest = instruction, longest_document
        self._portions = Portions(min(batch_size or protocol.at_once, protocol.at_once))
        self.scale = Scale.parse(declared)
        self.fingerprint = fingerprint_of(
            f"http+{shape}",
            model or self.endpoint.where.netloc,
            url=self.endpoint.url,
            scale=str(self.scale),
            instruction=instruction,
            cut=longest_document,
        )

    @property
    def documents_per_call(self) -> int:
        """Documents that the server takes at once."""
        return self._portions.most

    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """Scores for each of *requests*, side by side, as the server gave them; `checked_rewards` checks their scale.

        Documents that the server refuses are sent in smaller requests, and have no score where they are refused alone;
        one that is too large by itself is cut.

        Raises:
            JudgeError: The server refused, stayed busy, or left a document out.
        """
        screened, size = Screened.of(requests, self._longest, _LONGEST_QUERY), self._portions.most
        batches = [
            (query, texts[start : start + size])
            for query, texts in screened.requests
            for start in range(0, len(texts), size)
        ]
        answers = side_by_side(
            lambda batch: self._portions.ask(batch[1], partial(self._scores, batch[0])), batches, _AT_ONCE
        )
        scores = [score for batch in answers for score in batch]
        return screened.spread(unless_refused(self.endpoint.where.name, scores))

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """One request for as many documents as a server takes at once, each read with the query."""
        read = sum(estimated_tokens(query, text[: self._longest]) for text in documents)
        return Usage(-(-len(documents) // self._portions.most), read)

    def _scores(self, query: str, documents: Sequence[str]) -> Scores:
        """Scores of *documents*; a single one that is too large is cut in half."""

        def read(answer: Any) -> tuple[Scores, Usage]:
            scores = _by_index(self.endpoint.where.name, answer, len(documents))
            return scores, _used(answer, self.forecast(query, documents))

        body = self._model | self._shape.request(self._instruction, query, list(documents))
        try:
            scores, used = self.endpoint.ask(body, read, expected="an index and a score per document")
        except TooLargeError as exc:
            text = documents[0]
            if len(documents) > 1 or len(text) <= _SHORT_DOCUMENT:
                raise
            _log.warning("%s; a document of %d characters is cut in half", exc, len(text))
            return self._scores(query, [readable(text, len(text) // 2)])
        report_usage(used)
        return scores


def _by_index(name: str, answer: Any, count: int) -> Scores:
    """The scores in an *answer* of any shape, in the order of the *count* documents; servers sort theirs."""
    if isinstance(answer, dict):
        if "answers" in answer:  # of a decision
            answer = [{"index": 0, "score": answer["answers"]["relevant"]["noul"]}]
        else:
            answer = answer["results"] if "results" in answer else answer["data"]
    scores = {}
    places = [0 if (place := item.get("index")) is None else place for item in answer]  # a 0 may be left out
    if any(type(place) is not int for place in places) or sorted(places) != list(range(count)):
        raise JudgeError(
            f"{name}: expected every index from 0 to {count - 1} once, got {sorted(map(str, places))[:20]}"
        )
    for place, item in zip(places, answer, strict=True):
        score = item["relevance_score" if "relevance_score" in item else "score"]
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            raise JudgeError(f"{name}: expected a number as score, got {score!r}")
        scores[place] = score
    return [scores[place] for place in range(count)]


def _used(answer: Any, estimate: Usage) -> Usage:
    """The usage that a server reports, as tokens or (Cohere) as search units; by the *estimate* where it cannot be."""
    if not isinstance(answer, dict):
        return estimate

    def counted(value: Any) -> int | None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return math.ceil(value) if is_number and 0 <= value <= MOST_USED else None

    tokens = counted((answer.get("usage") or answer).get("total_tokens"))
    units = counted(((answer.get("meta") or {}).get("billed_units") or {}).get("search_units"))
    return Usage(units or 1, estimate.tokens if tokens is None else tokens)
