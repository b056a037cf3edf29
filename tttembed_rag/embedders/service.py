"""Embedding models of services: of OpenAI's protocol (which most servers speak), Cohere's, Voyage's and Gemini's."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from tttembed_rag.clients.endpoint import Address, Endpoint, with_path
from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.clients.googleclient import EXTRA, GoogleModel
from tttembed_rag.clients.retrying import Patience, Portions, RefusedTextsError
from tttembed_rag.embedders.contract import RoleEmbedder, check_width, unit_vectors
from tttembed_rag.errors import EmbedderError, InputError, JudgeError, check_count, require
from tttembed_rag.vectors.checks import FloatArray

# What Gemini reads before texts from the second generation on, the task types that it knows before, and texts at once.
QUERY_PREFIX, DOCUMENT_PREFIX = "task: search result | query: ", "title: none | text: "
_TASKS, _GEMINI_AT_ONCE = ("RETRIEVAL_QUERY", "RETRIEVAL_DOCUMENT"), 100
# Characters in a request, as many as every service takes: about 20,000 tokens of 3.
_CHARACTERS = 60_000


@dataclass(frozen=True, slots=True)
class Protocol:
    """How one kind of service is asked: by texts, a width and what *kinds* says of queries and of documents.

    *key* is the environment variable of its key, *texts* and *width* are names in a request, and *vectors* reads those
    of an answer in the order of the texts.
    """

    url: str
    path: str
    key: str
    texts: str
    width: str
    vectors: Callable[[Any], Any]
    kinds: tuple[dict[str, Any], ...] = ({}, {})
    at_once: int = 100


def _by_index(answer: Any) -> list[Any]:
    items = answer["data"]
    places = [item.get("index") or 0 for item in items]  # a 0 may be left out
    if any(places):  # else they are in order
        order = sorted(range(len(items)), key=places.__getitem__)
        if [places[row] - places[order[0]] for row in order] != list(range(len(items))):
            raise ValueError("expected every index once")
        items = [items[row] for row in order]
    return [item["embedding"] for item in items]


PROTOCOLS = {
    "openai": Protocol("https://api.openai.com/v1", "/embeddings", "OPENAI_API_KEY", "input", "dimensions", _by_index),
    "cohere": Protocol(
        "https://api.cohere.com/v2",
        "/embed",
        "COHERE_API_KEY",
        "texts",
        "output_dimension",
        lambda answer: answer["embeddings"]["float"],
        tuple({"input_type": f"search_{kind}", "embedding_types": ["float"]} for kind in ("query", "document")),
        at_once=96,
    ),
    "voyage": Protocol(
        "https://api.voyageai.com/v1",
        "/embeddings",
        "VOYAGE_API_KEY",
        "input",
        "output_dimension",
        _by_index,
        ({"input_type": "query"}, {"input_type": "document"}),
    ),
}


class _Service(RoleEmbedder):
    """An embedder that reads *prefixes* before queries and documents, and asks about *most* texts at once."""

    def __init__(self, prefixes: tuple[str, str], dimensions: int | None, most: int) -> None:
        if dimensions is not None:
            check_count("dimensions", dimensions)
        self._prefixes, self._dimensions, self._portions = prefixes, dimensions, Portions(most)

    @abstractmethod
    def _vectors(self, texts: Sequence[str], place: int) -> Sequence[Any]:
        """The vectors of some texts, by one request."""

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        """Their width is the one that was asked for, or that of the first ones.

        Raises:
            EmbedderError: The service refused a text, which is named, stayed busy or answered something else.
        """
        texts = [self._prefixes[place] + text for text in texts]
        parts: list[FloatArray] = []
        first = 0
        try:
            while first < len(texts):
                some = texts[first : first + self._portions.most]
                lengths = accumulate(map(len, some))
                group = some[: max(1, sum(length <= _CHARACTERS for length in lengths))]
                vectors = self._portions.ask(group, lambda part: self._vectors(part, place))
                for row, refused in enumerate(vectors, first):
                    if isinstance(refused, RefusedTextsError):
                        brief = f"{refused.brief} for the text in row {row}:"
                        raise EmbedderError(brief, f"{texts[row]!r:.80} {refused.answer}") from refused
                parts.append(unit_vectors(self.fingerprint, vectors, group, first=first))
                check_width(self.fingerprint, parts[-1], self._dimensions or parts[0].shape[1])
                first += len(group)
        except JudgeError as exc:
            raise EmbedderError(exc.brief, exc.answer) from exc
        return np.concatenate(parts) if parts else unit_vectors(self.fingerprint, [], [])


class EmbeddingService(_Service):
    """Unit vectors of an embedding model behind HTTP; an `EmbedderError` where the service refuses or stays busy.

    Args:
        protocol: A name of `PROTOCOLS`; ``openai`` is spoken by OpenAI, Azure, Ollama, vLLM, TEI and most others.
        model: Its name there; part of the fingerprint, as is where the service is.
        url: Where the service is, with its version: ``http://127.0.0.1:11434/v1``; None is the protocol's namesake.
        key: Its key; None where it needs none.
        dimensions: Width asked for; None is the model's own.
        query_prefix: Before every query, for models that read one.
        document_prefix: Before every document.
        batch_size: Texts in a request at most; None is as many as its namesake takes.
        patience: How often it is asked, and how long its answer is waited for.
    """

    def __init__(
        self,
        protocol: str,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        dimensions: int | None = None,
        query_prefix: str = "",
        document_prefix: str = "",
        batch_size: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        if protocol not in PROTOCOLS:
            raise InputError(f"protocol: expected one of {', '.join(PROTOCOLS)}, got {protocol!r}")
        self._protocol = PROTOCOLS[protocol]
        if url is None and not key:
            raise InputError(f"key: expected one in the environment variable {self._protocol.key}, found none")
        super().__init__((query_prefix, document_prefix), dimensions, batch_size or self._protocol.at_once)
        base = url or self._protocol.url
        self._endpoint = Endpoint(
            with_path(base, self._protocol.path),
            key=key,
            header="api-key" if Address.of(base).is_azure else "authorization",
            patience=patience,
        )
        self._body = {"model": model} | ({} if dimensions is None else {self._protocol.width: dimensions})
        self.fingerprint = fingerprint_of(
            protocol, model, url=self._endpoint.url, dimensions=dimensions, prefixes=self._prefixes
        )

    def _vectors(self, texts: Sequence[str], place: int) -> Sequence[Any]:
        body = self._body | self._protocol.kinds[place] | {self._protocol.texts: list(texts)}
        vectors: Sequence[Any] = self._endpoint.ask(body, self._protocol.vectors, expected="a vector for each text")
        return vectors


class GeminiEmbedder(_Service):
    """Unit vectors of a Gemini embedding model; an `EmbedderError` where the service refuses or stays busy.

    ``gemini-embedding-001`` reads from a task type whether a text is a query, and leaves vectors of fewer
    dimensions unnormalised; ``gemini-embedding-2`` knows no task types and reads a prefix. The two
    spaces have nothing in common: offsets of one model are noise in the other.

    The arguments are those of `EmbeddingService`: a *url* of None is Google, a *key* of None is in GEMINI_API_KEY or
    GOOGLE_API_KEY, which Google alone is sent, and prefixes are read from the second generation on.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        dimensions: int | None = None,
        query_prefix: str = QUERY_PREFIX,
        document_prefix: str = DOCUMENT_PREFIX,
        batch_size: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        generation = re.search(r"gemini-embedding-0*(\d+)", model)
        self._by_prefix = generation is not None and int(generation[1]) >= 2
        prefixes = (query_prefix, document_prefix) if self._by_prefix else ("", "")
        super().__init__(prefixes, dimensions, batch_size or _GEMINI_AT_ONCE)
        try:
            self._google = GoogleModel(model, url=url, key=key, patience=patience)
        except JudgeError as exc:
            raise EmbedderError(exc.brief, exc.answer) from exc
        prompts = prefixes if self._by_prefix else _TASKS
        self.fingerprint = fingerprint_of("gemini", model, prompts=prompts, dimensions=dimensions)

    def _vectors(self, texts: Sequence[str], place: int) -> Sequence[Any]:
        config = require("google.genai.types", EXTRA).EmbedContentConfig(
            task_type=None if self._by_prefix else _TASKS[place], output_dimensionality=self._dimensions
        )
        # One content per text: strings would become one aggregated vector in the second generation.
        contents = [{"parts": [{"text": text}]} for text in texts]
        embed, model = self._google.client.models.embed_content, self._google.name
        answer = self._google.ask(lambda: embed(model=model, contents=contents, config=config))
        return [item.values or [] for item in answer.embeddings or []]
