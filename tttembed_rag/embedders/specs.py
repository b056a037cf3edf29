"""Embedders from one line of text, as the command line takes them."""

from __future__ import annotations

import re
from typing import Any, get_args

from tttembed_rag.clients.fingerprints import INSTRUCTION
from tttembed_rag.clients.local import short_name
from tttembed_rag.clients.options import Options
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.embedders.local import Kind, local_model, model2vec
from tttembed_rag.embedders.service import PROTOCOLS, QUERY_PREFIX, EmbeddingService, GeminiEmbedder
from tttembed_rag.embedders.smallmodel import minilm
from tttembed_rag.embedders.wrapped import Bridged, FrameworkEmbedder, FunctionEmbedder, Truncated
from tttembed_rag.errors import InputError

_MODELS = (*get_args(Kind), "model2vec", *PROTOCOLS, "gemini")
KINDS = ", ".join([*(f"{kind}:MODEL" for kind in _MODELS), "python:MODULE:NAME or minilm"])


def open_embedder(spec: str) -> Embedder:
    """The embedder that *spec* names.

    `sentence-transformers:MODEL`, `qwen3:MODEL`, `model2vec:MODEL` (names of a hub, or folders), `openai:MODEL` (any
    service that speaks its embeddings, by `?url=`), `cohere:MODEL`, `voyage:MODEL`, `gemini:MODEL`,
    `python:MODULE:NAME` (a function from texts to vectors, an embedding object of LangChain, LlamaIndex or this
    package, or a class or function that makes one) or `minilm`; options follow as in an address:
    `qwen3:Qwen/Qwen3-Embedding-0.6B?dimensions=256&batch=8`, `openai:nomic-embed-text?url=http://127.0.0.1:11434/v1`.
    With `bridge=FILE` it is an embedder of the old index that the bridge in FILE leads to.

    Raises:
        InputError: No such kind or option, or a bridge of another model.
        EmbedderError: The model cannot be loaded.
    """
    options = Options("embedder", spec)
    kind, target = options.kind, options.target
    if (kind == "minilm") == bool(target.strip("/")) or kind not in (*_MODELS, "python", "minilm"):
        raise InputError(f"embedder: expected {KINDS}, got {options.spec!r}")
    dimensions = options.whole("dimensions", 0) or None
    bridge = options.take("bridge", "")
    if kind in PROTOCOLS or kind == "gemini":
        embedder = _service(kind, target, dimensions, options)
    else:
        embedder = _here(kind, target, options)
        embedder = embedder if dimensions is None else Truncated(embedder, dimensions)
    options.check_all_used()
    return Bridged(embedder, bridge) if bridge else embedder


def name_of(spec: str) -> str:
    """A short name for the vectors of the embedder that *spec* names: ``Qwen3-Embedding-0.6B-256``."""
    options = Options("embedder", spec)
    bridged = "bridged" if options.take("bridge", "") else ""
    parts = filter(None, (short_name(options.target or options.kind), options.take("dimensions", ""), bridged))
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.") or "vectors"


def _service(kind: str, model: str, dimensions: int | None, options: Options) -> Embedder:
    url, is_gemini = options.take("url", "") or None, kind == "gemini"
    settings: dict[str, Any] = {
        "url": url,
        "key": options.key("GEMINI_API_KEY" if is_gemini else PROTOCOLS[kind].key, url),
        "dimensions": dimensions,
        "batch_size": options.whole("batch", 0) or None,
    }
    if is_gemini:
        return GeminiEmbedder(model, query_prefix=options.take("query_prefix", QUERY_PREFIX), **settings)
    settings |= {name: options.take(name, "") for name in ("query_prefix", "document_prefix")}
    return EmbeddingService(kind, model, **settings)


def _here(kind: Any, target: str, options: Options) -> Embedder:
    if kind == "python":
        return as_embedder(options.load(), name=target)
    if kind == "minilm":
        return minilm()
    if kind == "model2vec":
        return model2vec(target)
    machine: dict[str, Any] = options.machine()
    machine["max_tokens"] = options.whole("tokens", 0) or None
    machine["batch_size"] = options.whole("batch", 0) or None
    if kind == "qwen3":
        machine["instruction"] = options.take("instruction", INSTRUCTION)
    if kind == "sentence-transformers":
        machine |= {name: options.take(name, None) for name in ("query_prefix", "document_prefix")}
    return local_model(target, kind, **machine)


def as_embedder(model: Any, *, name: str) -> Embedder:
    """An embedding object, or what can be called with texts, of the user's own as an embedder; *name* is a function's.

    Raises:
        InputError: It is neither.
    """
    if isinstance(model, Embedder) and type(model).__module__.startswith("tttembed_rag."):
        return model
    if FrameworkEmbedder.takes(model):
        return FrameworkEmbedder(model)
    if callable(model):
        return FunctionEmbedder(model, name=name)
    raise InputError(
        f"embedder: expected {name} to be a function from texts to vectors, or an embedding object of "
        f"LangChain, LlamaIndex or this package, got {type(model).__name__}"
    )
