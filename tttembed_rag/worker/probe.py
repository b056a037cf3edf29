"""The identity of an embedding model: its vectors of fixed texts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms, unit

# Sentences of the longest probe text, which has about 1000 tokens: each has another matter, so that a model that reads
# more or less of the text than before gives another vector.
_MATTERS = (
    "The harbour master closes the northern quay when the wind turns.",
    "Bring the dough to room temperature before shaping it.",
    "A lease of twelve months may be ended by either party in writing.",
    "Photosynthesis stores the energy of light in the bonds of sugar.",
    "Her brother tunes pianos in three cities and never takes a train.",
    "Set the timeout to thirty seconds and try again after a longer wait.",
)
# Texts short and long, in several scripts, with signs and digits.
PROBE_TEXTS = (
    "refund",
    "How do I reset my password?",
    "Ошибка при оплате картой 🙂 日本語の質問 سؤال",
    "ERR_4042: int(x) >= 0, see /etc/hosts",
    "A person is looking for a cheap hotel near the old station, with breakfast and late check-in.",
    " ".join(f"{_MATTERS[i % len(_MATTERS)]} Note {i}." for i in range(60)),
)
# Largest 1 - cosine between two answers of one model. Measured with all-MiniLM-L6-v2, the worst text: batches 1e-7,
# float16 1e-6, bfloat16 8e-5, vectors stored as int8 5e-5; but weights moved by 3 % 7e-3, 16 of 256 tokens cut off
# 1e-2, weights as int8 .15, the prompt "query: " .24.
SAME_MODEL = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """The vectors of `PROBE_TEXTS` by an embedding model: its identity, under any name.

    Attributes:
        name: The declared name of the model.
        queries: (texts, d) float32 vectors of the texts as queries.
        documents: (texts, d) float32 vectors of the texts as documents; None where documents are not probed.
    """

    name: str
    queries: FloatArray
    documents: FloatArray | None = None

    @classmethod
    def of(
        cls,
        embed_query: Callable[[str], ArrayLike],
        embed_documents: Callable[[list[str]], ArrayLike] | None = None,
        *,
        name: str = "",
    ) -> Probe:
        """The probe of a model, one call per text and one for all documents (about 1100 tokens each).

        Args:
            embed_query: A text to its vector (d,).
            embed_documents: Texts to their vectors (n, d).
            name: The declared name of the model, with its revision.

        Raises:
            VectorError: A vector is NaN, infinite, zero or of another width.
        """
        queries = np.asarray([_numbers("embed_query", embed_query(text)) for text in PROBE_TEXTS])
        documents = None if embed_documents is None else _numbers("embed_documents", embed_documents(list(PROBE_TEXTS)))
        return cls(name, queries, documents)

    def __post_init__(self) -> None:
        for what, vectors in (("queries", self.queries), ("documents", self.documents)):
            if vectors is None:
                continue
            if vectors.ndim != 2 or len(vectors) != len(PROBE_TEXTS):
                raise VectorError(f"probe: expected {len(PROBE_TEXTS)} vectors of {what}, got shape {vectors.shape}")
            checked_norms(f"probe, {what}", vectors)
            object.__setattr__(self, what, vectors.astype(np.float32))

    @property
    def fingerprint(self) -> str:
        """``embedder:name@`` and a hash of the vectors; two probes of one model may differ in it, by rounding."""
        digest = hashlib.sha256(self.queries.tobytes() + (b"" if self.documents is None else self.documents.tobytes()))
        return f"embedder:{self.name}@{digest.hexdigest()[:16]}"

    def difference(self, other: Probe) -> str:
        """Why *other* is of another model, prompt or truncation, in words; empty if equal within `SAME_MODEL`."""
        if self.name != other.name:
            return f"the embedder is declared as {other.name!r}, it was {self.name!r}"
        for what, before, now in (
            ("queries", self.queries, other.queries),
            ("documents", self.documents, other.documents),
        ):
            if before is None or now is None:
                continue  # documents that were probed only once cannot be compared
            if before.shape != now.shape:
                return f"{what} have {now.shape[1]} dimensions, they had {before.shape[1]}"
            apart = 1.0 - np.vecdot(unit(before.astype(np.float64)), unit(now.astype(np.float64)))
            if (worst := float(apart.max())) > SAME_MODEL:
                return (
                    f"vectors of fixed {what} have moved, the worst by 1 - cosine = {worst:.1e} "
                    f"({SAME_MODEL:.0e} is the most that rounding explains)"
                )
        return ""

    def to_json(self) -> str:
        """The probe as text, to be kept with a version."""
        packed = [None if part is None else _packed(part) for part in (self.queries, self.documents)]
        return json.dumps({"name": self.name, "texts": _TEXTS, "queries": packed[0], "documents": packed[1]})

    @classmethod
    def from_json(cls, text: str) -> Probe:
        """What `to_json` gave.

        Raises:
            InputError: It is something else, or a probe of other texts.
        """
        try:
            record = json.loads(text)
            if record["texts"] != _TEXTS:
                raise InputError(f"probe: expected texts {_TEXTS}, got a probe of texts {record['texts']!r}")
            documents = None if record["documents"] is None else _unpacked(record["documents"])
            return cls(str(record["name"]), _unpacked(record["queries"]), documents)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as exc:
            raise InputError(f"probe: expected what Probe.to_json gave, got something else ({exc})") from exc


_TEXTS = hashlib.sha256("\n".join(PROBE_TEXTS).encode()).hexdigest()[:8]


def _numbers(name: str, answer: ArrayLike) -> FloatArray:
    return as_floats(name, answer.tolist() if hasattr(answer, "tolist") else answer)


def _packed(vectors: FloatArray) -> dict[str, Any]:
    return {"width": vectors.shape[1], "float32": base64.b64encode(vectors.astype("<f4").tobytes()).decode()}


def _unpacked(record: dict[str, Any]) -> FloatArray:
    data = base64.b64decode(record["float32"], validate=True)
    return np.frombuffer(data, dtype="<f4").reshape(-1, int(record["width"])).astype(np.float32)
