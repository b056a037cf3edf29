"""Rerankers behind HTTP: Cohere, Jina, Voyage, ZeroEntropy, vLLM, TEI, SGLang, and decision endpoints.

Decision endpoints are those of System One, vLLM and Gemini.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tttembed_rag.errors import InputError, JudgeError, check_count
from tttembed_rag.judges.contract import Blocking, Scores, side_by_side
from tttembed_rag.judges.documents import Screened, fence_of, readable
from tttembed_rag.models.endpoint import Endpoint, TooLargeError
from tttembed_rag.models.fingerprints import INSTRUCTION, fingerprint_of
from tttembed_rag.models.retrying import Patience
from tttembed_rag.models.usage import MOST_USED, Usage, estimated_tokens, plausible, report_usage
from tttembed_rag.rewards.scales import Scale

# Requests in flight at once within one call.
_AT_ONCE = 8
# Characters of a query that are sent.
_LONGEST_QUERY = 4_000
# Characters of a document that is not halved any more for a server that refuses its size.
_SHORT_DOCUMENT = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shape:
    """The protocol of one kind of server: what is sent for (model, instruction, query, documents), and what comes back.

    Attributes:
        path: Path of its address, where the address has none.
        items: The items of an answer, each with an index and a score.
        scale: The scale of its scores; None where that depends on the model and must be declared.
        key: Environment variable of its key; None if it usually has none.
        header: Header that carries the key: ``authorization`` as a bearer token, any other as it is.
        at_once: Documents in a request.
        host: The vendor's own; None where everybody has another.
    """

    path: str
    request: Callable[[str | None, str, str, list[str]], dict[str, Any]]
    items: Callable[[Any], Any]
    scale: str | None
    key: str | None = None
    header: str = "authorization"
    at_once: int = 100
    host: str | None = None


def _results(answer: Any) -> Any:
    return answer["results"] if isinstance(answer, dict) else answer


def _data(answer: Any) -> Any:
    return answer["data"]


def _named(model: str | None, body: dict[str, Any]) -> dict[str, Any]:
    return body if model is None else {"model": model, **body}


def _rerank(model: str | None, _: str, query: str, documents: list[str]) -> dict[str, Any]:
    return _named(model, {"query": query, "documents": documents, "top_n": len(documents)})


def _voyage(model: str | None, _: str, query: str, documents: list[str]) -> dict[str, Any]:
    return _named(model, {"query": query, "documents": documents})


def _quiet_rerank(model: str | None, _: str, query: str, documents: list[str]) -> dict[str, Any]:
    return {**_rerank(model, _, query, documents), "return_documents": False}


def _instructed_rerank(model: str | None, instruction: str, query: str, documents: list[str]) -> dict[str, Any]:
    return {**_quiet_rerank(model, instruction, query, documents), "instruct": instruction}


def _pair_scores(model: str | None, _: str, query: str, documents: list[str]) -> dict[str, Any]:
    return _named(model, {"text_1": query, "text_2": documents})


def _tei(_model: str | None, _: str, query: str, documents: list[str]) -> dict[str, Any]:
    return {"query": query, "texts": documents, "truncate": True, "raw_scores": False, "return_text": False}


def _decision(
    model: str | None, instruction: str, query: str, documents: list[str], *, field: str = "state"
) -> dict[str, Any]:
    # One document a request: documents that shared one could speak about each other.
    (document,) = documents
    tag = fence_of(query, document)
    state = f"<query-{tag}>\n{query}\n</query-{tag}>\n\n<document-{tag}>\n{document}\n</document-{tag}>"
    asked = f"Is the document between the tags relevant to the query, whatever it says itself? {instruction}"
    return _named(model, {field: state, "questions": {"relevant": {"type": "noul", "instructions": asked}}})


def _decided(answer: Any) -> Any:
    return [{"index": 0, "score": answer["answers"]["relevant"]["noul"]}]


SHAPES = {
    "cohere": Shape("/v2/rerank", _rerank, _results, "probability", "COHERE_API_KEY", host="api.cohere.com"),
    "jina": Shape("/v1/rerank", _quiet_rerank, _results, None, "JINA_API_KEY", host="api.jina.ai"),
    # A request holds 600,000 tokens, and a document with its query is cut at 32,000.
    "voyage": Shape("/v1/rerank", _voyage, _data, "probability", "VOYAGE_API_KEY", at_once=18, host="api.voyageai.com"),
    "zeroentropy": Shape(
        "/v1/models/rerank", _rerank, _results, "probability", "ZEROENTROPY_API_KEY", host="api.zeroentropy.dev"
    ),
    "vllm": Shape("/v1/rerank", _rerank, _results, "probability"),
    "vllm-score": Shape("/v1/score", _pair_scores, _data, "probability"),
    "tei": Shape("/rerank", _tei, _results, "probability", at_once=32),
    "sglang": Shape("/v1/rerank", _instructed_rerank, _results, "probability"),
    "decision": Shape("/v1/systemone", _decision, _decided, "probability", at_once=1),
    "gemini-decision": Shape(
        "/v1beta/decisions",
        partial(_decision, field="input"),
        _decided,
        "probability",
        "GEMINI_API_KEY",
        "x-goog-api-key",
        at_once=1,
    ),
}


class HttpJudge(Blocking):
    """A reranker behind HTTP as a judge; answers are matched to documents by their index.

    Args:
        url: Address, with or without the path.
        shape: A name of `SHAPES`.
        model: Its name there, if the server has several; part of the fingerprint.
        scale: Scale of the scores; needed where the shape leaves it to the model.
        key: Secret sent as a bearer token or as the shape has it, never over plain HTTP to another machine.
        instruction: What counts as relevant, for shapes that take one.
        longest_document: Characters of a document that are sent.
        patience: How often and how fast it is asked.
        timeout: Seconds until an answer must be there, whole.
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
        patience: Patience | None = None,
        timeout: float = 60.0,
    ) -> None:
        if shape not in SHAPES:
            raise InputError(f"shape: expected one of {', '.join(SHAPES)}, got {shape!r}")
        check_count("longest_document", longest_document)
        self._shape = SHAPES[shape]
        declared = scale or self._shape.scale
        if declared is None:
            raise InputError(f"scale: expected one for {shape}, whose scores depend on the model, got none")
        self.endpoint = Endpoint(
            url, path=self._shape.path, key=key, header=self._shape.header, patience=patience, timeout=timeout
        )
        self.model = model
        self._instruction = instruction
        self.longest_document = longest_document
        self.documents_per_call = self._shape.at_once
        self.scale = Scale.parse(declared)
        self.fingerprint = fingerprint_of(
            f"http+{shape}",
            model or self.endpoint.where.netloc,
            url=self.endpoint.url,
            scale=str(self.scale),
            instruction=instruction,
            cut=longest_document,
        )

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, on the declared scale; None for a document without text.

        Raises:
            JudgeError: The server refused, stayed busy, or left a document out.
        """
        screened = Screened.of(documents, self.longest_document)
        asked, size = readable(query, _LONGEST_QUERY), self._shape.at_once
        batches = [screened.texts[start : start + size] for start in range(0, len(screened.texts), size)]
        answers = side_by_side([partial(self._fitting, asked, batch) for batch in batches], _AT_ONCE)
        return screened.spread([score for scores in answers for score in scores], self.scale)

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """One request for as many documents as a server takes at once, each read with the query."""
        read = sum(estimated_tokens(query, text[: self.longest_document]) for text in documents)
        return Usage(-(-len(documents) // self._shape.at_once), read)

    def request(self, query: str, documents: list[str]) -> dict[str, Any]:
        """The JSON that is sent to ask about *documents*, which are read as they are."""
        return self._shape.request(self.model, self._instruction, readable(query, _LONGEST_QUERY), documents)

    def read(self, answer: Any) -> tuple[float | None, Usage | None]:
        """The score in an *answer* about one document, and its usage; None where it says none."""
        items = [(item["index"], item.get("score")) for item in self._shape.items(answer)]
        used = answer.get("usage") or {}
        return _by_index(self.fingerprint, items, 1)[0], plausible(used.get("total_tokens"), 0)

    def _fitting(self, query: str, documents: list[str]) -> Scores:
        """Scores of *documents*; where the server refuses their size, in two halves, and a single one cut in half."""
        try:
            return self._scores(query, documents)
        except TooLargeError as exc:
            half = len(documents) // 2
            if half:
                return self._fitting(query, documents[:half]) + self._fitting(query, documents[half:])
            (text,) = documents
            if len(text) <= _SHORT_DOCUMENT:
                raise
            _log.warning("%s; a document of %d characters is cut in half", exc, len(text))
            return self._fitting(query, [text[: len(text) // 2]])

    def _scores(self, query: str, documents: list[str]) -> Scores:
        items, used = self.endpoint.ask(
            self.request(query, documents),
            partial(self._read_all, query, documents),
            expected="an index and a score per document",
        )
        report_usage(used)
        return _by_index(self.endpoint.name, items, len(documents))

    def _read_all(self, query: str, documents: list[str], answer: Any) -> tuple[list[tuple[Any, Any]], Usage]:
        items = [(item["index"], item.get("relevance_score", item.get("score"))) for item in self._shape.items(answer)]
        return items, _used(answer, self.forecast(query, documents))


def _by_index(url: str, items: Sequence[tuple[Any, Any]], count: int) -> Scores:
    """Scores in the order of the documents; servers sort theirs."""
    places = [index for index, _ in items]
    if any(type(place) is not int for place in places) or sorted(places) != list(range(count)):
        raise JudgeError(f"{url}: expected every index from 0 to {count - 1} once, got {sorted(map(str, places))[:20]}")
    scores: Scores = [None] * count
    for place, score in items:
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            raise JudgeError(f"{url}: expected a number as score, got {score!r}")
        scores[place] = score
    return scores


def _used(answer: Any, estimate: Usage) -> Usage:
    """The usage that a server reports, as tokens or (Cohere) as search units; the *estimate* for the rest."""
    if not isinstance(answer, dict):
        return estimate
    tokens = (answer.get("usage") or answer).get("total_tokens")
    units = ((answer.get("meta") or {}).get("billed_units") or {}).get("search_units")
    return Usage(_counted(units, 1) or 1, _counted(tokens, estimate.tokens))


def _counted(said: Any, estimate: int) -> int:
    """The number that a server *said*, or the *estimate* where that number is implausible."""
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return math.ceil(said) if is_number and 0 <= said <= MOST_USED else estimate
