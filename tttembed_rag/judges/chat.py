"""A chat model of transformers on this machine as a function from prompt to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tttembed_rag.clients.local import EXTRA, Batches, PlainTokenizer, padded, weights_digest
from tttembed_rag.clients.usage import Usage, report_usage
from tttembed_rag.errors import JudgeError, require

# The paper's settings for its local judges: the official ones without thinking.
TEMPERATURE, TOP_P, TOP_K, NEW_TOKENS, SEED = 0.7, 0.8, 20, 512, 1234

# A stand-in for the prompt while the chat template is rendered; no template changes it.
_PLACE = "\ue000prompt\ue001"


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
        self._new_tokens = new_tokens
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
        lengths = [len(row) + self._new_tokens for row in rows]
        written = self._batches.run(lengths, lambda batch: self._written([rows[row] for row in batch]))
        return [self._answer(len(row), ids) for row, ids in zip(rows, written, strict=True)]

    def _written(self, rows: Sequence[list[int]]) -> Any:
        """The tokens (n, written) that follow each of *rows*."""
        torch, transformers = require("torch", EXTRA), require("transformers", EXTRA)
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
            max_new_tokens=self._new_tokens,
            pad_token_id=self._end,
        )[:, ids.shape[1] :]

    def _answer(self, read: int, written: list[int]) -> str | None:
        """The text of the tokens that were *written* after so many *read*; None if they were cut off."""
        ends = self._model.generation_config.eos_token_id
        ends = {self._end, *(ends if isinstance(ends, list) else [ends])}
        last = next((place for place, token in enumerate(written) if token in ends), None)
        report_usage(Usage(1, read, len(written) if last is None else last + 1), ended="length" * (last is None))
        return None if last is None else str(self._tokenizer.decode(written[:last], skip_special_tokens=True))
