"""Rerankers that answer yes or no: Qwen3-Reranker and models trained like it.

The recipe is the model's own: a frame that must not be cut, the text of the pair between, and the
float32 softmax over the two raw logits at the last position (Eq. 5 of the paper). The tokens that
all documents of a query share, frame and query, are read once and their keys and values reused.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from tttembed_rag.clients.fingerprints import INSTRUCTION, fingerprint_of
from tttembed_rag.clients.local import EXTRA, MOST_CHARACTERS_PER_TOKEN, Batches, PlainTokenizer, weights_digest
from tttembed_rag.clients.usage import Usage, estimated_tokens, report_usage
from tttembed_rag.errors import InputError, JudgeError, require
from tttembed_rag.judges.contract import Blocking, Scores
from tttembed_rag.judges.documents import Screened, readable
from tttembed_rag.rewards.scales import Scale

PREFIX = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
BODY = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_TURNS = "<|im_start|>", "<|im_end|>"


class YesNoJudge(Blocking):
    """P(yes) of a causal reranker.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its fast tokenizer.
        name: Its name in fingerprints and errors.
        instruction: What counts as relevant; part of the fingerprint.
        max_tokens: Tokens of frame and pair together; only the document's end is ever cut.
        batch_tokens: Tokens of a batch; None chooses by device.
    """

    documents_per_call = 128
    scale = Scale("probability")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "reranker",
        instruction: str = INSTRUCTION,
        max_tokens: int = 8192,
        batch_tokens: int | None = None,
    ) -> None:
        self._model = model
        self._text = PlainTokenizer(tokenizer)
        self._prefix, self._suffix = (tokenizer.encode(part, add_special_tokens=False) for part in (PREFIX, SUFFIX))
        self._room = max_tokens - len(self._prefix) - len(self._suffix)
        if self._room < 1:
            raise InputError(f"max_tokens: expected more than the frame's {max_tokens - self._room}, got {max_tokens}")
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in ("no", "yes", *_TURNS)]
        if any(len(own) != 1 or own[0] == tokenizer.unk_token_id for own in ids):
            texts = f"no, yes, {' and '.join(_TURNS)}"
            raise JudgeError(f"{name}: expected {texts} to be one token each, as in Qwen3-Reranker (is it one?)")
        self._answers = [token for (token,) in ids[:2]]
        self._instruction = instruction
        self._batches = Batches(batch_tokens, model.device.type, name)
        weights, prompt = weights_digest(model), [PREFIX, BODY, SUFFIX]
        self.fingerprint = fingerprint_of(
            "yesno", name, weights=weights, prompt=prompt, instruction=instruction, tokens=max_tokens
        )

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """P(yes) per document; None for a document without text, or where the query leaves no room for one."""
        limit = self._room * MOST_CHARACTERS_PER_TOKEN
        screened = Screened.of(documents, limit)
        query = readable(query, limit)
        head, *bodies = self._text.ids(
            BODY.format_map({"instruction": self._instruction, "query": query, "document": text})
            for text in ("", *screened.texts)
        )
        if not bodies or len(head) >= self._room:
            return [None] * screened.total
        rows = [self._prefix + body[: self._room] + self._suffix for body in bodies]
        # At least one token of each is left.
        common = len(commonprefix(rows))  # noqa: RUF071 (of lists of tokens, not of paths)
        shared = min(common, min(map(len, rows)) - 1) if len(rows) > 1 else 0
        rests, torch = [row[shared:] for row in rows], require("torch", EXTRA)
        memory = None
        if shared:
            ids = torch.tensor([rows[0][:shared]], device=self._model.device)
            with torch.inference_mode():
                memory = self._model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        scores = self._batches.run(
            [len(rest) for rest in rests],
            lambda batch: self._p_yes([rests[row] for row in batch], memory, shared),
            shared=shared,
        )
        report_usage(Usage(input_tokens=shared + sum(len(rest) for rest in rests)))
        return screened.spread(scores)

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """An upper estimate of the tokens that scoring will read."""
        shared = len(self._prefix) + estimated_tokens(self._instruction, query) + len(self._suffix)
        return Usage(input_tokens=sum(shared + min(self._room, estimated_tokens(text)) for text in documents))

    def _p_yes(self, rests: Sequence[list[int]], memory: Any, shared: int) -> list[float]:
        """P(yes) after the *shared* tokens, read as *memory*, and each of *rests*, padded between the two."""
        torch, device = require("torch", EXTRA), self._model.device
        longest = max(len(rest) for rest in rests)
        ids = torch.zeros((len(rests), longest), dtype=torch.long)
        mask = torch.ones((len(rests), shared + longest), dtype=torch.long)
        places = torch.zeros_like(ids)
        for row, rest in enumerate(rests):
            ids[row, longest - len(rest) :] = torch.tensor(rest)
            mask[row, shared : shared + longest - len(rest)] = 0
            places[row, longest - len(rest) :] = torch.arange(shared, shared + len(rest))
        past = copy.deepcopy(memory)
        if past is not None:
            past.batch_repeat_interleave(len(rests))
        logits = self._model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=places.to(device),
            past_key_values=past,
            use_cache=past is not None,
            logits_to_keep=1,
        ).logits[:, -1, self._answers]
        p_yes: list[float] = logits.float().softmax(dim=-1)[:, 1].tolist()
        return p_yes
