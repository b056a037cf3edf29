"""Gemini embeddings through google-genai: by task type in the first generation, by prefix from the second on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.clients.googleclient import EXTRA, GoogleModel
from tttembed_rag.clients.retrying import Patience, Portions
from tttembed_rag.embedders.contract import RoleEmbedder, embedded
from tttembed_rag.errors import EmbedderError, JudgeError, check_count, require
from tttembed_rag.vectors.checks import FloatArray

# The most texts that the service takes in a request.
_AT_ONCE = 100

QUERY_PREFIX = "task: search result | query: "
DOCUMENT_PREFIX = "title: none | text: "


class GeminiEmbedder(RoleEmbedder):
    """Unit vectors of a Gemini embedding model; an `EmbedderError` where the service refuses or stays busy.

    ``gemini-embedding-001`` reads from a task type whether a text is a query, and leaves vectors of fewer
    dimensions unnormalised; ``gemini-embedding-2`` knows no task types and reads a prefix. The two
    spaces have nothing in common: offsets of one model are noise in the other.

    Args:
        model: Its name; its key is in GEMINI_API_KEY or GOOGLE_API_KEY.
        url: Another server that speaks the protocol; None is Google.
        key: Its key; None is that of the environment, which Google alone is sent.
        dimensions: Width asked for (Matryoshka); None is the model's own.
        query_prefix: Before every query, from the second generation on.
        document_prefix: Before every document, from the second generation on.
        batch_size: Texts in a request at most; None is 100.
        patience: How often and how fast the service is asked.
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
        if dimensions is not None:
            check_count("dimensions", dimensions)
        try:
            self._google = GoogleModel(model, url=url, key=key, patience=patience)
        except JudgeError as exc:
            raise EmbedderError(exc.brief, exc.said) from exc
        self._dimensions, self._portions = dimensions, Portions(batch_size or _AT_ONCE)
        generation = re.search(r"gemini-embedding-0*(\d+)", model)
        self._by_prefix = generation is not None and int(generation[1]) >= 2
        task_types = "RETRIEVAL_QUERY", "RETRIEVAL_DOCUMENT"
        self._prompts = (query_prefix, document_prefix) if self._by_prefix else task_types
        self.fingerprint = fingerprint_of("gemini", model, prompts=self._prompts, dimensions=dimensions)

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        prompt = self._prompts[place]
        model, embed = self._google.name, self._google.client.models.embed_content
        types = require("google.genai.types", EXTRA)
        config = types.EmbedContentConfig(
            task_type=None if self._by_prefix else prompt, output_dimensionality=self._dimensions
        )

        def ask(group: Sequence[str]) -> list[list[float]]:
            # One content per text: strings would become one aggregated vector in the second generation.
            contents = [{"parts": [{"text": text}]} for text in group]
            answer = self._google.ask(lambda: embed(model=model, contents=contents, config=config))
            return [item.values or [] for item in answer.embeddings or []]

        prefixed = [prompt + text for text in texts] if self._by_prefix else texts
        return embedded(model, prefixed, ask, portions=self._portions, dimensions=self._dimensions)
