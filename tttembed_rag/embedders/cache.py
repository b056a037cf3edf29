"""Vectors by text in one SQLite file: no text is embedded twice, and a killed run goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.embedders.contract import Embedder, RoleEmbedder, check_width, in_role
from tttembed_rag.system.keyed import KeyedRows
from tttembed_rag.vectors.checks import FloatArray


class VectorCache(KeyedRows):
    """Vectors by a hash of the embedder's fingerprint, the role (query or document) and the text."""

    @classmethod
    def open(cls, path: Path | None) -> VectorCache:
        """The cache at *path*, made if absent; None keeps it in memory.

        Raises:
            DataError: The file is no such cache, or cannot be written.
        """
        return cls(path, "vectors", ("text BLOB", "vector BLOB NOT NULL"), kind="a vector cache")

    def get(self, keys: Sequence[bytes]) -> dict[bytes, FloatArray]:
        """The vectors (d,) that are kept, of *keys*."""
        return {key: np.frombuffer(vector, dtype=np.float32) for key, vector in self.rows(keys)}

    def put(self, vectors: Mapping[bytes, FloatArray]) -> None:
        """Keep *vectors*, all or none; a first vector stays."""
        self.add((key, vector.astype(np.float32).tobytes()) for key, vector in vectors.items())


class CachedEmbedder(RoleEmbedder):
    """An embedder with a cache: the model embeds only texts that the cache has no vector of.

    New vectors are written after every *at_once* texts, the most that a killed run loses; then *watch* is called with
    their number.
    """

    def __init__(
        self,
        embedder: Embedder,
        cache: VectorCache,
        *,
        at_once: int = 512,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self._embedder = embedder
        self._cache = cache
        self._at_once = at_once
        self._watch = watch or (lambda _: None)
        self.fingerprint = embedder.fingerprint
        self._width: int | None = None

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:
        role = "document" if place else "query"
        vectors: FloatArray | None = None
        for start in range(0, len(texts), self._at_once):
            part = texts[start : start + self._at_once]
            keys = [pair_key(self.fingerprint, role, text) for text in part]
            by_key = self._cache.get(keys)
            if missing := {key: text for key, text in zip(keys, part, strict=True) if key not in by_key}:
                fresh = dict(
                    zip(missing, self._checked(in_role(self._embedder, list(missing.values()), place)), strict=True)
                )
                self._cache.put(fresh)
                by_key |= fresh
            if vectors is None:
                vectors = np.empty((len(texts), len(by_key[keys[0]])), dtype=np.float32)
            for row, key in enumerate(keys, start):
                vectors[row] = self._checked(by_key[key])
            self._watch(len(part))
        return in_role(self._embedder, [], place) if vectors is None else vectors

    def _checked(self, vectors: FloatArray) -> FloatArray:
        self._width = self._width or vectors.shape[-1]
        check_width(self.fingerprint, vectors, self._width)
        return vectors
