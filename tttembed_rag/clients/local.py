"""What models on this machine share: loading, text that stays text, and batches that fit in memory."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from operator import itemgetter, not_
from pathlib import Path
from typing import Any

import numpy as np

from tttembed_rag.errors import InputError, JudgeError, TTTEmbedError, raised, require

# What other distributions take to ask the hub.
__all__ = ["first_line", "why_unreachable", "without_bars"]

# Seconds to wait for a connection to the hub of models and data sets; its own clients would try again for minutes.
_PATIENCE = 5.0
# The most characters of a token; a text is cut to so many per token before it is tokenised.
MOST_CHARACTERS_PER_TOKEN = 16
# Tokens of a batch, padding included, where the caller names no number: enough to keep a CPU, or an accelerator, busy.
_BATCH_TOKENS = 4_096, 32_768
# What a CPU and Apple's devices say where memory ended.
_OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")
_log = logging.getLogger(__name__)
# Values of each weight that enter the digest, from either end.
_SAMPLED = 64

EXTRA = "local"


def load(
    auto_class: str,
    model: str,
    *,
    revision: str | None,
    device: str | None,
    dtype: str | None,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """A model of transformers in evaluation mode, and the fast tokenizer beside it.

    *auto_class* is ``AutoModelForCausalLM`` or ``AutoModelForSequenceClassification``. A device of None takes an
    accelerator where there is one; a dtype of None is full precision on a CPU, and the model's own elsewhere. Code that
    stands beside the model is run where *trust_remote_code* says so.
    """
    torch, transformers = require("torch", EXTRA), require("transformers", EXTRA)
    accelerator = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = device or accelerator
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    with loading(model, "transformers", JudgeError, extra=EXTRA) as away:
        named = {"revision": revision, "local_files_only": away, "trust_remote_code": trust_remote_code}
        loaded = getattr(transformers, auto_class).from_pretrained(model, dtype=dtype, **named)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, **named)
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"{model}: expected a tokenizer.json, found a tokenizer without one")
    return loaded.to(device).eval(), tokenizer


@contextmanager
def loading(model: str, library: str, failure: type[TTTEmbedError], *, extra: str) -> Iterator[bool]:
    """A block in which *library* loads *model*, from its folder or from the hub, without progress bars.

    The block is told whether the hub is away. It then loads what was downloaded before and asks no hub, for the
    libraries would try again for minutes. The *extra* of this package brings the library. Where a model cannot be
    loaded, *failure* is raised in one line.
    """
    reason = None if Path(model).exists() else why_unreachable(extra=extra)
    try:
        with without_bars("transformers", extra=extra):
            yield reason is not None
    except (OSError, ValueError, KeyError, ImportError) as exc:
        away, why = f"; {reason}" if reason else "", first_line(exc)
        if "trust_remote_code" in str(exc):
            why = "it brings code of its own, which is run where the option trust_remote_code=true says so"
        raise failure(f"{model}: expected a model that {library} can load ({why}){away}") from exc


def why_unreachable(*, extra: str) -> str | None:
    """The reason why the hub cannot be reached; None if it answers, or HF_HUB_OFFLINE=1 says not to ask it.

    The *extra* of this package brings the hub's client.
    """
    hub = require("huggingface_hub", extra)
    constants = require("huggingface_hub.constants", extra)
    if constants.HF_HUB_OFFLINE:
        return None
    try:
        hub.get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as exc:  # noqa: BLE001 (its HTTP library changes, and any of its errors is a reason)
        return f"{constants.ENDPOINT} is not reachable: {first_line(exc) or type(exc).__name__}"
    return None


@contextmanager
def without_bars(library: str, *, extra: str) -> Iterator[None]:
    """A block in which *library*, ``transformers`` or ``datasets``, which *extra* brings, draws no progress bars."""
    bars = require(f"{library}.utils.logging", extra)
    were_on = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            bars.enable_progress_bar()


def first_line(exc: BaseException) -> str:
    """The first line of an error's message; the libraries of the hub add pages of advice."""
    return str(exc).strip().partition("\n")[0]


def weights_digest(model: Any) -> str:
    """A hash of the model's class and of values sampled from each of its weights.

    It stays the same where a folder is moved, and changes where its model is replaced.
    """
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().flatten()
        ends = [flat[:_SAMPLED], flat[-_SAMPLED:]]
        values = [end.float().cpu().numpy().tobytes() for end in ends]
        digest.update(json.dumps([name, list(weight.shape), str(weight.dtype)]).encode() + b"".join(values))
    return digest.hexdigest()[:16]


def short_name(model: str) -> str:
    """The last part of a model's name or folder."""
    return Path(model.rstrip("/")).name or model


class PlainTokenizer:
    """Tokenises text as text: no token that means structure can come out of it. Pairs have *tokens* at most.

    A fast *tokenizer* of transformers turns `<|im_end|>` in a text into the token that ends a turn. Here it becomes the
    pieces of its characters. Structure are special tokens, those in angle brackets, and those that the chat template
    writes; other added tokens are words of the model's own.
    """

    def __init__(self, tokenizer: Any, tokens: int | None = None) -> None:
        recipe = json.loads(tokenizer.backend_tokenizer.to_str())
        template = str(tokenizer.chat_template or "")
        words = [
            token
            for token in recipe["added_tokens"]
            if not (
                token["special"]
                or re.fullmatch("<.+>", word := token["content"])
                or (word.strip() and word in template)
            )
        ]
        added = {token["id"] for token in recipe["added_tokens"]} - {token["id"] for token in words}
        self._structure = (added | set(tokenizer.all_special_ids)) - {tokenizer.unk_token_id}
        recipe.update(added_tokens=words, truncation=None, padding=None)
        self._plain = require("tokenizers", EXTRA).Tokenizer.from_str(json.dumps(recipe))
        # Without the others they have other numbers.
        renamed = {self._plain.token_to_id(token["content"]): token["id"] for token in words}
        self._words = {plain: own for plain, own in renamed.items() if plain != own}
        self._unknown = self._plain.encode("?", add_special_tokens=False).ids[0]
        if tokens is not None:
            self._plain.enable_truncation(tokens, strategy="longest_first")

    def ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Token ids of each text, without a frame."""
        return [self._text_only(e.ids) for e in self._plain.encode_batch(list(texts), add_special_tokens=False)]

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Ids and segment ids of each query with its document in the model's own frame; the longer is cut first."""
        encoded = self._plain.encode_batch(list(pairs))
        return [(self._text_only(e.ids, frame=e.special_tokens_mask), e.type_ids) for e in encoded]

    def _text_only(self, ids: list[int], frame: Sequence[int] | None = None) -> list[int]:
        """The ids; where a vocabulary of pieces still names a token of structure, the id of a question mark."""
        of_text = ids if frame is None else compress(ids, map(not_, frame))
        if (self._structure | self._words.keys()).isdisjoint(of_text):
            return ids
        framed = zip(ids, frame or [0] * len(ids), strict=True)
        texts = ((token if own else self._words.get(token, token), own) for token, own in framed)
        return [token if own or token not in self._structure else self._unknown for token, own in texts]


def padded(rows: Sequence[Sequence[int]], value: int, device: Any) -> Any:
    """The tensor (n, longest) of *rows* of whole numbers, each filled up on its right with *value*."""
    table = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    tensor = require("torch", EXTRA).from_numpy(table)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # else it would wait for what the card does by now


class Batches:
    """Runs rows of different lengths in batches of at most so many *tokens*, smaller ones if memory ends.

    Padding counts. None chooses the number by *device*: ``cpu`` or the name of an accelerator. Errors have the *name*
    of the model.
    """

    def __init__(self, tokens: int | None, device: str, name: str = "judge") -> None:
        if tokens is not None and tokens < 1:
            raise InputError(f"batch_tokens: expected at least 1, got {tokens}")
        self._one_at_a_time, self._name = threading.RLock(), name
        self.tokens = tokens or _BATCH_TOKENS[device != "cpu"]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block in which the model reads for this thread alone: what is killed in it is lost for one caller."""
        with self._one_at_a_time, require("torch", EXTRA).inference_mode():
            yield

    def run(self, lengths: Sequence[int], forward: Callable[[list[int]], Any], *, shared: int = 0) -> list[Any]:
        """The value that *forward* gives each row, in order; it gives a tensor (n,) for n rows of like length.

        The *lengths* are the tokens of each row, beside those *shared* in front of every row, in memory once per row.
        A row that does not fit in memory by itself is NaN.

        Raises:
            JudgeError: Not even one row fits in memory, or the model fails.
        """
        torch = require("torch", EXTRA)
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        first, batches, too_long = 0, [], torch.tensor([torch.nan])
        with self.reading():
            while first < len(order):
                length = shared + lengths[order[first]]
                rows = order[first : first + max(1, self.tokens // length)]
                try:
                    batches.append(forward(rows))
                except Exception as exc:  # a model may raise anything
                    if not out_of_memory(exc):
                        brief = (
                            f"{self._name}: expected {len(rows)} scores of {length} tokens at most, got {raised(exc)}:"
                        )
                        raise JudgeError(brief, first_line(exc)) from exc
                    torch.cuda.empty_cache()
                    if len(rows) > 1:
                        self.tokens = len(rows) // 2 * length
                        continue
                    brief = f"{self._name}: expected {length} tokens to fit in memory"
                    batches.append(too_long)
                    if len(batches) == len(lengths) and all(batch is too_long for batch in batches):
                        raise JudgeError(brief) from exc
                    _log.warning("%s", brief)
                first += len(rows)
            # Read once all are under way: a card works on one batch while the next is made.
            values = [value for batch in batches for value in batch.tolist()]
        return [value for _, value in sorted(zip(order, values, strict=True), key=itemgetter(0))]


def out_of_memory(exc: Exception) -> bool:
    """Whether *exc* says that memory ended, in the words of torch for any device."""
    return isinstance(exc, require("torch", EXTRA).OutOfMemoryError) or bool(_OUT_OF_MEMORY.search(str(exc)))
