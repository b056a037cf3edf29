"""Guards of a served version: is the embedder still the same, are queries and rewards still alike, does it still help?

An offset is right for one embedding model and for traffic like that it was learned from. Each guard compares what
was learned from with what is seen now, on arrays: who acts on the answer is not decided here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.evidence import Gain, judged_ndcg
from tttembed_rag.offsets import Offset, Offsets
from tttembed_rag.problems import Grid
from tttembed_rag.rewards import Rewards
from tttembed_rag.unitrows import Float64
from tttembed_rag.vectors import FloatArray, as_floats, checked_norms, unit

# Texts short and long, in several scripts, with signs and digits. The last has about 1000 tokens, another matter in
# each sentence: a model that reads more or less of it than before gives another vector.
_MATTERS = (
    "The harbour master closes the northern quay when the wind turns.",
    "Bring the dough to room temperature before shaping it.",
    "A lease of twelve months may be ended by either party in writing.",
    "Photosynthesis stores the energy of light in the bonds of sugar.",
    "Her brother tunes pianos in three cities and never takes a train.",
    "Set the timeout to thirty seconds and try again after a longer wait.",
)
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
# Vectors of each side a drift is measured on: bounds time (a tenth of a second) and memory (8 MB).
_SAMPLE = 512
# Drawings a drift is compared with; beating all of them has p = .001.
_DRAWINGS = 999
# Fresh rewarded queries a version is judged on, and by how much they must have grown before it is judged again.
FIRST_LOOK = 20
_NEXT_LOOK = 1.25
# After so many queries that speak for it, a new trial begins: old merits must not hide new harm.
LAST_LOOK = 1000
# How often a version that does neither good nor harm may be taken back, over all looks together.
_FALSE_ALARMS = 0.05
# Looks in a row that must contradict a version.
LOOKS_IN_A_ROW = 2


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """What an embedding model says of `PROBE_TEXTS`: its identity, whatever it is called.

    Attributes:
        name: What the model is declared to be.

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

            name: What the model is declared to be: its name and revision.

        Raises:
            VectorError: A vector is NaN, infinite, zero or of another width.
        """
        queries = np.asarray([_numbers("embed_query", embed_query(text)) for text in PROBE_TEXTS])
        documents = None if embed_documents is None else _numbers("embed_documents", embed_documents(list(PROBE_TEXTS)))
        return cls._checked(name, queries, documents)

    @classmethod
    def _checked(cls, name: str, queries: FloatArray, documents: FloatArray | None) -> Probe:
        for what, vectors in (("queries", queries), ("documents", documents)):
            if vectors is not None and (vectors.ndim != 2 or len(vectors) != len(PROBE_TEXTS)):
                raise VectorError(f"probe: expected {len(PROBE_TEXTS)} vectors of {what}, got shape {vectors.shape}")
            if vectors is not None:
                checked_norms(f"probe, {what}", vectors)
        single = None if documents is None else documents.astype(np.float32)
        return cls(name, queries.astype(np.float32), single)

    @property
    def fingerprint(self) -> str:
        """``embedder:name@`` and a hash of the vectors; two answers of one model may differ in it."""
        digest = hashlib.sha256(self.queries.tobytes() + (b"" if self.documents is None else self.documents.tobytes()))
        return f"embedder:{self.name}@{digest.hexdigest()[:16]}"

    def difference(self, other: Probe) -> str:
        """Why *other* is another model, in words; empty where it is the same within `SAME_MODEL`."""
        if self.name != other.name:
            return f"the embedder is declared as {other.name!r}, it was {self.name!r}"
        for what, mine, theirs in (
            ("queries", self.queries, other.queries),
            ("documents", self.documents, other.documents),
        ):
            if mine is None or theirs is None:
                continue  # documents that were probed once only say nothing
            if mine.shape != theirs.shape:
                return f"{what} have {theirs.shape[1]} dimensions, they had {mine.shape[1]}"
            apart = 1.0 - np.vecdot(unit(mine.astype(np.float64)), unit(theirs.astype(np.float64)))
            if (worst := float(apart.max())) > SAME_MODEL:
                return (
                    f"vectors of fixed {what} have moved, the worst by 1 - cosine = {worst:.1e} "
                    f"({SAME_MODEL:.0e} is the most that rounding explains)"
                )
        return ""

    def same_model(self, other: Probe) -> bool:
        """Whether *other* comes from the same model with the same prompts and truncation."""
        return not self.difference(other)

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
            documents = record["documents"]
            queries = _unpacked(record["queries"])
            return cls._checked(str(record["name"]), queries, None if documents is None else _unpacked(documents))
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


@dataclass(frozen=True, slots=True)
class Drift:
    """How far what is seen now is from what was learned from.

    Attributes:
        what: What was compared, in words.

        before: How many of what was learned from.

        now: How many of what is seen now.

        p: Chance of so large a difference where there is none.

        effect: Its size, in the unit that `what` names.
    """

    what: str
    before: int
    now: int
    p: float
    effect: float

    def seen(self, *, level: float = 0.002, effect: float = 0.05) -> bool:
        """Whether it is beyond chance at *level* and large enough to matter."""
        return self.p <= level and self.effect >= effect

    def __str__(self) -> str:
        return f"{self.what} {self.effect:.3f}, p = {self.p:.3g} ({self.before} before, {self.now} now)"


def query_drift(before: FloatArray, now: FloatArray, *, seed: int = 0) -> Drift:
    """Whether query vectors *now* come from where those *before* came from.

    The energy distance E = 2 mean|x - y| - mean|x - x'| - mean|y - y'| of unit vectors is 0 only for equal
    distributions. It is compared with that of random splits of all vectors together, which are as likely where
    nothing drifted: exact at any number. The effect is E / (2 mean|x - y|), from 0 to 1.

    Args:
        before: (n, d) vectors that an offset was learned from, n >= 2.

        now: (m, d) vectors of late, m >= 2.

        seed: Which `_SAMPLE` of each are compared where there are more, and which splits.
    """
    rng = np.random.default_rng(seed)
    sides = []
    for name, vectors in (("before", before), ("now", now)):
        floats = as_floats(name, vectors)
        if floats.ndim != 2 or len(floats) < 2:
            raise VectorError(f"{name}: expected two query vectors or more, got shape {floats.shape}")
        checked_norms(name, floats)
        rows = rng.permutation(len(floats))[:_SAMPLE]
        sides.append(unit(floats[rows].astype(np.float64)))
    if sides[0].shape[1] != sides[1].shape[1]:
        raise VectorError(f"now: expected width {sides[0].shape[1]}, got {sides[1].shape[1]}")
    n, m = map(len, sides)
    both = np.concatenate(sides)
    distance = np.sqrt(np.maximum(2.0 - 2.0 * both @ both.T, 0.0))
    # With a = 1/n on one side and -1/m on the other, E = -a' D a; each drawing deals the signs anew.
    observed = np.concatenate([np.full(n, 1 / n), np.full(m, -1 / m)])
    signs = np.concatenate([observed[None], rng.permuted(np.tile(observed, (_DRAWINGS, 1)), axis=1)])
    energy = -np.vecdot(signs @ distance, signs)
    reached = int((energy[1:] >= energy[0] - 1e-9).sum())
    across = 2.0 * float(distance[:n, n:].mean())
    effect = max(0.0, float(energy[0])) / across if across > 0 else 0.0
    return Drift("queries moved by", len(before), len(now), (reached + 1) / (_DRAWINGS + 1), effect)


def reward_drift(before: Rewards, now: Rewards) -> Drift:
    """Whether one judge's rewards *now* have another mean or spread than *before*, a query being one observation.

    Kolmogorov and Smirnov's test of the mean rewards of queries and of their spreads within a query, the smaller p
    of both doubled; the effect is the larger change of the two averages, in units of reward. A better offset brings
    better candidates: a mean that rises after publication is no fault.

    Raises:
        InputError: The rewards are of two judges.
    """
    from scipy.stats import ks_2samp

    if before.judge != now.judge:
        raise InputError(f"now: expected rewards of {before.judge}, got those of {now.judge}")
    sides = [
        np.array([(part.mean(), part.std()) for part in np.split(x.values, x.starts[1:-1])]) for x in (before, now)
    ]
    tests = [ks_2samp(sides[0][:, i], sides[1][:, i]).pvalue for i in range(2)]
    effect = float(np.abs(sides[1].mean(axis=0) - sides[0].mean(axis=0)).max())
    return Drift("rewards moved by", len(before), len(now), min(1.0, 2.0 * float(min(tests))), effect)


def live_gains(offsets: Offsets, fresh: Rewards) -> tuple[Float64, Float64]:
    """Gains in reward-weighted nDCG@10 of *fresh* queries under what serves them, and a number per query.

    Queries that no offset serves are left out. The candidates are those that the served vectors found: documents
    that an offset pushed out of sight are not among them, those it pushed in are.

    Returns:
        (n,) gains, and (n,) numbers, the same for the same query vector: together one observation.
    """
    served = [
        offsets.find(task, name) for task, name in zip(fresh.tasks.tolist(), fresh.query_ids.tolist(), strict=True)
    ]
    by_key: dict[str, tuple[Offset, list[int]]] = {}
    for row, offset in enumerate(served):
        if offset is not None:
            by_key.setdefault(offset.key, (offset, []))[1].append(row)
    gains, groups = np.full(len(fresh), np.nan), fresh.same_queries
    for offset, some in by_key.values():
        rows = np.array(some)
        part = fresh.take(rows)
        grid = Grid.of(part)
        moved = grid.base + offset.alpha * part.documents.times(offset.vector.astype(np.float64))[grid.slots]
        gains[rows] = judged_ndcg(grid, moved) - judged_ndcg(grid, grid.base)
    moved_rows = ~np.isnan(gains)
    return gains[moved_rows], groups[moved_rows]


@dataclass(frozen=True, slots=True)
class Trial:
    """How what is served does on queries that it was not learned from.

    A query counts under the version that was live when its rewards came, so versions may follow each other within
    one trial. It is looked at again and again, so look k has the level `_FALSE_ALARMS` / (k (k + 1)): these sum to
    `_FALSE_ALARMS` over all looks there may ever be. A look needs `FIRST_LOOK` queries and a quarter more than the
    one before; `LOOKS_IN_A_ROW` looks in a row whose gain is below zero at their level contradict the version.
    Simulated with gains spread by .1: of versions without any effect at most 3 % are taken back, however long one
    looks; of those that lose .1, .05 or .02, nine in ten are gone after 30, 120 or 1000 rewarded queries.

    Attributes:
        version: Number of the version that is live.

        since: When the trial began, in Unix seconds.

        looks: How often it was looked at.

        queries: Queries at the last look.

        against: Looks in a row that contradicted it.

        gain: Mean gain at the last look.

        upper: Upper bound of that gain at the level of that look; None before the first.

        earlier: Gains of queries under versions that were live before.
    """

    version: int
    since: float = 0.0
    looks: int = 0
    queries: int = 0
    against: int = 0
    gain: float = 0.0
    upper: float | None = None
    earlier: tuple[float, ...] = ()

    @property
    def contradicted(self) -> bool:
        """Whether fresh rewards say that what is served harms."""
        return self.against >= LOOKS_IN_A_ROW

    @property
    def over(self) -> bool:
        """Whether it has cleared what is served, so that a new trial may begin."""
        return self.queries >= LAST_LOOK and not self.against

    @property
    def due(self) -> int:
        """Queries that the next look needs."""
        return max(FIRST_LOOK, math.ceil(_NEXT_LOOK * self.queries))

    def look(self, gains: ArrayLike, groups: ArrayLike) -> Trial:
        """The trial after a look at all fresh *gains* so far; unchanged where there are too few new ones.

        Args:
            gains: (n,) gain of each fresh query under the live version.

            groups: (n,) queries of the same group are one observation.
        """
        group = np.unique(np.asarray(groups), return_inverse=True)[1]
        count = len(np.unique(group))
        n = len(self.earlier) + count
        if n < self.due:
            return self
        level = _FALSE_ALARMS / ((self.looks + 1) * (self.looks + 2))
        x = np.append(np.asarray(gains, dtype=np.float64), self.earlier)
        weights = np.full(len(x), 1 / len(x))
        gain = Gain.of(x, np.zeros(len(x)), weights, np.append(group, np.arange(count, n)))
        upper = gain.above(level)
        against = self.against + 1 if upper < 0 else 0
        return replace(self, looks=self.looks + 1, queries=n, against=against, gain=gain.mean, upper=upper)

    def followed_by(self, version: int, gains: ArrayLike) -> Trial:
        """The trial under the next *version*, which was learned from the queries with these *gains* too."""
        return replace(self, version=version, earlier=(*self.earlier, *np.round(np.atleast_1d(gains), 6).tolist()))

    def __str__(self) -> str:
        upper = math.inf if self.upper is None else self.upper
        return (
            f"gain {self.gain:+.3f}, at most {upper:+.3f}, on {self.queries} queries it was not learned from, "
            f"look {self.looks}, {self.against} of {LOOKS_IN_A_ROW} against it"
        )

    def to_json(self) -> str:
        """The trial as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """What `to_json` gave."""
        record = json.loads(text)
        return cls(**(record | {"earlier": tuple(record["earlier"])}))
