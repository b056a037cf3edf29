"""Open batches in the file of paid scores, as `tttembed judge --batch` keeps them from one run to the next."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Self

from tttembed_rag.errors import JudgeError
from tttembed_rag.judging.batching.openbatch import OpenBatch
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.system.keyed import KeyedRows

_COLUMNS = ("slot BLOB", "batch TEXT NOT NULL", "open INTEGER NOT NULL", "pairs BLOB NOT NULL")
# Bytes of the key of a pair.
_KEY = 32
# Slots that are looked at together.
_AT_ONCE = 100


class FiledBatches:
    """The open batches of a judge in the file of paid scores: `Books` of one process after the other.

    Each batch has a slot of its own, and the first batch in a slot stays: of two processes that send at once, one is
    refused before it has sent anything.
    """

    def __init__(self, rows: KeyedRows, judge: str) -> None:
        self._rows, self._judge = rows, judge
        self._slots: dict[str, bytes] = {}  # of the batches that were seen, by their keys

    @classmethod
    def at(cls, path: Path | None, judge: str) -> FiledBatches:
        """Those in the file at *path*; None keeps them in memory."""
        return cls(KeyedRows(path, "batches", _COLUMNS, kind="a score cache"), judge)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the file go."""
        self._rows.close()

    def now(self) -> float:
        """Unix seconds by the clock of this machine."""
        return time.time()

    def open(self) -> list[OpenBatch]:
        """The open batches, oldest first."""
        return [batch for batch, is_open in self._all() if is_open]

    def asked(self, batch: OpenBatch) -> frozenset[bytes]:
        """The keys of the pairs that *batch* asks about."""
        ((_, _, _, pairs),) = self._rows.get([self._slots[batch.key]])
        return frozenset(pairs[at : at + _KEY] for at in range(0, len(pairs), _KEY))

    def lost(self) -> tuple[float, float]:
        """Tokens and US dollars of batches that were struck off, and gave no answers for them."""
        closed = [batch for batch, is_open in self._all() if not is_open]
        return sum(batch.tokens for batch in closed), sum(batch.usd for batch in closed)

    def add(self, batch: OpenBatch, keys: AbstractSet[bytes]) -> OpenBatch:
        """Write a batch about pairs with these *keys* down before it is sent.

        Raises:
            JudgeError: Another process has sent one since `open` was asked.
        """
        slot = self._slot(len(self._slots))
        self._rows.put([(slot, json.dumps(asdict(batch)), 1, b"".join(keys))])
        ((_, kept, _, _),) = self._rows.get([slot])
        if json.loads(kept)["key"] != batch.key:
            raise JudgeError(f"{self._judge}: expected one process that sends its batches, found another one")
        self._slots[batch.key] = slot
        return batch

    def note(self, batch: OpenBatch) -> OpenBatch:
        """Write down what is known of a batch by now."""
        return self._replace(batch, batch, is_open=True)

    def close(self, batch: OpenBatch, *, lost: float = 0.0) -> None:
        """Strike a batch off; what is *lost* stays counted."""
        self._replace(batch, replace(batch, tokens=lost * batch.tokens, usd=lost * batch.usd), is_open=False)

    def _replace(self, batch: OpenBatch, by: OpenBatch, *, is_open: bool) -> OpenBatch:
        keys = b"".join(self.asked(batch)) if is_open else b""
        self._rows.put([(self._slots[batch.key], json.dumps(asdict(by)), int(is_open), keys)], replace=True)
        return by

    def _slot(self, number: int) -> bytes:
        return pair_key(self._judge, "batch", str(number))

    def _all(self) -> Iterator[tuple[OpenBatch, bool]]:
        """All batches, and whether each is open."""
        for first in count(step=_AT_ONCE):
            slots = [self._slot(number) for number in range(first, first + _AT_ONCE)]
            rows = {slot: (text, is_open) for slot, text, is_open, _ in self._rows.get(slots)}
            for slot in slots[: len(rows)]:
                text, is_open = rows[slot]
                batch = OpenBatch.of(json.loads(text))
                self._slots[batch.key] = slot
                yield batch, bool(is_open)
            if len(rows) < _AT_ONCE:
                return
