"""Eq. 6 as a function of offsets that many queries share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tttembed_rag.fitting.grid import Loss
from tttembed_rag.fitting.solver import Evaluation
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64, UnitRows

# Bytes of vectors an evaluation takes at a time, twice: from a disk or a cache that holds them they come once.
_BLOCK_BYTES = 1 << 26
# Numbers (8 bytes each) of problems side by side, times queries and candidates, that are evaluated at a time: what an
# evaluation needs beside its data, a few times over.
_GRID_NUMBERS = 1 << 20


class DataTerm(Protocol):
    """Some of the queries of G problems."""

    def __call__(self, offsets: Float64, vv: Float64) -> tuple[Float64, Float64]:
        """Their part of the objectives (G,) and of the gradients (G, d) at *offsets* v (G, d), ||v||^2 being *vv*."""

    def take(self, rows: IntArray) -> DataTerm:
        """The queries in some of the problems."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some of the queries of shared problems and the documents that hold their candidates.

    Attributes:
        queries: n of them.
        documents: The vectors of all their candidates.
        slots: (n, k) rows of *documents*.
        loss: The data term.
        weights: (G, n) w of each query in each problem.
    """

    queries: UnitRows
    documents: UnitRows
    slots: IntArray
    loss: Loss
    weights: Float64

    def __call__(self, offsets: Float64, vv: Float64) -> tuple[Float64, Float64]:
        """The queries' part, as of any `DataTerm`."""
        squares = 1.0 + 2.0 * self.queries.times(offsets) + vv[:, None]
        along = self.documents.times(offsets)
        value, of_queries, of_documents = np.zeros(len(offsets)), np.empty(squares.shape), np.zeros(along.shape)
        for problems, queries in self._parts(len(offsets)):
            slots, weights = self.slots[queries], self.weights[problems, queries]
            loss = self.loss.take(queries)
            pull = loss(squares[problems, queries], loss.grid.base + along[problems].take(slots, axis=1))
            value[problems] += np.vecdot(weights, pull.losses)
            of_queries[problems, queries] = pull.of_queries * weights
            of_candidates = pull.of_candidates
            of_candidates *= weights[:, :, None]
            parts = [np.bincount(slots.ravel(), part.ravel(), along.shape[1]) for part in of_candidates]
            of_documents[problems] += parts
        gradient = self.documents.weighted_sum(of_documents)
        gradient += self.queries.weighted_sum(of_queries)
        gradient += of_queries.sum(axis=1)[:, None] * offsets
        return value, gradient

    def _parts(self, problems: int) -> Iterator[tuple[slice, slice]]:
        """Some of the problems, and some of the queries where those of one are too many, that fit into memory."""
        n, k = self.slots.shape
        some, queries = max(1, _GRID_NUMBERS // (n * k)), max(1, _GRID_NUMBERS // k)
        for first in range(0, problems, some):
            for row in range(0, n, queries):
                yield slice(first, first + some), slice(row, row + queries)

    def take(self, rows: IntArray) -> Block:
        """The queries in some of the problems."""
        return replace(self, weights=self.weights[rows])


@dataclass(frozen=True, slots=True)
class SharedProblem:
    """One offset for all queries of a scope, or G of them under weights of their own, p = d."""

    blocks: tuple[DataTerm, ...]
    ridge: float

    @classmethod
    def of(cls, rewards: Rewards, loss: Loss, weights: Float64, ridge: float) -> SharedProblem:
        """The problems of all *rewards*, query q weighing *weights* (G, n)[g, q] in g."""
        return cls(tuple(_blocks(rewards, loss, weights)), ridge)

    def evaluate(self, offsets: Float64) -> Evaluation:
        """Objectives (G,) and gradients (G, d)."""
        vv = np.vecdot(offsets, offsets)
        value, gradient = self.ridge * vv, 2.0 * self.ridge * offsets
        for block in self.blocks:
            part, of_part = block(offsets, vv)
            value += part
            gradient += of_part
        return Evaluation(value, gradient)

    def newton_step(self, offsets: Float64, at: Evaluation) -> None:
        """None: a d x d curvature costs more than learning it along the way."""

    def take(self, rows: IntArray) -> SharedProblem:
        """Some of the problems."""
        return replace(self, blocks=tuple(block.take(rows) for block in self.blocks))


def _blocks(rewards: Rewards, loss: Loss, weights: Float64) -> Iterator[Block]:
    """Queries a few at a time where each has documents of its own, in order; else all at once."""
    starts, queries, documents = rewards.starts, rewards.queries, rewards.documents
    slots, present = loss.grid.slots, loss.grid.present
    n, budget = len(starts) - 1, int(starts[-1])
    own = len(documents) == budget and np.array_equal(slots[present], np.arange(budget))
    if not own:
        yield Block(queries, documents, slots, loss, weights)
        return
    step = max(1, _BLOCK_BYTES * budget // documents.vectors.nbytes)
    bounds = np.searchsorted(starts[:-1], np.arange(0, budget, step))
    for first, last in zip(bounds, [*bounds[1:], n], strict=True):
        if first < last:
            some, theirs = slice(first, last), slice(starts[first], starts[last])
            local = np.where(present[some], slots[some] - starts[first], 0)
            yield Block(queries.rows(some), documents.rows(theirs), local, loss.take(some), weights[:, some])
