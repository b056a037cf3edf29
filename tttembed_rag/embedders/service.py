"""Embedding models behind HTTP: OpenAI's protocol (which most servers speak), Cohere's and Voyage's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tttembed_rag.clients.endpoint import Address, Endpoint, with_path
from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.clients.retrying import Patience, Portions
from tttembed_rag.embedders.contract import RoleEmbedder, embedded
from tttembed_rag.errors import InputError
from tttembed_rag.vectors.checks import FloatArray


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


class EmbeddingService(RoleEmbedder):
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
        patience: How often and how fast it is asked.
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
        self._portions = Portions(batch_size or self._protocol.at_once)
        base = url or self._protocol.url
        self._endpoint = Endpoint(
            with_path(base, self._protocol.path),
            key=key,
            header="api-key" if Address.of(base).is_azure else "authorization",
            patience=patience,
        )
        self._body = {"model": model} | ({} if dimensions is None else {self._protocol.width: dimensions})
        self._prefixes, self._dimensions = (query_prefix, document_prefix), dimensions
        self.fingerprint = fingerprint_of(
            protocol, model, url=self._endpoint.url, dimensions=dimensions, prefixes=self._prefixes
        )

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        protocol, options = self._protocol, self._body | self._protocol.kinds[place]

        def ask(group: Sequence[str]) -> Any:
            body = options | {protocol.texts: list(group)}
            return self._endpoint.ask(body, protocol.vectors, expected="a vector for each text")

        prefixed = [self._prefixes[place] + text for text in texts]
        return embedded(self.fingerprint, prefixed, ask, portions=self._portions, dimensions=self._dimensions)
