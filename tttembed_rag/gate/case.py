"""A case: the rewards of one task (or of all) with everything that the gate asks of them, each worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.measures import Search, judged_ndcg, served_ndcg
from tttembed_rag.fitting.neighbours import with_neighbours
from tttembed_rag.fitting.recipe import SMALLEST, Recipe
from tttembed_rag.fitting.scopes import private_optima
from tttembed_rag.fitting.solver import Solution
from tttembed_rag.fitting.voices import Voices, heard
from tttembed_rag.gate.audit import Audited, Labels, audited, audited_orders, confirmed_order, labels_on
from tttembed_rag.gate.belief import Signal, Voucher, signal_of
from tttembed_rag.gate.gains import UNMEASURED, Gain
from tttembed_rag.gate.thresholds import FOLDS, LEVEL, PUBLISHED, SHARPNESS, STUDENT_STEP, TEACHER_STEP, Question
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray, shift
from tttembed_rag.vectors.rows import Float64, UnitRows


@dataclass(frozen=True, eq=False)  # no slots: what is worked out once is kept
class Case:
    """Rewards under the gate.

    Attributes:
        given: Judged candidates as they were given: several rows where several sources rewarded a query.
        recipe: How its offsets are learned, as `gated` makes it.
        labels: Trusted labels of some judged pairs; None where nobody audits.
        trusted: Whether somebody vouches for the judge; None lets the data say, and with False nobody does.
        together: What the rewards of all tasks say of the judge; None where these are all.
        search: The application's own search, through which changes are measured; None ranks what was judged.
        reranked: Whether a reranker sorts what *search* gives.
    """

    given: Rewards
    recipe: Recipe
    labels: Labels | None = None
    trusted: bool | None = None
    together: Signal | None = None
    search: Search | None = None
    reranked: bool = False

    @cached_property
    def heard(self) -> Voices:
        """The rewards with one row for each query, and how much each counts."""
        return heard(self.given)

    @property
    def rewards(self) -> Rewards:
        """Judged candidates of n queries."""
        return self.heard.rewards

    @property
    def voices(self) -> Float64:
        """(n,) weight of each query in (0, 1]: the queries of one question share one voice, those of a source few."""
        return self.heard.weights

    @cached_property
    def groups(self) -> IntArray:
        """(n,) a number for each question: queries that ask nearly the same are one observation."""
        return self.rewards.near_queries

    @property
    def questions(self) -> int:
        """Voices behind the rewards: the different questions, where no source has too many of them."""
        return max(1, round(float(self.voices.sum())))

    @cached_property
    def signal(self) -> Signal:
        """What the permutation test says."""
        return signal_of(self.rewards, self.voices)

    @property
    def named(self) -> NDArray[np.bool_]:
        """Whether a source gave each row of what was given, and not the judge."""
        return np.asarray(self.given.sources != "")

    @cached_property
    def voucher(self) -> Voucher:
        """Who vouches for the rewards, trusted labels aside; where data do, they may be those of all tasks.

        A declaration never vouches for what sources say.
        """
        if self.trusted is True and not self.named.any():
            return "its declaration"
        together = self.together is not None and self.together.believed
        return "the data" if self.trusted is not False and (self.signal.believed or together) else "nobody"

    def evidence(self, reason: str, change: Gain = UNMEASURED, *, n: int | None = None, vouched: str = "") -> Evidence:
        """The evidence of what is published, with the measured *change* of nDCG@10; see `withheld`.

        The questions are the *n* observations, and the voucher of the case vouches, unless others are given.
        """
        gain = change.mean if change.freedom else None
        interval, vouched = change.interval(LEVEL), vouched or self.voucher
        return Evidence(n or self.questions, gain, interval, "published", reason, code=PUBLISHED, vouched=vouched)

    @cached_property
    def judged(self) -> Grid:
        """The judged candidates, padded."""
        return Grid.of(self.rewards)

    @cached_property
    def served_base(self) -> Float64:
        """(n,) nDCG@10 of what the application's own search serves for the base vectors, or of what was judged."""
        if self.search is None:
            return judged_ndcg(self.judged, self.judged.base)
        return served_ndcg(self.rewards, self.search, self.rewards.query_vectors, reranked=self.reranked)

    @cached_property
    def headroom(self) -> float:
        """By how much the judge's own order is better than what is served for the base vectors, in nDCG@10."""
        differ = self.rewards.reach > 0
        return float((1.0 - self.served_base[differ]).mean()) if differ.any() else 0.0

    @cached_property
    def fold(self) -> IntArray:
        """(n,) fold of each query: every task is dealt over the folds, the queries of one question to one fold."""
        tasks, task = np.unique(self.rewards.tasks, return_inverse=True)
        first_task = np.full(int(self.groups.max()) + 1, len(tasks))
        np.minimum.at(first_task, self.groups, task)
        fold = np.empty_like(first_task)
        fold[np.argsort(first_task, kind="stable")] = np.arange(len(fold)) % FOLDS
        return fold[self.groups]

    @cached_property
    def widened(self) -> Rewards:
        """The rewards with unjudged neighbours, from which all offsets are learned."""
        return with_neighbours(self.rewards)

    @cached_property
    def grid(self) -> Grid:
        """The candidates of `widened`, padded."""
        return Grid.of(self.widened)

    @cached_property
    def optima(self) -> Solution:
        """The private optimum (n, d) of each query, and how near it the solver came."""
        return private_optima(self.widened, self.recipe)

    @cached_property
    def usable(self) -> Float64:
        """(n,) 1 for queries whose private optimum was reached, 0 for others; Adam never says."""
        reached = self.optima.converged | (self.recipe.solver == "adam")
        return np.asarray(reached, dtype=np.float64)

    def audited(self, offsets: FloatArray) -> Audited | None:
        """What the trusted labels say of *offsets* (n, d); None where there are none."""
        return audited(self.rewards, self.voices, offsets, self.labels) if self.labels else None

    @cached_property
    def _labelled(self) -> tuple[Float64, int]:
        """The trusted labels of the judged candidates."""
        return labels_on(self.rewards, self.judged, self.labels or {})

    def audited_orders(self, before: Float64, after: Float64) -> Audited | None:
        """The same of judged candidates in the order of scores *after* (n, k) in place of those *before*."""
        of_case = self.rewards, self.judged, self.voices
        return audited_orders(*of_case, before, after, self._labelled) if self.labels else None

    @cached_property
    def trust(self) -> float:
        """The factor in [0, 1] on whatever is learned: how far trusted labels confirm the judge; 1 without labels."""
        return confirmed_order(self.rewards, self.labels) if self.labels else 1.0

    def judged_changes(self, offsets: Float64) -> Float64:
        """(n,) by how much nDCG@10 changes, by the rewards, when *offsets* (n, d) move.

        It is that of the judged candidates, or of what the application's own search serves.
        """
        if self.search is not None:
            vectors = self.rewards.query_vectors
            moved = shift(vectors, offsets.astype(vectors.dtype), self.rewards.query_norms)
            after = served_ndcg(self.rewards, self.search, moved, reranked=self.reranked)
        else:
            after = judged_ndcg(self.judged, self.judged_under(offsets))
        return np.asarray(after - self.served_base)

    def judged_under(self, offsets: Float64) -> Float64:
        """(n, k) products of the judged candidates and the queries that *offsets* (n, d) move."""
        return np.asarray(self.judged.base + self._along(offsets, self.judged))

    def falls(self, offsets: Float64) -> Float64:
        """(n,) by how many nats the KL loss of each query falls when *offsets* (n, d) move it.

        By this fall every objective is measured.
        """
        loss = self.recipe.loss(self.grid, "kd")
        return loss(np.ones(len(self.rewards)), self.grid.base).losses - loss(*self.moved(offsets)).losses

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


def withheld(evidence: Evidence, question: Question, found: str) -> Evidence:
    """The *evidence* of what is not published: the *question* decided against it, for what was *found*."""
    return replace(evidence, verdict="abstained", reason=evidence.reason + found, code=question.code)


def gated(recipe: Recipe, rewards: Rewards) -> Recipe:
    """The recipe by which the gate learns offsets from *rewards*: smoother than the paper's.

    The teacher's temperature is at most a `SHARPNESS`-th of how far the rewards of a query reach on average.
    """
    teacher = TEACHER_STEP * recipe.teacher_temperature
    if (reach := rewards.reach[rewards.reach > 0]).size:
        teacher = min(teacher, max(float(reach.mean()) / SHARPNESS, SMALLEST))
    student = STUDENT_STEP * recipe.student_temperature
    return replace(recipe, teacher_temperature=teacher, student_temperature=student)
