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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from tttembed_rag.judges.contract import Blocking, Request, Scores
from tttembed_rag.judges.documents import Screened, readable
from tttembed_rag.judges.packing import Packed, blocks_of, mask_of, packed, shared_tokens
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
# The number of the query, and of the document, of tokens that fill a sequence.
_FILLED = -2

_log = logging.getLogger(__name__)


class YesNoJudge(Blocking):
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
        tokenizer: Any,
        *,
        name: str = "reranker",
        instruction: str = INSTRUCTION,
        max_tokens: int = 8192,
        batch_tokens: int | None = None,
        pooled: bool | None = None,
        compile_after: float = 10.0,
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
        self._batches, self._name = Batches(batch_tokens, model.device.type, name), name
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

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """P(yes) per document; None for a document without text, or where the query leaves no room for one."""
        return self.score_many([(query, documents)])[0]

    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """The same for each of *requests*; on a card all are read together."""
        limit = self._room * MOST_CHARACTERS_PER_TOKEN
        screened = [Screened.of(documents, limit) for _, documents in requests]
        bodies = iter(
            self._text.ids(
                BODY.format_map({"instruction": self._instruction, "query": query, "document": text})
                for query, some in zip((readable(query, limit) for query, _ in requests), screened, strict=True)
                for text in ("", *some.texts)
            )
        )
        queries = []
        for some in screened:
            head, *own = islice(bodies, 1 + len(some.texts))
            has_room = len(head) < self._room
            queries.append([self._prefix + body[: self._room] + self._suffix for body in own if has_room])
        asked = [rows for rows in queries if rows]
        with self._batches.reading():
            scores = iter(
                self._pooled_scores(asked) if self._pooled else [p for rows in asked for p in self._after_head(rows)]
            )
        return [
            some.spread(list(islice(scores, len(rows))) or [None] * len(some.texts))
            for some, rows in zip(screened, queries, strict=True)
        ]

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """An upper estimate of the tokens that scoring will read."""
        shared = len(self._prefix) + estimated_tokens(self._instruction, query) + len(self._suffix)
        return Usage(input_tokens=sum(shared + min(self._room, estimated_tokens(text)) for text in documents))

    def _after_head(self, rows: Sequence[list[int]]) -> list[float]:
        """P(yes) after each of the *rows* of one query; what all share is read once, and kept as keys and values."""
        shared = shared_tokens(rows) if len(rows) > 1 else 0
        rests, memory = [row[shared:] for row in rows], None
        if shared:
            ids = padded([rows[0][:shared]], 0, self._model.device)
            memory = self._model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        report_usage(Usage(input_tokens=shared + sum(len(rest) for rest in rests)))
        return self._batches.run(
            [len(rest) for rest in rests],
            lambda batch: self._p_yes([rests[row] for row in batch], memory, shared),
            shared=shared,
        )

    def _p_yes(self, rests: Sequence[list[int]], memory: Any, shared: int) -> Any:
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
        return logits.float().softmax(dim=-1)[:, 1]

    def _pooled_scores(self, queries: Sequence[Sequence[list[int]]]) -> list[float]:
        """P(yes) after each row of all *queries*: in packed sequences, or where these gain nothing by length."""
        rows = [row for own in queries for row in own]
        lengths = [len(row) for row in rows]
        while self._sequence and max(lengths, default=0) <= self._sequence <= 2 * sum(lengths):
            try:
                return self._in_sequences(queries, len(rows))
            except Exception as exc:  # noqa: BLE001 (what compiles kernels may raise anything)
                if not out_of_memory(exc):
                    _log.warning("%s: pairs are padded, for they cannot be packed", self._name, exc_info=True)
                    self._sequence = 0
                self._sequence //= 2
                require("torch", EXTRA).cuda.empty_cache()
        report_usage(Usage(input_tokens=sum(lengths)))
        return self._batches.run(lengths, lambda batch: self._padded([rows[row] for row in batch]))

    def _in_sequences(self, queries: Sequence[Sequence[list[int]]], count: int) -> list[float]:
        """P(yes) after each of the *count* rows of *queries*, packed."""
        scores, under_way, fed, began = [0.0] * count, [], 0, time.monotonic()
        with self._attending("flex_attention" if self._on_cuda else "sdpa"):
            for sequence in packed(queries, self._sequence):
                fed += len(sequence.ids)
                under_way.append((sequence.rows, self._read(sequence)))
            for rows, values in under_way:  # taken once all are under way: the card works while sequences are laid
                for row, value in zip(rows, values.tolist(), strict=True):
                    scores[row] = value
        self._packing += time.monotonic() - began
        report_usage(Usage(input_tokens=fed))
        return scores

    @contextmanager
    def _attending(self, kernel: str) -> Iterator[None]:
        """A block in which the model attends by a *kernel* of transformers, compiled once that is worth it."""
        own = self._model.config._attn_implementation  # noqa: SLF001 (which has no public name)
        self._model.set_attn_implementation(kernel)
        if self._on_cuda and not self._compiled and self._packing >= self._compile_after:
            self._compiled = True
            for layer in self._model.base_model.layers:  # all of which share what is compiled for the first
                layer.compile(dynamic=False)
        try:
            yield
        finally:
            self._model.set_attn_implementation(own)

    def _read(self, sequence: Packed) -> Any:
        """P(yes) (n,) at the ends of a *sequence*."""
        device = self._model.device
        if self._on_cuda:  # kernels are made for one length
            sequence.add([0] * (self._sequence - len(sequence.ids)), 0, _FILLED, _FILLED)
        table = padded([sequence.ids, sequence.places, sequence.queries, sequence.documents], 0, device)
        attention = (blocks_of if self._on_cuda else mask_of)(table[2], table[3])
        hidden = self._model.base_model(
            input_ids=table[:1], position_ids=table[1:2], attention_mask=attention, use_cache=False
        ).last_hidden_state
        return self._p_yes_at(hidden[0, padded([sequence.ends], 0, device)[0]])

    def _padded(self, rows: Sequence[list[int]]) -> Any:
        """P(yes) (n,) after each of *rows*, padded on the right: what stands behind is never seen without a mask."""
        torch, device = require("torch", EXTRA), self._model.device
        with torch.compiler.set_stance("force_eager"):  # lengths differ from batch to batch
            hidden = self._model.base_model(input_ids=padded(rows, 0, device), use_cache=False).last_hidden_state
        ends = padded([[len(row) - 1] for row in rows], 0, device)
        return self._p_yes_at(hidden.take_along_dim(ends[:, :, None], dim=1)[:, 0])

    def _p_yes_at(self, hidden: Any) -> Any:
        """P(yes) (n,) by the last states (n, width): of all words the head is asked for two."""
        return (hidden.float() @ self._head).softmax(dim=-1)[:, 1]
