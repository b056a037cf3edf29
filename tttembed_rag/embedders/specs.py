"""Embedders from one line of text, as the command line takes them."""

from __future__ import annotations

import re
from importlib import import_module
from types import FunctionType
from typing import Any

from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.embedders.truncated import Truncated
from tttembed_rag.errors import InputError
from tttembed_rag.models.fingerprints import INSTRUCTION
from tttembed_rag.models.local import short_name
from tttembed_rag.models.options import Options

KINDS = (
    "sentence-transformers:MODEL, qwen3:MODEL, embeddinggemma:MODEL, gemini:MODEL, model2vec:MODEL, "
    "python:MODULE:NAME or minilm"
)


def open_embedder(spec: str) -> Embedder:
    """The embedder that *spec* names.

    `sentence-transformers:MODEL`, `qwen3:MODEL`, `embeddinggemma:MODEL`, `model2vec:MODEL` (names of a hub,
    or folders), `gemini:MODEL`, `python:MODULE:NAME` (an embedding object of LangChain, LlamaIndex or this
    package, or a function that makes one) or `minilm`; options follow as in an address:
    `qwen3:Qwen/Qwen3-Embedding-0.6B?dimensions=256&batch=8`.

    Args:
        spec: The text.

    Raises:
        InputError: No such kind or option.

        EmbedderError: The model cannot be loaded.
    """
    address, _, query = spec.partition("?")
    kind, _, target = address.partition(":")
    options = Options("embedder", spec, query)
    if (kind == "minilm") == bool(target.strip("/")):
        raise InputError(f"embedder: expected {KINDS}, got {spec!r}")
    dimensions = options.whole("dimensions", 0) or None
    embedder = _gemini(target, dimensions, options) if kind == "gemini" else _here(spec, kind, target, options)
    options.check_all_used()
    return embedder if dimensions is None or kind == "gemini" else Truncated(embedder, dimensions)


def name_of(spec: str) -> str:
    """A short name for the vectors of the embedder that *spec* names: ``Qwen3-Embedding-0.6B-256``."""
    address, _, query = spec.partition("?")
    kind, _, target = address.partition(":")
    dimensions = re.search(r"(?:^|&)dimensions=(\d+)", query)
    parts = [short_name(target or kind), *([dimensions[1]] if dimensions else [])]
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.") or "vectors"


def _gemini(model: str, dimensions: int | None, options: Options) -> Embedder:
    from tttembed_rag.embedders.gemini import QUERY_PREFIX, GeminiEmbedder

    return GeminiEmbedder.connect(
        model,
        dimensions=dimensions,
        query_prefix=options.take("query_prefix", QUERY_PREFIX),
        base_url=options.take("url", "") or None,
        patience=options.patience(),
    )


def _here(spec: str, kind: str, target: str, options: Options) -> Embedder:
    if kind == "python":
        return _object(spec, target)
    from tttembed_rag.embedders import local

    if kind == "minilm":
        return local.minilm()
    if kind == "model2vec":
        return local.model2vec(target)
    if kind not in ("sentence-transformers", "qwen3", "embeddinggemma"):
        raise InputError(f"embedder: expected {KINDS}, got {spec!r}")
    machine: dict[str, Any] = options.machine(batches=False)
    machine["max_tokens"] = options.whole("tokens", 0) or None
    machine["batch_size"] = options.whole("batch", 32)
    if kind == "qwen3":
        return local.qwen3_embedding(target, instruction=options.take("instruction", INSTRUCTION), **machine)
    if kind == "embeddinggemma":
        return local.embedding_gemma(target, **machine)
    return local.sentence_transformer(target, **machine)


def _object(spec: str, target: str) -> Embedder:
    """The embedding object under a name in a module, or the one that a class or function of that name makes."""
    from tttembed_rag.embedders.frameworks import FrameworkEmbedder

    module, _, name = target.partition(":")
    try:
        named = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise InputError(f"embedder: expected an importable MODULE:NAME in {spec!r} ({exc})") from exc
    model = named() if isinstance(named, type | FunctionType) else named
    return model if isinstance(model, Embedder) else FrameworkEmbedder(model)
