"""Chat models as functions from prompt to answer: of OpenAI's protocol, Anthropic and Google, and on this machine."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isnan, nan
from typing import Any, TypeAlias

from tttembed_rag.clients.endpoint import DOMAINS, Address, Endpoint, is_of, read_json, with_path
from tttembed_rag.clients.googleclient import EXTRA, GoogleModel
from tttembed_rag.clients.local import EXTRA as LOCAL
from tttembed_rag.clients.local import Batches, PlainTokenizer, padded, weights_digest
from tttembed_rag.clients.openaiclient import failures_of, openai_client
from tttembed_rag.clients.retrying import Patience, RefusedTextsError
from tttembed_rag.clients.usage import Usage, plausible, report_usage
from tttembed_rag.errors import InputError, JudgeError, check_count, require

# Tokens that an answer may have. Models that think need more, as Gemini does: their thoughts count.
OUTPUT_TOKENS, GEMINI_TOKENS = 1024, 4096
# How much a model of Gemini thinks, of those that know levels: from the third generation on.
_THINKING, _KNOWS_LEVELS = "low", re.compile(r"gemini-(?![12]\b)")
# How an answer ends that is none, as services call it; whatever else they say, it has ended by itself.
_CUT = {"length", "max_tokens", "model_length", "model_context_window_exceeded", "error", "other", "unspecified"}
_CUT |= {"content_filter", "safety", "refusal", "recitation", "blocklist", "prohibited_content", "spii", "language"}
_CUT |= {"tool_calls", "tool_use", "function_call", "pause_turn", "malformed_function_call"}
# The text of an answer, None where there is none; its usage, None where that is none a request can have; how it ended.
Read: TypeAlias = tuple[str | None, Usage | None, str]
# The version of Anthropic's messages.
_VERSION = "2023-06-01"
# How a value of google-genai is written as the JSON of Gemini.
_AS_JSON: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_none": True}
# The paper's settings for its local judges: the official ones without thinking.
TEMPERATURE, TOP_P, TOP_K, NEW_TOKENS, SEED = 0.7, 0.8, 20, 512, 1234

# A stand-in for the prompt while the chat template is rendered; no template changes it.
_PLACE = "\ue000prompt\ue001"


class _Chat(ABC):
    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None where it is empty, was cut off or refused.

        Raises:
            JudgeError: The service refused the request, stayed busy or answered something else.
        """
        text, usage, ended = self._answer(prompt)
        report_usage(usage, ended=ended)
        return text or None

    @abstractmethod
    def _answer(self, prompt: str) -> Read:
        """What is read of an answer."""


class _ByKey(_Chat):
    """A chat model at the home of its vendor, or at another address that speaks the same protocol."""

    _vendor, _home = "", ""

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        tokens: int = OUTPUT_TOKENS,
        temperature: float = nan,
        patience: Patience | None = None,
    ) -> None:
        check_count("tokens", tokens)
        if url is None and not key:
            raise InputError(
                f"key: expected one in the environment variable {self._vendor.upper()}_API_KEY, found none"
            )
        self._where = Address.of(url or self._home, key)
        self._body: dict[str, Any] = {"model": model, "max_tokens": tokens}
        self._body |= {} if isnan(temperature) else {"temperature": temperature}
        self.name = f"{self._vendor}:{model}" if url is None else f"{self._vendor}:{model}@{self._where.netloc}"
        self.settings, self.tokens = f"n={tokens} t={temperature}", tokens
        self._connect(patience)

    @abstractmethod
    def _connect(self, patience: Patience | None) -> None:
        """Make a client."""

    def request(self, prompt: str) -> dict[str, Any]:
        """The JSON that asks *prompt*."""
        return self._body | {"messages": [{"role": "user", "content": prompt}]}


class OpenAIChat(_ByKey):
    """Answers of a chat model of OpenAI, Azure, Ollama, vLLM and most others; one that was cut off or refused is none.

    Args:
        model: Its name there.
        url: Where the service is, with its version: ``http://127.0.0.1:11434/v1``; None is OpenAI.
        key: Its key; None where it needs none.
        tokens: Tokens that an answer may have.
        temperature: NaN leaves it to the service.
        patience: How often it is asked, and how long its answer is waited for.

    Attributes:
        client: The `openai.OpenAI`.
    """

    _vendor, _home = "openai", "https://api.openai.com/v1"

    def _connect(self, patience: Patience | None) -> None:
        self.client = openai_client(self._where, path="/chat/completions", patience=patience)
        # The newer name is refused by older servers, and the older one by OpenAI's newer models.
        self._newer = self._body | {"max_completion_tokens": self._body["max_tokens"]}
        del self._newer["max_tokens"]
        if is_of(self._where.url, DOMAINS["OPENAI_API_KEY"]):
            self._body = self._newer

    def _answer(self, prompt: str) -> Read:
        name, expected = self._where.name, "an answer of openai's chat"
        body = self.request(prompt)
        try:
            with failures_of(name, expected):
                answer = self.client.chat.completions.with_raw_response.create(**body).http_response
                return read_json(answer, self.read, name, expected)
        except RefusedTextsError as exc:
            if "max_tokens" not in body or "max_completion_tokens" not in exc.answer:
                raise
            self._body = self._newer
            return self._answer(prompt)

    @staticmethod
    def read(answer: Any) -> Read:
        """What an *answer* says, as JSON."""
        choice, used = answer["choices"][0], answer.get("usage") or {}
        text, ended = choice["message"]["content"], str(choice.get("finish_reason") or "")
        if isinstance(text, list):  # thoughts are parts too
            text = "".join(part["text"] for part in text if part["type"] == "text")
        if text is not None and not isinstance(text, str):
            raise TypeError("expected a text")
        return _unless_cut(text, ended), plausible(used.get("prompt_tokens"), used.get("completion_tokens")), ended


class AnthropicChat(_ByKey):
    """Answers of a chat model of Anthropic, by the arguments of `OpenAIChat`, whose *url* of None is Anthropic here."""

    _vendor, _home = "anthropic", "https://api.anthropic.com/v1"

    def _connect(self, patience: Patience | None) -> None:
        url, version = with_path(self._where.url, "/messages"), {"anthropic-version": _VERSION}
        self._endpoint = Endpoint(url, key=self._where.key, header="x-api-key", headers=version, patience=patience)

    def _answer(self, prompt: str) -> Read:
        return self._endpoint.ask(self.request(prompt), self.read, expected="an answer of anthropic's chat")

    @staticmethod
    def read(answer: Any) -> Read:
        """What an *answer* says, as JSON."""
        text = "".join(part["text"] for part in answer["content"] if part["type"] == "text")
        ended, used = str(answer.get("stop_reason") or ""), answer["usage"]
        return _unless_cut(text, ended), plausible(used["input_tokens"], used["output_tokens"]), ended


class Gemini(_Chat):
    """Answers of a Gemini model that thinks a little.

    A refusal, an empty answer and an answer that was cut off are no answer.

    Args:
        model: Such as ``gemini-3.1-pro`` or ``gemini-3.5-flash``; its key is in GEMINI_API_KEY or GOOGLE_API_KEY.
        url: Another server that speaks the protocol; None is Google.
        key: Its key; None is that of the environment, which Google alone is sent.
        thinking: How much it thinks, such as ``low``, where it knows levels; empty leaves it to the model.
        patience: How often it is asked, and how long its answer is waited for.

    Attributes:
        client: The `google.genai.Client`.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        key: str | None = None,
        thinking: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.google = GoogleModel(model, url=url, key=key, patience=patience)
        self.client = self.google.client
        types = require("google.genai.types", EXTRA)
        level = thinking if thinking is not None else _THINKING if _KNOWS_LEVELS.search(model) else ""
        config = types.ThinkingConfig(thinking_level=level) if level else None
        self._config = types.GenerateContentConfig(thinking_config=config, max_output_tokens=GEMINI_TOKENS)
        self.name = model
        self.settings, self.tokens = f"thinking={level} n={GEMINI_TOKENS}", GEMINI_TOKENS

    def request(self, prompt: str) -> dict[str, Any]:
        """The JSON that asks *prompt*."""
        return {**self._contents(prompt), "generationConfig": self._config.model_dump(**_AS_JSON)}

    def _answer(self, prompt: str) -> Read:
        options = {"model": self.name, "config": self._config, **self._contents(prompt)}
        return self.google.ask(lambda: self.read(self.client.models.generate_content(**options).model_dump(**_AS_JSON)))

    @staticmethod
    def read(answer: Any) -> Read:
        """What an *answer* says, as JSON."""
        used = answer.get("usageMetadata") or {}
        written = [used.get(name) or 0 for name in ("candidatesTokenCount", "thoughtsTokenCount")]
        usage = plausible(used.get("promptTokenCount"), sum(written))
        candidate = (answer.get("candidates") or [{}])[0]
        ended = (
            candidate.get("finishReason") or (answer.get("promptFeedback") or {}).get("blockReason") or "unspecified"
        )
        parts = (candidate.get("content") or {}).get("parts") or []
        text = "".join(part.get("text") or "" for part in parts if not part.get("thought"))
        return _unless_cut(text, ended), usage, ended

    @staticmethod
    def _contents(prompt: str) -> dict[str, Any]:
        return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}


def _unless_cut(text: str | None, ended: str) -> str | None:
    return None if ended.lower() in _CUT else text


class LocalChat:
    """Answers of a local chat model with thinking off: the same prompt always gets the same answer.

    The chat template alone makes turns: a prompt that contains `<|im_end|>` is tokenised as text.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its fast tokenizer, with a chat template.
        name: Its name in fingerprints and errors.
        new_tokens: Tokens an answer may have; an answer that is not finished by then is none.
        seed: Seed of every answer.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "chat", new_tokens: int = NEW_TOKENS, seed: int = SEED
    ) -> None:
        if not tokenizer.chat_template:
            raise JudgeError(f"{name}: expected a tokenizer with a chat template, found none")
        turns = [{"role": "user", "content": _PLACE}]
        frame = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        head, placed, tail = frame.partition(_PLACE)
        if not placed or _PLACE in tail:
            raise JudgeError(f"{name}: expected a chat template that shows the prompt once")
        self._head, self._tail = (tokenizer.encode(part, add_special_tokens=False) for part in (head, tail))
        self._model = model
        self._tokenizer = tokenizer
        self._text = PlainTokenizer(tokenizer)
        self.tokens = new_tokens
        self._seed = seed
        self._end = tokenizer.eos_token_id
        self._batches = Batches(None, model.device.type, name)
        # Prompts of a call about several queries: some hundred tokens each, and those of the answer.
        self.prompts_per_call = max(1, self._batches.tokens // (2 * new_tokens))
        self.name = f"{name}@{weights_digest(model)}"
        self.settings = f"t={TEMPERATURE} p={TOP_P} k={TOP_K} n={new_tokens} seed={seed} frame={frame}"

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None if it was cut off."""
        return self.answers([prompt])[0]

    def answers(self, prompts: Sequence[str]) -> list[str | None]:
        """The answer to each of *prompts*, those of like length written side by side."""
        rows = [self._head + text + self._tail for text in self._text.ids(prompts)]
        lengths = [len(row) + self.tokens for row in rows]
        written = self._batches.run(lengths, lambda batch: self._written([rows[row] for row in batch]))
        return [self._answer(len(row), ids) for row, ids in zip(rows, written, strict=True)]

    def _written(self, rows: Sequence[list[int]]) -> Any:
        """The tokens (n, written) that follow each of *rows*."""
        torch, transformers = require("torch", LOCAL), require("transformers", LOCAL)
        ids = padded([row[::-1] for row in rows], self._end, self._model.device).flip(1)  # on the left
        mask = padded([[1] * len(row) for row in rows], 0, self._model.device).flip(1)

        def draw(before: Any, scores: Any) -> Any:
            # The largest of scores with this noise is drawn by their softmax: by the seed and the place in the answer
            # alone, so that no other prompt has a part in it.
            random = torch.Generator().manual_seed(self._seed + before.shape[1] - ids.shape[1])
            noise = torch.empty(scores.shape[1]).exponential_(generator=random)
            return scores - noise.log().to(scores.device)

        warpers = [
            transformers.TemperatureLogitsWarper(TEMPERATURE),
            transformers.TopKLogitsWarper(TOP_K),
            transformers.TopPLogitsWarper(TOP_P),
        ]
        return self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            logits_processor=transformers.LogitsProcessorList([*warpers, draw]),
            max_new_tokens=self.tokens,
            pad_token_id=self._end,
        )[:, ids.shape[1] :]

    def _answer(self, read: int, written: list[int]) -> str | None:
        """The text of the tokens that were *written* after so many *read*; None if they were cut off."""
        ends = self._model.generation_config.eos_token_id
        ends = {self._end, *(ends if isinstance(ends, list) else [ends])}
        last = next((place for place, token in enumerate(written) if token in ends), None)
        report_usage(Usage(1, read, len(written) if last is None else last + 1), ended="length" * (last is None))
        return None if last is None else str(self._tokenizer.decode(written[:last], skip_special_tokens=True))
