"""A chat model of transformers on this machine as a function from prompt to answer."""

from __future__ import annotations

import threading
from typing import Any

from tttembed_rag.clients.local import EXTRA, PlainTokenizer, weights_digest
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
        self._one_at_a_time = threading.Lock()
        self.name = f"{name}@{weights_digest(model)}"
        self.settings = f"t={TEMPERATURE} p={TOP_P} k={TOP_K} n={new_tokens} seed={seed} frame={frame}"

    def __call__(self, prompt: str) -> str | None:
        """The answer to *prompt*; None if it was cut off."""
        torch = require("torch", EXTRA)
        (text,) = self._text.ids([prompt])
        ids = torch.tensor([self._head + text + self._tail], device=self._model.device)
        with self._one_at_a_time, torch.inference_mode(), torch.random.fork_rng():
            torch.manual_seed(self._seed)
            written = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=TEMPERATURE,
                top_p=TOP_P,
                top_k=TOP_K,
                max_new_tokens=self._new_tokens,
                pad_token_id=self._tokenizer.eos_token_id,
            )[0, ids.shape[1] :]
        ends = self._model.generation_config.eos_token_id
        ends = {self._tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        is_whole = len(written) and int(written[-1]) in ends
        report_usage(Usage(1, ids.shape[1], len(written)), ended="" if is_whole else "length")
        if not is_whole:
            return None
        answer: str = self._tokenizer.decode(written, skip_special_tokens=True)
        return answer
