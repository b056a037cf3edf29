"""Rerankers that answer yes or no: Qwen3-Reranker and models trained like it.

The recipe is the model's own: a frame that must not be cut, the text of the pair between, and the
float32 softmax over the two raw logits at the last position (Eq. 5 of the paper). The tokens that
all documents of a query share, frame and query, are read once: on a CPU their keys and values are
kept, on a card documents of many queries stand side by side in one sequence.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from tttembed_rag.clients.fingerprints import INSTRUCTION, fingerprint_of
from tttembed_rag.clients.local import (
    EXTRA,
    MOST_CHARACTERS_PER_TOKEN,
    Batches,
    PlainTokenizer,
    out_of_memory,
    padded,
    weights_digest,
)
from tttembed_rag.clients.usage import Usage, estimated_tokens, report_usage
from tttembed_rag.errors import InputError, JudgeError, require
from tttembed_rag.judges.contract import ByRequests, Request, Scores
from tttembed_rag.judges.documents import Screened
from tttembed_rag.judges.packing import FILLED, Packed, blocks_of, mask_of, packed, shared_tokens
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
# Pairs of a call on a card, and tokens of a packed sequence; what does not fill half of one is padded instead.
_PAIRS, _SEQUENCE = 2_048, 8_192

_log = logging.getLogger(__name__)


class YesNoJudge(ByRequests):
    """P(yes) of a causal reranker.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its fast tokenizer.
        name: Its name in fingerprints and errors.
        instruction: What counts as relevant; part of the fingerprint.
        max_tokens: Tokens of frame and pair together; only the document's end is ever cut.
        batch_tokens: Tokens of a batch; None chooses by device.
        pooled: Whether pairs of several queries are read together; None does so off the CPU, where it is faster, of
            models with plain layers.
        compile_after: Seconds of reading packed sequences after which the model is compiled for them.
    """

    documents_per_call = 128
    scale = Scale("probability")

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str = "reranker",
        instruction: str = INSTRUCTION,
        max_tokens: int = 8192,
        batch_tokens: int | None = None,
        pooled: bool | None = None,
        compile_after: float = 10.0,
    ) -> None:
        if tokenizer is None:
            raise InputError(
                "tokenizer: expected that of a loaded model, got none: open_judge('yesno:PATH') loads both"
            )
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
        # Layers that attend to all that stands before; others see more in a sequence than a row of its own holds.
        plain = set(getattr(model.config, "layer_types", None) or [""]) == {"full_attention"}
        self._pooled = plain and (model.device.type != "cpu" if pooled is None else pooled)
        self._sequence, self._on_cuda = _SEQUENCE, model.device.type == "cuda"
        # Seconds that packed sequences were read for, after so many of which the model is compiled.
        self._packing, self._compile_after, self._compiled = 0.0, compile_after, False
        self._head = model.get_output_embeddings().weight.detach()[self._answers].float().T
        self.pairs_per_call = _PAIRS if self._pooled else 0
        weights, prompt = weights_digest(model), [PREFIX, BODY, SUFFIX]
        self.fingerprint = fingerprint_of(
            "yesno", name, weights=weights, prompt=prompt, instruction=instruction, tokens=max_tokens
        )

    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """P(yes) for each of *requests*; None where a query leaves no room. On a card all are read together."""
        screened = Screened.of(requests, self._room * MOST_CHARACTERS_PER_TOKEN)
        pairs = ((query, text) for query, texts in screened.requests for text in ("", *texts))
        frame = {"instruction": self._instruction}
        bodies = iter(self._text.ids(BODY.format_map({**frame, "query": q, "document": text}) for q, text in pairs))
        rows_of = []
        for _, texts in screened.requests:
            head, *own = islice(bodies, 1 + len(texts))
            has_room = len(head) < self._room
            rows_of.append([self._prefix + body[: self._room] + self._suffix for body in own if has_room])
        judged = [rows for rows in rows_of if rows]
        if self._pooled:
            with self._batches.reading():
                left = iter(self._pooled_scores(judged))
        else:  # query by query, so that others are asked between the batches
            left = iter([score for rows in judged for score in self._after_head(rows)])
        by_query = zip(screened.requests, rows_of, strict=True)
        return screened.spread([next(left) if rows else None for (_, texts), rows in by_query for _ in texts])

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """An upper estimate of the tokens that scoring will read."""
        shared = len(self._prefix) + estimated_tokens(self._instruction, query) + len(self._suffix)
        return Usage(input_tokens=sum(shared + min(self._room, estimated_tokens(text)) for text in documents))

    def _after_head(self, rows: Sequence[list[int]]) -> list[float]:
        """P(yes) after each of the *rows* of one query; what all share is read once, and kept as keys and values."""
        shared, memory = shared_tokens(rows) if len(rows) > 1 else 0, None
        if shared:
            ids = padded([rows[0][:shared]], 0, self._model.device)
            with require("torch", EXTRA).inference_mode():
                memory = self._model.base_model(input_ids=ids, use_cache=True).past_key_values
        return self._by_length([row[shared:] for row in rows], memory, shared)

    def _by_length(self, rows: Sequence[list[int]], memory: Any = None, shared: int = 0) -> list[float]:
        """P(yes) after *shared* tokens, read as *memory*, and each of *rows*, those of like length together."""
        lengths = [len(row) for row in rows]
        report_usage(Usage(input_tokens=shared + sum(lengths)))
        return self._batches.run(
            lengths, lambda batch: self._padded([rows[row] for row in batch], memory), shared=shared
        )

    def _padded(self, rows: Sequence[list[int]], memory: Any) -> Any:
        """P(yes) (n,) after *memory* and each of *rows*, padded on the right: what stands behind is never seen."""
        past, device = copy.deepcopy(memory), self._model.device
        if past is not None:
            past.batch_repeat_interleave(len(rows))
        eager = require("torch", EXTRA).compiler.set_stance("force_eager") if self._compiled else nullcontext()
        with eager:  # lengths differ from batch to batch
            hidden = self._model.base_model(
                input_ids=padded(rows, 0, device), past_key_values=past, use_cache=past is not None
            ).last_hidden_state
        ends = padded([[len(row) - 1] for row in rows], 0, device)
        return self._p_yes(hidden.take_along_dim(ends[:, :, None], dim=1)[:, 0])

    def _pooled_scores(self, queries: Sequence[Sequence[list[int]]]) -> list[float]:
        """P(yes) after each row of all *queries*: in packed sequences, or where these gain nothing by length."""
        rows = [row for own in queries for row in own]
        lengths = [len(row) for row in rows]
        while self._sequence and max(lengths, default=0) <= self._sequence <= 2 * sum(lengths):
            try:
                return self._in_sequences(queries)
            except Exception as exc:  # noqa: BLE001 (what compiles kernels may raise anything)
                if not out_of_memory(exc):
                    _log.warning("%s: pairs are padded, for they cannot be packed", self.fingerprint, exc_info=True)
                    self._sequence = 0
                self._sequence //= 2
                require("torch", EXTRA).cuda.empty_cache()
        return self._by_length(rows)

    def _in_sequences(self, queries: Sequence[Sequence[list[int]]]) -> list[float]:
        """P(yes) after each row of *queries*, packed; the model is compiled once it has read so for long enough."""
        own, began = self._model.config._attn_implementation, time.monotonic()  # noqa: SLF001 (no public name)
        if self._on_cuda and not self._compiled and self._packing >= self._compile_after:
            self._compiled = True
            for layer in self._model.base_model.layers:  # all of which share what is compiled for the first
                layer.compile(dynamic=False)
        fed, under_way = 0, []
        try:
            self._model.set_attn_implementation("flex_attention" if self._on_cuda else "sdpa")
            for sequence in packed(queries, self._sequence):
                fed += len(sequence)
                under_way.append(self._read(sequence))
            # Taken once all are under way: the card works while sequences are laid.
            scores = [score for values in under_way for score in values.tolist()]
        finally:
            self._model.set_attn_implementation(own)
        self._packing += time.monotonic() - began
        report_usage(Usage(input_tokens=fed))
        return scores

    def _read(self, sequence: Packed) -> Any:
        """P(yes) (n,) at the ends of a *sequence*."""
        if self._on_cuda:  # kernels are made for one length
            sequence.add([0] * (self._sequence - len(sequence)), 0, FILLED, FILLED)
        ids, places, *numbers = padded(sequence.columns, 0, self._model.device)
        attention = (blocks_of if self._on_cuda else mask_of)(*numbers)
        hidden = self._model.base_model(
            input_ids=ids[None], position_ids=places[None], attention_mask=attention, use_cache=False
        ).last_hidden_state
        return self._p_yes(hidden[0, padded([sequence.ends], 0, self._model.device)[0]])

    def _p_yes(self, hidden: Any) -> Any:
        """P(yes) (n,) by the last states (n, width): of all words the head is asked for two."""
        return (hidden.float() @ self._head).softmax(dim=-1)[:, 1]
