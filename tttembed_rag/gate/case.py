"""A case: the rewards of one task (or of all) with everything that the gate asks of them, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.grid import Grid, Loss
from tttembed_rag.fitting.measures import Search, judged_ndcg, served_ndcg
from tttembed_rag.fitting.neighbours import with_neighbours
from tttembed_rag.fitting.objectives import KD
from tttembed_rag.fitting.recipe import SMALLEST, Recipe
from tttembed_rag.fitting.voices import Voices
from tttembed_rag.gate.audit import Audited, Labels, audited, audited_orders, confirmed_order, labels_on
from tttembed_rag.gate.belief import Signal, Voucher
from tttembed_rag.gate.gains import UNMEASURED, Gain
from tttembed_rag.gate.thresholds import FOLDS, LEVEL, SHARPNESS, STUDENT_STEP, TEACHER_STEP
from tttembed_rag.offsets.codes import PUBLISHED
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray, shift
from tttembed_rag.vectors.rows import Float64, UnitRows

# The least ||x + v||^2 that is believed of sums of shares.
_SHORTEST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the application says of some judged pairs and of its lists.

    Attributes:
        labels: Trusted labels of some judged pairs; None where nobody audits.
        search: The application's own search, through which changes are measured; None ranks what was judged.
        reranked: Whether a reranker sorts what *search* gives.
        vouching: Rewards of the same queries by which it is tested whether they agree with the retriever; None takes
            those that are learned from.
        start: What the queries of the case are served already; None where that is nothing.
    """

    labels: Labels | None = None
    search: Search | None = None
    reranked: bool = False
    vouching: Rewards | None = None
    start: Offset | None = None

    def signal(self, rewards: Rewards, by_query: Voices) -> Signal:
        """What the permutation test says of *rewards*, whose voices are *by_query*, beside what is served already."""
        if self.vouching is not None:
            rows = np.flatnonzero(np.isin(self.vouching.tasks, rewards.tasks))
            by_query = Voices.of(self.vouching.take(rows))
        rewards = by_query.rewards
        return Signal.of(rewards if self.start is None else rewards.moved(self.started(rewards)), by_query.weights)

    def started(self, rewards: Rewards) -> Float64:
        """(n, d) what moves the queries of *rewards* already."""
        none = np.zeros(rewards.query_vectors.shape)
        return none if self.start is None else none + self.start.dosed(rewards.queries.unit)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Rewards under the gate: n queries, and what is asked of them before any offset is learned.

    Attributes:
        rows: Judged candidates as they came: several rows where several sources rewarded a query.
        recipe: How its offsets are learned, as `gated` makes it.
        terms: What the application says.
        together: What the rewards of all tasks say of the judge; None where these are all.
        rewards: The judged candidates with one row for each of n queries.
        voices: (n,) weight of each query in (0, 1]: the queries of one question share one voice, those of a source few.
        sources: How many sources gave rewards; the declared judge is not one.
        signal: What the permutation test says.
        voucher: Who vouches for the rewards, trusted labels aside.
        trust: The factor in [0, 1] on whatever is learned: how far trusted labels confirm the judge; 1 without labels.
        judged: The judged candidates, padded.
        labelled: Their trusted labels, as `labels_on` gives them; None where nobody audits.
        widened: The rewards with unjudged neighbours, from which all offsets are learned.
        grid: The candidates of `widened`, padded.
        fold: (n,) fold of each query: every task is dealt over the folds, the queries of one question to one fold.
    """

    rows: Rewards
    recipe: Recipe
    terms: Terms
    together: Signal | None
    rewards: Rewards
    voices: Float64
    sources: int
    signal: Signal
    voucher: Voucher
    trust: float
    judged: Grid
    labelled: tuple[Float64, int] | None
    widened: Rewards
    grid: Grid
    fold: IntArray

    @classmethod
    def of(cls, rows: Rewards, recipe: Recipe, terms: Terms | None = None, together: Signal | None = None) -> Case:
        """The case of *rows*. A declaration never vouches for what sources say; data may be those of all tasks."""
        terms = terms or Terms()
        by_query = Voices.of(rows)
        rewards, voices = by_query.rewards, by_query.weights
        signal = terms.signal(rewards, by_query)
        voucher: Voucher = "nobody"
        if rows.trusted is True and (rows.sources == "").all():
            voucher = "its declaration"
        elif rows.trusted is not False and (signal.believed or (together is not None and together.believed)):
            voucher = "the data"
        judged, widened = Grid.of(rewards), with_neighbours(rewards)
        return cls(
            rows,
            recipe,
            terms,
            together,
            rewards,
            voices,
            by_query.sources,
            signal,
            voucher,
            confirmed_order(rewards, terms.labels) if terms.labels else 1.0,
            judged,
            labels_on(rewards, judged, terms.labels) if terms.labels else None,
            widened,
            Grid.of(widened),
            folds_of(rewards),
        )

    @property
    def groups(self) -> IntArray:
        """(n,) a number for each question: queries that ask nearly the same are one observation."""
        return self.rewards.near_queries

    @property
    def questions(self) -> int:
        """Voices behind the rewards: the different questions, where no source has too many of them."""
        return max(1, round(float(self.voices.sum())))

    @property
    def measured(self) -> Float64:
        """(n,) the `voices` of queries whose rewards differ; nDCG@10 says nothing of the others."""
        return np.where(self.rewards.reach > 0, self.voices, 0.0)

    @property
    def by_sources(self) -> NDArray[np.bool_]:
        """Whether a source gave each of `rows`, and not the declared judge."""
        return np.asarray(self.rows.sources != "")

    def of_rows(self, rows: Rewards) -> Case:
        """The case of some of the rewards alone, with nothing else changed."""
        return Case.of(rows, self.recipe, self.terms, self.together)

    def evidence(
        self, details: str = "", change: Gain = UNMEASURED, *, tasks: int | None = None, vouched: str = ""
    ) -> Evidence:
        """The evidence of what is published, with the measured *change* of nDCG@10; see `Evidence.denied_by`.

        The questions whose rewards differ are the observations, and the voucher of the case vouches, unless a number of
        *tasks* and another are given; the questions that are left out are counted.
        """
        vouched = vouched or self.voucher
        by = (self.rows.declared_by or "trusted=True") if vouched == "its declaration" else vouched
        measured = max(1, round(float(self.measured.sum())))
        return Evidence(
            tasks or measured,
            change.mean if change.freedom else None,
            change.interval(LEVEL),
            "published",
            f"vouched for by {by}",
            code=PUBLISHED,
            vouched=vouched,
            left_out=self.questions - measured,
            details=details,
            tasks=tasks is not None,
        )

    def audited(self, offsets: FloatArray) -> Audited | None:
        """What the trusted labels say of *offsets* (n, d); None where there are none."""
        labels = self.terms.labels
        return audited(self.rewards, self.voices, offsets, labels) if labels else None

    def audited_orders(self, before: Float64, after: Float64) -> Audited | None:
        """The same of judged candidates in the order of scores *after* (n, k) in place of those *before*."""
        if self.labelled is None:
            return None
        return audited_orders(self.rewards, self.judged, self.voices, before, after, self.labelled)

    def ndcg(self, offsets: Float64 | None = None) -> Float64:
        """(n,) nDCG@10 by the rewards where *offsets* (n, d) move the queries; of the base vectors without any.

        It is that of the judged candidates, or of what the application's own search serves.
        """
        search, vectors = self.terms.search, self.rewards.query_vectors
        if search is None:
            return judged_ndcg(self.judged, self.judged.base if offsets is None else self.judged_under(offsets))
        if offsets is not None:
            vectors = shift(vectors, offsets.astype(vectors.dtype), self.rewards.query_norms)
        return served_ndcg(self.rewards, search, vectors, reranked=self.terms.reranked)

    def judged_under(self, offsets: Float64) -> Float64:
        """(n, k) products of the judged candidates and the queries that *offsets* (n, d) move."""
        return np.asarray(self.judged.base + self._along(offsets, self.judged))

    def falls(self, offsets: Float64, shares: Float64 | None = None) -> Float64:
        """(n,) by how many nats the KL loss of each query falls when *offsets* (n, d) move it.

        By this fall every objective is measured. Where the sums (n,) of the *shares* that vectors have in the offsets
        are known, the length of x + v is that where cosines are measured in their spread.
        """
        loss = Loss.of(self.grid, replace(self.recipe, objective=KD()))
        squares, products = self.moved(offsets)
        if shares is not None:
            spread = self.recipe.spread
            squares = np.maximum((squares - (1.0 - spread) * (1.0 + shares) ** 2) / spread, _SHORTEST)
        return loss(np.ones(len(self.rewards)), self.grid.base).losses - loss(squares, products).losses

    def moved(self, offsets: Float64) -> tuple[Float64, Float64]:
        """||x + v||^2 (n,) and (x + v) · z (n, k) of the candidates of `grid`, with v the *offsets* (n, d)."""
        along_query = np.vecdot(self.rewards.queries.unit, offsets)
        squares = 1.0 + 2.0 * along_query + np.vecdot(offsets, offsets)
        return np.asarray(squares), self.grid.base + self._along(offsets, self.grid)

    def _along(self, offsets: Float64, grid: Grid) -> Float64:
        """(n, k) products of *offsets* (n, d) and the candidates of *grid*."""
        dtype = self.rewards.queries.vectors.dtype
        rows = UnitRows(offsets.astype(dtype), np.ones(len(offsets), dtype))
        return np.asarray(self.rewards.documents.similarities(rows, grid.slots), dtype=np.float64)


def folds_of(rewards: Rewards) -> IntArray:
    """(n,) fold of each query: every task is dealt over the `FOLDS`, the queries of one question to one fold.

    They are dealt by how near they lie to the mean: what all vectors have in common changes no fold.
    """
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    groups, unit = rewards.near_queries, rewards.queries.unit
    first_task = np.full(int(groups.max()) + 1, len(tasks))
    np.minimum.at(first_task, groups, task)
    nearest = np.full(len(first_task), -np.inf)
    np.maximum.at(nearest, groups, unit @ unit.mean(axis=0))
    fold = np.empty_like(first_task)
    fold[np.lexsort((nearest, first_task))] = np.arange(len(fold)) % FOLDS
    return fold[groups]


def gated(recipe: Recipe, rewards: Rewards) -> Recipe:
    """The recipe by which the gate learns offsets from *rewards*: smoother than the paper's, in spreads of cosines.

    The teacher's temperature is at most a `SHARPNESS`-th of how far the rewards of a query reach on average.
    """
    teacher = TEACHER_STEP * recipe.teacher_temperature
    if (reach := rewards.reach[rewards.reach > 0]).size:
        teacher = min(teacher, max(float(reach.mean()) / SHARPNESS, SMALLEST))
    student = STUDENT_STEP * recipe.student_temperature
    return replace(recipe, teacher_temperature=teacher, student_temperature=student, spread=rewards.spread)
