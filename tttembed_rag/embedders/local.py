"""Embedding models on this machine through sentence-transformers, with a recipe for each kind that needs one."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from tttembed_rag.clients.fingerprints import INSTRUCTION, fingerprint_of
from tttembed_rag.clients.local import loading, short_name, weights_digest
from tttembed_rag.embedders.contract import RoleEmbedder, unit_vectors
from tttembed_rag.errors import EmbedderError, check_count, require
from tttembed_rag.vectors.checks import FloatArray

EXTRA = "embedders"
Kind: TypeAlias = Literal["sentence-transformers", "qwen3"]

_log = logging.getLogger(__name__)
# Texts of a batch on a CPU; elsewhere texts of a call, tokens of a batch, and characters of a token of prose at least.
_ON_CPU, _TEXTS, _TOKENS, _CHARACTERS = 32, 4_096, 32_768, 3
# Two tokenizers that cut this text alike count as the same.
_SAMPLE = "Tokenisers, 2 of them: naïve CAFÉ (don't)!"


class LocalEmbedder(RoleEmbedder):
    """Unit vectors of a `SentenceTransformer` *model*, which has the last part of a *name* or folder.

    Prompts stand before every query and document; None is the one stored with the model, if there is one. Texts are
    read *batch_size* at once: None is 32 on a CPU, and elsewhere as many of like length as keep it busy.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        if batch_size is not None:
            check_count("batch_size", batch_size)
        self._model = model
        self._name = short_name(name)
        self._prompts = (query_prompt, document_prompt)
        self._batch_size = _ON_CPU if batch_size is None and model.device.type == "cpu" else batch_size
        # Texts of a call: among so many those of like length are sought.
        self.texts_per_call = 3 * _ON_CPU if self._batch_size else _TEXTS
        self.fingerprint = fingerprint_of(
            "local",
            self._name,
            weights=weights_digest(model),
            revision=getattr(getattr(model[0], "config", None), "_commit_hash", None),
            modules=[(type(module).__name__, getattr(module, "pooling_mode", None)) for module in model],
            prompts=[self._prompts, sorted(model.prompts.items()), model.default_prompt_name],
            tokens=[model.max_seq_length, _token_ids(model, _SAMPLE)],
        )

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        encode, prompt = (self._model.encode_query, self._model.encode_document)[place], self._prompts[place]

        def embedded(some: Sequence[str], at_once: int) -> FloatArray:
            return np.asarray(encode(list(some), prompt=prompt, batch_size=at_once, show_progress_bar=False))

        if self._batch_size is not None or not texts:
            return unit_vectors(self._name, embedded(texts, self._batch_size or _ON_CPU), texts)
        order = np.argsort([-len(text) for text in texts], kind="stable").tolist()
        parts: list[FloatArray] = []
        first = 0
        while first < len(order):
            longest = min(len(texts[order[first]]) // _CHARACTERS + 1, self._model.max_seq_length or _TOKENS)
            rows = order[first : first + max(1, _TOKENS // longest)]
            parts.append(embedded([texts[row] for row in rows], len(rows)))
            first += len(rows)
        return unit_vectors(self._name, np.concatenate(parts)[np.argsort(order)], texts)


def local_model(
    model: str,
    kind: Kind = "sentence-transformers",
    *,
    instruction: str = INSTRUCTION,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    query_prefix: str | None = None,
    document_prefix: str | None = None,
    trust_remote_code: bool = False,
) -> LocalEmbedder:
    """A model of sentence-transformers, by its name or folder, such as ``Qwen/Qwen3-Embedding-0.6B``.

    Args:
        model: Name or folder.
        kind: ``sentence-transformers``, the prompts and the pooling stored beside the model; ``qwen3``, Qwen3-Embedding
            or a model tuned from it: instruction before queries, last token, padding on the left, also where the folder
            has no word on pooling.
        instruction: What queries ask for, one sentence; of ``qwen3``.
        revision: Commit, tag or branch of a hub.
        device: ``cpu``, ``cuda:0`` ...; None takes an accelerator where there is one.
        dtype: ``float32``, ``bfloat16``, ``float16``; None is full precision on a CPU, elsewhere the model's own.
        max_tokens: Tokens read of each text; None is the model's own limit.
        batch_size: Texts at once; None is 32 on a CPU, and elsewhere as many of like length as keep it busy.
        query_prefix: Before every query, of ``sentence-transformers``; None is the prompt stored with the model.
        document_prefix: Before every document.
        trust_remote_code: Whether code that stands beside the model is run.
    """
    library = require("sentence_transformers", EXTRA)
    device = device or library.util.get_device_name()
    with loading(model, "sentence-transformers", EmbedderError, extra=EXTRA) as away:
        loaded = library.SentenceTransformer(
            model,
            revision=revision,
            local_files_only=away,
            device=device,
            trust_remote_code=trust_remote_code,
            model_kwargs={"dtype": dtype or ("float32" if device == "cpu" else "auto")},
            processor_kwargs={"padding_side": "left"} if kind == "qwen3" else None,
        ).eval()
    if max_tokens is not None:
        loaded.max_seq_length = max_tokens
    prompts = query_prefix, document_prefix
    if re.search(r"(?<![^\W_])e5(?![^\W_])", model, re.IGNORECASE) and not any((*prompts, *loaded.prompts.values())):
        _log.warning(
            "%s: E5 reads 'query: ' and 'passage: ' before texts: give query_prefix and document_prefix", model
        )
    if kind == "qwen3":
        loaded = _qwen3(model, loaded)
        prompts = f"Instruct: {instruction}\nQuery:", ""
    return LocalEmbedder(loaded, name=model, query_prompt=prompts[0], document_prompt=prompts[1], batch_size=batch_size)


def model2vec(model: str) -> LocalEmbedder:
    """A static model of model2vec by its name or folder: a table of token vectors, hundreds of times faster."""
    library = require("sentence_transformers", EXTRA)
    modules = require("sentence_transformers.sentence_transformer.modules", EXTRA)
    require("model2vec", EXTRA)
    with loading(model, "sentence-transformers", EmbedderError, extra=EXTRA):
        table = modules.StaticEmbedding.from_model2vec(model)
    return LocalEmbedder(library.SentenceTransformer(modules=[table], device="cpu"), name=model, batch_size=1024)


def _qwen3(model: str, loaded: Any) -> Any:
    """*loaded* with the vector of each text's last token for the text."""
    if (last := _token_ids(loaded, _SAMPLE)[-1]) not in loaded.tokenizer.all_special_ids:
        raise EmbedderError(
            f"{model}: expected a tokenizer that ends every text with a special token, got token {last} "
            "(is it an embedding model?)"
        )
    if getattr(loaded[1] if len(loaded) > 1 else None, "pooling_mode", None) == "lasttoken":
        return loaded
    library = require("sentence_transformers", EXTRA)
    pooling = require("sentence_transformers.sentence_transformer.modules", EXTRA).Pooling
    modules = [loaded[0], pooling(loaded[0].config.hidden_size, "lasttoken")]
    return library.SentenceTransformer(modules=modules, device=str(loaded.device)).eval()


def _token_ids(model: Any, text: str) -> list[int]:
    """The token ids of *text* by the tokenizer of *model*, its frame included."""
    tokenizer = model.tokenizer
    if hasattr(tokenizer, "encode_batch"):  # of the library tokenizers, below a static model
        return list(tokenizer.encode(text).ids)
    return list(tokenizer(text)["input_ids"])
