"""For the tests of an application: fakes of a judge, an embedder, a log and a clock. Nothing here needs pytest.

The fakes do no input or output, give the same answers each time, and note what they were asked:

    judge, model = FakeJudge(), FakeEmbedder()
    log = RewardLog.of(judge)
    log.record("wash wool", texts, judge.score("wash wool", texts))
    offsets = fit(log.rewards(model.embed_query, model.embed_documents))
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.clients.usage import Usage, report_usage
from tttembed_rag.errors import check_count
from tttembed_rag.judges.contract import Scores
from tttembed_rag.judges.examination import answers
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.log import Known, Log
from tttembed_rag.vectors.checks import FloatArray, unit

__all__ = ["FakeClock", "FakeEmbedder", "FakeJudge", "FakeLog", "Logged", "eventually", "word_overlap"]
ResultT = TypeVar("ResultT")


def word_overlap(query: str, document: str) -> float:
    """Share of the query's words that the document has, in [0, 1]; the examination of judges is passed."""
    if query in answers():
        return float(document == answers()[query])
    words, others = (set(re.findall(r"\w+", text.lower())) for text in (query, document))
    return len(words & others) / max(1, len(words))


class FakeJudge:
    """A judge that counts common words, or scores by a function of yours.

    Args:
        score_of: Query and document to a score, None where it declines.
        scale: The scale of its scores, such as ``probability`` or ``rubric:0,5``.
        fingerprint: Its name.
        documents_per_call: Documents that a call should hold.
        tokens: Tokens that it says each document costs, in requests of one call.
        error: Raised by every call, as by a service that is down, until it is set to None.

    Attributes:
        asked: Every (query, document) it was asked about, also where it failed.
        calls: How often it was called.
    """

    def __init__(
        self,
        score_of: Callable[[str, str], float | None] = word_overlap,
        *,
        scale: str = "probability",
        fingerprint: str = "fake",
        documents_per_call: int = 32,
        tokens: int = 10,
        error: Exception | None = None,
    ) -> None:
        self.scale = Scale.parse(scale)
        self.fingerprint = fingerprint
        self.documents_per_call = documents_per_call
        self.tokens = tokens
        self.error = error
        self.asked: list[tuple[str, str]] = []
        self.calls = 0
        self._score_of = score_of
        self._lock = threading.Lock()

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, or the error."""
        with self._lock:
            self.calls += 1
            self.asked += [(query, text) for text in documents]
        if self.error is not None:
            raise self.error
        report_usage(Usage(1, self.tokens * len(documents)))
        return [self._score_of(query, text) for text in documents]

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:  # noqa: ARG002 (every judge is asked alike)
        """Exactly what a call uses."""
        return Usage(1, self.tokens * len(documents))


class FakeEmbedder:
    """An embedder whose vectors are sums of a random vector per word: texts with common words lie near each other.

    It is an `tttembed_rag.embedders.Embedder`, and has the methods of LangChain's ``Embeddings``.

    Args:
        width: Dimensions.
        vectors: Vectors (width,) of some texts, instead of those of their words.
        fingerprint: Its name.
        error: Raised by every call, as by a service that is down, until it is set to None.

    Attributes:
        queries: Every query it was asked to embed, in order.
        documents: Every document it was asked to embed, in order.
    """

    def __init__(
        self,
        width: int = 64,
        *,
        vectors: Mapping[str, ArrayLike] | None = None,
        fingerprint: str = "fake",
        error: Exception | None = None,
    ) -> None:
        check_count("width", width)
        self.width = width
        self.fingerprint = fingerprint
        self.error = error
        self.queries: list[str] = []
        self.documents: list[str] = []
        self._vectors = dict(vectors or {})

    def embed_query(self, text: str) -> list[float]:
        """The vector (width,) of one text."""
        vector: list[float] = self.embed_queries([text])[0].tolist()
        return vector

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), width), as float32."""
        self.queries += texts
        return self._embedded(texts)

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), width), as float32; the same as of queries."""
        self.documents += texts
        return self._embedded(texts)

    def _embedded(self, texts: Sequence[str]) -> FloatArray:
        if self.error is not None:
            raise self.error
        vectors = np.array([self._vector(text) for text in texts], dtype=np.float32).reshape(len(texts), self.width)
        return unit(vectors) if len(texts) else vectors

    def _vector(self, text: str) -> ArrayLike:
        if text in self._vectors:
            return self._vectors[text]
        words = re.findall(r"\w+", text.lower()) or [text]
        return np.asarray(np.sum([_drawn(word, self.width) for word in words], axis=0))


def _drawn(word: str, width: int) -> FloatArray:
    """The random vector (width,) of a word, the same in every process."""
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()[:8])
    return np.random.default_rng(seed).standard_normal(width)


class Logged(NamedTuple):
    """One call of a `FakeLog`: of `observe` where there are no scores; a task of None was named by nobody."""

    query: str
    documents: tuple[str, ...]
    scores: tuple[float | None, ...] | None
    task: str | None
    known: Known | None
    source: str


@dataclass
class FakeLog(Log):
    """A log that keeps every call as it came.

    Attributes:
        judge: Fingerprint of the judge that it is for.
        error: Raised by every call, as by a log whose disk is full, until it is set to None.
        calls: What was observed and recorded, in order.
    """

    judge: str = "fake"
    error: Exception | None = None
    calls: list[Logged] = field(default_factory=list)

    def note(
        self,
        query: str,
        documents: Iterable[str],
        scores: Sequence[float | None] | None,
        *,
        task: str | None,
        known: Known | None,
        source: str,
    ) -> None:
        """Keep one call, or raise the error."""
        if self.error is not None:
            raise self.error
        kept = None if scores is None else tuple(scores)
        self.calls.append(Logged(query, tuple(documents), kept, task, known, source))


@dataclass(slots=True)
class FakeClock:
    """A clock that stands still until somebody sleeps; give it where a function of the time is taken.

    Attributes:
        now: Seconds that it shows.
        slept: Every wait, in seconds.
    """

    now: float = 1_000_000_000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        """The seconds that it shows."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move the clock on, at once."""
        self.slept.append(seconds)
        self.now += seconds


def eventually(condition: Callable[[], ResultT], *, seconds: float = 30.0) -> ResultT:
    """The result of *condition* as soon as that is true; an AssertionError if it is not within some seconds."""
    ends = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() >= ends:
            raise AssertionError(f"expected within {seconds:g} s what did not come true")
        time.sleep(0.002)
    return result
