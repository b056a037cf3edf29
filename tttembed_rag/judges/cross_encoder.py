"""Cross-encoders: query and document in one sequence, one logit out."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal

from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.clients.local import MOST_CHARACTERS_PER_TOKEN, Batches, PlainTokenizer, padded, weights_digest
from tttembed_rag.clients.usage import Usage, estimated_tokens, report_usage
from tttembed_rag.errors import InputError
from tttembed_rag.judges.contract import ByRequests, Request, Scores
from tttembed_rag.judges.documents import Screened
from tttembed_rag.rewards.scales import Scale

# Tokens of a pair where neither tokenizer nor model names a limit.
_DEFAULT_LENGTH = 512
# Pairs of a call on a CPU, which should say soon how far it is, and on an accelerator; tokens of a batch on a CPU:
# larger ones only pad more.
_PAIRS, _ON_CPU = (512, 4_096), 2_048


class CrossEncoderJudge(ByRequests):
    """A sequence classifier with one label as a judge.

    Args:
        model: A sequence classifier of transformers with one label.
        tokenizer: Its fast tokenizer.
        scale: ``probability`` gives the logistic function of the logit, ``logit`` the logit itself. The
            logit is taken from the model, so nothing has to be guessed about its activation.
        name: Its name in fingerprints and errors.
        max_tokens: Tokens of a pair, None as many as tokenizer and model allow; the longer of query and
            document is cut first.
        batch_tokens: Tokens of a batch; None chooses by device.
    """

    documents_per_call = 256

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        scale: Literal["probability", "logit"] = "probability",
        name: str = "cross-encoder",
        max_tokens: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if tokenizer is None:
            raise InputError(
                "tokenizer: expected that of a loaded model, got none: open_judge('cross-encoder:PATH') loads both"
            )
        if model.config.num_labels != 1:
            raise InputError(f"{name}: expected a classifier with one label, got {model.config.num_labels}")
        if scale not in ("probability", "logit"):
            raise InputError(f"scale: expected probability or logit for a cross-encoder, got {scale!r}")
        config = model.config.get_text_config()
        self._tokens = max_tokens or min(tokenizer.model_max_length, _places(model))
        self._model = model
        self._text = PlainTokenizer(tokenizer, self._tokens)
        names = inspect.signature(model.forward).parameters
        self._segmented = "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in names
        if config.pad_token_id is None:  # by which a causal model finds the last token of each row
            config.pad_token_id = tokenizer.pad_token_id
        self._pad = config.pad_token_id or 0
        if batch_tokens is None and model.device.type == "cpu":
            batch_tokens = _ON_CPU
        self._batches = Batches(1 if config.pad_token_id is None else batch_tokens, model.device.type, name)
        self.pairs_per_call = _PAIRS[model.device.type != "cpu"]
        self.scale = Scale(scale)
        self.fingerprint = fingerprint_of(
            "cross-encoder", name, weights=weights_digest(model), scale=scale, tokens=self._tokens
        )

    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """The scores of each of *requests*: pairs of like length are read together, whatever their query."""
        screened = Screened.of(requests, self._tokens * MOST_CHARACTERS_PER_TOKEN)
        pairs = self._text.pairs(screened.pairs)
        lengths = [len(ids) for ids, _ in pairs]
        logits = self._batches.run(lengths, lambda rows: self._logits([pairs[row] for row in rows]))
        report_usage(Usage(input_tokens=sum(lengths)))
        return screened.spread(logits)

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """An upper estimate of the tokens that scoring will read."""
        return Usage(input_tokens=sum(min(self._tokens, 4 + estimated_tokens(query, text)) for text in documents))

    def _logits(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Any:
        device, rows = self._model.device, [ids for ids, _ in pairs]
        inputs = {"input_ids": padded(rows, self._pad, device)}
        if len({len(ids) for ids in rows}) > 1:  # else nothing is padded: the faster kernel
            inputs["attention_mask"] = padded([[1] * len(ids) for ids in rows], 0, device)
        if self._segmented:
            inputs["token_type_ids"] = padded([types for _, types in pairs], 0, device)
        logits = self._model(**inputs).logits.float()[:, 0]
        return logits.sigmoid() if self.scale.kind == "probability" else logits


def _places(model: Any) -> int:
    """The tokens that *model* has places for; those of RoBERTa's family begin behind that of the padding."""
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return int(module.num_embeddings) - int(padding) - 1
    places = int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 0)
    return places if places > 0 else _DEFAULT_LENGTH
