"""Document vectors by text: supplied, remembered by content, or embedded again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock

import numpy as np
from cachetools import LRUCache
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError
from tttembed_rag.vectors.checks import FloatArray

_log = logging.getLogger(__name__)
# Ids of a store that are remembered.
_IDS = 20_000


class TextVectors:
    """Document vectors of one embedding model by text: supplied where possible, else remembered, else embedded.

    Args:
        stored: Ids to the vectors that a store has under them, asked once for all texts with an id that was noted.
            Texts that it lacks are embedded; if it fails, that is logged, and all texts are embedded.
        max_bytes: Bytes of vectors that are remembered, in single precision; the least recently used are forgotten
            first.

    Attributes:
        supplied: Vectors that *stored* gave.
        remembered: Vectors that were embedded before.
        embedded: Vectors that had to be embedded again.
    """

    def __init__(
        self,
        *,
        stored: Callable[[list[str]], Mapping[str, ArrayLike]] | None = None,
        max_bytes: int = 64 * 2**20,
    ) -> None:
        self.supplied = self.remembered = self.embedded = 0
        self._stored = stored
        self._max_bytes = max_bytes
        self._kept: LRUCache[bytes, NDArray[np.float32]] = LRUCache(max_bytes, getsizeof=lambda vector: vector.nbytes)
        self._ids: LRUCache[bytes, str] = LRUCache(_IDS)
        self._lock = Lock()

    def __reduce__(self) -> tuple[Callable[[], TextVectors], tuple[()]]:
        """Where vectors come from, with nothing remembered: a copy, or another process, starts with it."""
        return partial(TextVectors, stored=self._stored, max_bytes=self._max_bytes), ()

    def __repr__(self) -> str:
        return f"TextVectors({self.supplied} supplied, {self.remembered} remembered, {self.embedded} embedded)"

    def note(self, ids: Iterable[tuple[str, str | None]]) -> None:
        """Remember under which id the store has a text, for pairs (text, id); an id of None is passed over."""
        if self._stored is None:
            return
        addresses = [(_address(text), key) for text, key in ids if key is not None]
        with self._lock:
            self._ids.update(addresses)

    def of(
        self, texts: Sequence[str], embed_documents: Callable[[list[str]], Sequence[ArrayLike]]
    ) -> NDArray[np.float64]:
        """Vectors (n, d) of *texts*, in order; *embed_documents* is asked for the missing ones at once."""
        vectors, missing = self._without_model(texts)
        return self._joined(texts, vectors, missing, embed_documents(missing) if missing else [])

    async def aof(
        self, texts: Sequence[str], aembed_documents: Callable[[list[str]], Awaitable[Sequence[ArrayLike]]]
    ) -> NDArray[np.float64]:
        """Vectors (n, d) of texts, as `of` gives them, by an async model."""
        vectors, missing = await asyncio.to_thread(self._without_model, texts)  # a store may be far away
        return self._joined(texts, vectors, missing, await aembed_documents(missing) if missing else [])

    def _without_model(self, texts: Sequence[str]) -> tuple[dict[str, FloatArray], list[str]]:
        """The vectors that can be had without the model, by text, and the texts that need the model."""
        vectors: dict[str, FloatArray] = {**self._from_store(texts)}
        for text in dict.fromkeys(texts):
            if text in vectors:
                continue
            with self._lock:
                if (kept := self._kept.get(_address(text))) is not None:
                    vectors[text] = kept
                    self.remembered += 1
        return vectors, [text for text in dict.fromkeys(texts) if text not in vectors]

    def _from_store(self, texts: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        if self._stored is None:
            return {}
        with self._lock:
            ids = {text: self._ids[address] for text in texts if (address := _address(text)) in self._ids}
        try:
            stored = self._stored(list(set(ids.values()))) if ids else {}
            vectors = {text: np.asarray(stored[key], dtype=np.float64) for text, key in ids.items() if key in stored}
        except Exception:  # noqa: BLE001 - a store may raise anything, and its vectors only save time
            _log.exception("the store gave no vectors: %d documents are embedded", len(ids))
            return {}
        self.supplied += len(vectors)
        return vectors

    def _joined(
        self, texts: Sequence[str], vectors: Mapping[str, FloatArray], missing: list[str], embedded: Sequence[ArrayLike]
    ) -> NDArray[np.float64]:
        if len(embedded) != len(missing):
            raise InputError(f"embed_documents: expected one vector per text, {len(missing)}, got {len(embedded)}")
        fresh = {text: np.array(vector, dtype=np.float32) for text, vector in zip(missing, embedded, strict=True)}
        with self._lock:
            self.embedded += len(fresh)
            self._kept.update((_address(text), vector) for text, vector in fresh.items())
        _log.info("vectors of %d documents: %d had to be embedded", len(texts), len(fresh))
        every = {**vectors, **fresh}
        return np.array([every[text] for text in texts], dtype=np.float64)


def _address(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
