"""The identity of an embedding model: its vectors of fixed texts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError, TTTEmbedError, VectorError
from tttembed_rag.vectors.checks import FloatArray, checked_norms, unit
from tttembed_rag.vectors.functions import vectors_from

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
    """

    name: str
    queries: FloatArray

    @classmethod
    def of(cls, embed_query: Callable[[str], ArrayLike], *, name: str = "") -> Probe:
        """The probe of a model, one call per text (about 1100 tokens together).

        Args:
            embed_query: A text to its vector (d,).
            name: The declared name of the model, with its revision.

        Raises:
            EmbedderError: The model fails, or gives something else.
            VectorError: A vector is NaN, infinite, zero or of another width.
        """
        return cls(name, np.asarray([vectors_from("embed_query", embed_query, text) for text in PROBE_TEXTS]))

    def __post_init__(self) -> None:
        if self.queries.ndim != 2 or len(self.queries) != len(PROBE_TEXTS):
            got = self.queries.shape
            raise VectorError(f"probe: expected {len(PROBE_TEXTS)} vectors of queries, got shape {got}")
        checked_norms("probe, queries", self.queries)
        object.__setattr__(self, "queries", self.queries.astype(np.float32))

    def difference(self, other: Probe) -> str:
        """Why *other* is of another model, prompt or truncation, in words; empty if equal within `SAME_MODEL`."""
        if self.name and other.name and self.name != other.name:
            return f"the embedder is declared as {other.name!r}, it was {self.name!r}"
        before, now = self.queries.astype(np.float64), other.queries.astype(np.float64)
        if before.shape != now.shape:
            return f"queries have {now.shape[1]} dimensions, they had {before.shape[1]}"
        worst = float((1.0 - np.vecdot(unit(before), unit(now))).max())
        if worst <= SAME_MODEL:
            return ""
        return (
            f"vectors of fixed queries have moved, the worst by 1 - cosine = {worst:.1e} "
            f"({SAME_MODEL:.0e} is the most that rounding explains)"
        )

    def to_json(self) -> str:
        """The probe as text, to be kept with a version."""
        numbers = base64.b64encode(self.queries.astype("<f4").tobytes()).decode()
        queries = {"width": self.queries.shape[1], "float32": numbers}
        return json.dumps({"name": self.name, "texts": _TEXTS, "queries": queries})

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
            queries = record["queries"]
            numbers = np.frombuffer(base64.b64decode(queries["float32"], validate=True), dtype="<f4")
            return cls(str(record["name"]), numbers.reshape(-1, int(queries["width"])))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as exc:
            raise InputError(f"probe: expected what Probe.to_json gave, got something else ({exc})") from exc


def probe_of(embed_query: Callable[[str], ArrayLike]) -> str:
    """The probe of a model as text; empty where it takes no other texts than those that it was made for."""
    try:
        return Probe.of(embed_query).to_json()
    except TTTEmbedError:
        return ""


_TEXTS = hashlib.sha256("\n".join(PROBE_TEXTS).encode()).hexdigest()[:8]
