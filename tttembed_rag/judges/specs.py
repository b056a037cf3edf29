"""Judges from one line of text, as the command line takes them."""

from __future__ import annotations

import re
from inspect import isfunction
from math import nan
from typing import Any

from tttembed_rag.clients.fingerprints import INSTRUCTION
from tttembed_rag.clients.local import load, short_name
from tttembed_rag.clients.options import Options
from tttembed_rag.errors import InputError
from tttembed_rag.judges.chats import OUTPUT_TOKENS, AnthropicChat, Gemini, LocalChat, OpenAIChat
from tttembed_rag.judges.contract import Judge, checked_judge
from tttembed_rag.judges.cross_encoder import CrossEncoderJudge
from tttembed_rag.judges.http import SHAPES, HttpJudge
from tttembed_rag.judges.rubric import RubricJudge
from tttembed_rag.judges.yesno import YesNoJudge

# Kinds of judges that cost nothing: models in this process. A server on this machine is one at an address.
FREE = ("yesno", "cross-encoder", "rubric")
_MODELS = (*FREE, "openai", "anthropic", "gemini", "cohere", "jina", "voyage")
_SERVED = f"http+SHAPE://HOST (SHAPE: {', '.join(sorted(SHAPES))})"
KINDS = ", ".join([*(f"{kind}:MODEL" for kind in _MODELS), f"{_SERVED} or python:MODULE:NAME"])


def open_judge(spec: str) -> Judge:
    """The judge that *spec* names.

    `yesno:MODEL`, `cross-encoder:MODEL`, `rubric:MODEL` (a local chat model), `openai:MODEL` (any service that speaks
    its chat completions, by `?url=`), `anthropic:MODEL`, `gemini:MODEL`, a vendor's reranker (`cohere:MODEL`,
    `jina:MODEL`, `voyage:MODEL`), `http+SHAPE://HOST[:PORT][/PATH]` or `https+SHAPE://...` or `python:MODULE:NAME` (a
    judge, a class or function that makes one, or a function from prompt to answer); options follow as in an address:
    `cross-encoder:PATH?scale=logit&device=cuda`.

    Raises:
        InputError: No such kind or option.
    """
    options = Options("judge", spec)
    is_known = options.kind in (*_MODELS, "python") or re.fullmatch(r"https?\+.+", options.kind)
    if not (is_known and options.target.strip("/")):
        raise InputError(f"judge: expected {KINDS}, got {options.spec!r}")
    judge = _open(options)
    options.check_all_used()
    return judge


def _open(options: Options) -> Judge:
    kind, target = options.kind, options.target
    if kind in ("yesno", "cross-encoder"):
        return _reranker(kind, target, options)
    if kind == "python":
        named = options.load()
        if isfunction(named):  # from prompt to answer
            return RubricJudge(named, model=f"python:{target}", instruction=options.take("instruction", INSTRUCTION))
        judge: Judge = checked_judge(named)
        return judge
    if kind not in (*FREE, "gemini", "openai", "anthropic"):
        return _http(kind, target, options)
    instruction, longest = options.take("instruction", INSTRUCTION), options.whole("characters", 12_000)
    chat = _chat(kind, target, options)
    settings: dict[str, Any] = {"settings": chat.settings, "output_tokens": chat.tokens, "longest_document": longest}
    return RubricJudge(chat, model=chat.name, instruction=instruction, **settings)


def _reranker(kind: str, model: str, options: Options) -> Judge:
    """A reranker on this machine."""
    settings: dict[str, Any] = {"name": short_name(model), "batch_tokens": options.whole("batch_tokens", 0) or None}
    if kind == "yesno":
        instruction, tokens = options.take("instruction", INSTRUCTION), options.whole("tokens", 8192)
        parts = load("AutoModelForCausalLM", model, **options.machine())
        return YesNoJudge(*parts, instruction=instruction, max_tokens=tokens, **settings)
    settings |= {"scale": options.take("scale", "probability"), "max_tokens": options.whole("tokens", 0) or None}
    return CrossEncoderJudge(*load("AutoModelForSequenceClassification", model, **options.machine()), **settings)


def _chat(kind: str, model: str, options: Options) -> LocalChat | Gemini | OpenAIChat | AnthropicChat:
    if kind == "rubric":
        parts = load("AutoModelForCausalLM", model, **options.machine())
        return LocalChat(*parts, name=short_name(model))
    url = options.take("url", "") or None
    key = options.key(f"{kind.upper()}_API_KEY", url)
    if kind == "gemini":
        return Gemini(model, url=url, key=key, thinking=options.take("thinking", None))
    tokens = options.whole("tokens", OUTPUT_TOKENS)
    temperature = options.number("temperature", nan)
    made = OpenAIChat if kind == "openai" else AnthropicChat
    return made(model, url=url, key=key, tokens=tokens, temperature=temperature)


def _http(kind: str, target: str, options: Options) -> Judge:
    """The reranker at an address; without one, at its vendor's."""
    transport, plus, shape = kind.partition("+")
    if plus:
        url, model = f"{transport}:{target}", options.take("model", "")
    else:
        url, model, shape = options.take("url", ""), target, kind
    protocol = SHAPES.get(shape)
    key = options.key(protocol.key if protocol else None, url or None)
    if protocol and not url:
        if key is None:
            raise InputError(f"key: expected one in the environment variable {protocol.key}, found none")
        url = f"https://{protocol.host}"
    return HttpJudge(
        url,
        shape,
        model=model or None,
        scale=options.take("scale", "") or None,
        key=key,
        instruction=options.take("instruction", INSTRUCTION),
        longest_document=options.whole("characters", 32_000),
        batch_size=options.whole("batch", 0) or None,
    )
