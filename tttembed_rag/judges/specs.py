"""Judges from one line of text, as the command line takes them."""

from __future__ import annotations

from inspect import isfunction
from math import nan
from typing import Any

from tttembed_rag.errors import InputError
from tttembed_rag.judges.contract import Judge, checked_judge
from tttembed_rag.models.fingerprints import INSTRUCTION
from tttembed_rag.models.named import load_named
from tttembed_rag.models.options import Options, without_secrets

# Kinds of judges that cost nothing: models on this machine.
FREE = ("yesno", "cross-encoder", "rubric")
KINDS = (
    "yesno:MODEL, cross-encoder:MODEL, rubric:MODEL, openai:MODEL, anthropic:MODEL, gemini:MODEL, cohere:MODEL, "
    "jina:MODEL, voyage:MODEL, zeroentropy:MODEL, http+SHAPE://HOST or python:MODULE:NAME"
)


def open_judge(spec: str) -> Judge:
    """The judge that *spec* names.

    `yesno:MODEL`, `cross-encoder:MODEL`, `rubric:MODEL` (a local chat model), `openai:MODEL` (any service that speaks
    its chat completions, by `?url=`), `anthropic:MODEL`, `gemini:MODEL`, a vendor's reranker (`cohere:MODEL`,
    `jina:MODEL`, `voyage:MODEL`, `zeroentropy:MODEL`), `http+SHAPE://HOST[:PORT][/PATH]` or `https+SHAPE://...` or
    `python:MODULE:NAME` (a judge, a class or function that makes one, or a function from prompt to answer); options
    follow as in an address: `cross-encoder:PATH?scale=logit&device=cuda`.

    Raises:
        InputError: No such kind or option.
    """
    kind, colon, rest = spec.partition(":")
    target, _, query = rest.partition("?")
    options = Options("judge", spec, query)
    if not (colon and target.strip("/")):
        raise InputError(f"judge: expected {KINDS}, got {without_secrets(spec)!r}")
    judge = _open(spec, kind, target, options)
    options.check_all_used()
    return judge


def _open(spec: str, kind: str, target: str, options: Options) -> Judge:
    transport, _, shape = kind.partition("+")
    if kind == "yesno":
        from tttembed_rag.judges.yesno import YesNoJudge

        instruction, tokens = options.take("instruction", INSTRUCTION), options.whole("tokens", 8192)
        return YesNoJudge.from_pretrained(target, instruction=instruction, max_tokens=tokens, **options.machine())
    if kind == "cross-encoder":
        from tttembed_rag.judges.cross_encoder import CrossEncoderJudge

        scale: Any = options.take("scale", "probability")
        tokens = options.whole("tokens", 0)
        return CrossEncoderJudge.from_pretrained(target, scale=scale, max_tokens=tokens or None, **options.machine())
    if transport in ("http", "https") and shape:
        return _http(f"{transport}:{target}", shape, options.take("model", "") or None, options)
    if kind in ("cohere", "jina", "voyage", "zeroentropy"):
        return _http(options.take("url", ""), kind, target, options)
    if kind == "python":
        return _python(spec, target, options)
    if kind in ("rubric", "gemini", "openai", "anthropic"):
        return _rubric(kind, target, options)
    raise InputError(f"judge: expected {KINDS}, got {without_secrets(spec)!r}")


def _rubric(kind: str, model: str, options: Options) -> Judge:
    from tttembed_rag.judges.rubric import RubricJudge

    instruction, longest = options.take("instruction", INSTRUCTION), options.whole("characters", 12_000)
    chat, tokens = _chat(kind, model, options)
    return RubricJudge(
        chat,
        model=chat.name,
        settings=chat.settings,
        instruction=instruction,
        longest_document=longest,
        output_tokens=tokens,
    )


def _chat(kind: str, model: str, options: Options) -> tuple[Any, int]:
    """A chat model, and the tokens that its answer may have."""
    if kind == "rubric":
        from tttembed_rag.judges.chat import NEW_TOKENS, LocalChat

        return LocalChat.from_pretrained(model, **options.machine(batches=False)), NEW_TOKENS
    url, patience = options.take("url", "") or None, options.patience()
    if kind == "gemini":
        from tttembed_rag.judges.gemini import OUTPUT_TOKENS as GEMINI_TOKENS
        from tttembed_rag.judges.gemini import Gemini

        return Gemini(model, url=url, patience=patience), GEMINI_TOKENS
    from tttembed_rag.judges.anthropicchat import AnthropicChat
    from tttembed_rag.judges.openaichat import OUTPUT_TOKENS, OpenAIChat

    tokens = options.whole("tokens", OUTPUT_TOKENS)
    key, temperature = options.key(f"{kind.upper()}_API_KEY"), options.number("temperature", nan)
    made = OpenAIChat if kind == "openai" else AnthropicChat
    return made(model, url=url, key=key, tokens=tokens, temperature=temperature, patience=patience), tokens


def _python(spec: str, target: str, options: Options) -> Judge:
    """The judge under a name in a module, or one that grades by the function from prompt to answer of that name."""
    from tttembed_rag.judges.rubric import RubricJudge

    named = load_named("judge", spec, target)
    if isfunction(named):
        return RubricJudge(named, model=f"python:{target}", instruction=options.take("instruction", INSTRUCTION))
    judge: Judge = checked_judge(named)
    return judge


def _http(url: str, shape: str, model: str | None, options: Options) -> Judge:
    """The reranker at an address; without one, at its vendor's."""
    from tttembed_rag.judges.http import SHAPES, HttpJudge

    protocol = SHAPES.get(shape)
    key = options.key(protocol.key if protocol else None)
    if protocol and key is None and not url:
        raise InputError(f"key: expected one in the environment variable {protocol.key}, found none")
    return HttpJudge(
        url or f"https://{SHAPES[shape].host}",
        shape,
        model=model,
        scale=options.take("scale", "") or None,
        key=key,
        instruction=options.take("instruction", INSTRUCTION),
        longest_document=options.whole("characters", 32_000),
        patience=options.patience(),
    )
