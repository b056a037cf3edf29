"""What a query's candidate similarities should become: KD, reverse KL, Softmax-GRPO.

Every objective sees student logits l = s / tau_S as an (n, k) array, one query per row, padded
with `PADDING` where a query has fewer than k candidates, and returns the loss per query (n,)
with its gradient in the logits (n, k). Equations are those of the paper's appendix on the
connections between the three objectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError

Rows: TypeAlias = slice | NDArray[np.intp]

# Logit of an absent candidate: finite, so that 0 * PADDING stays 0, and its softmax is exactly 0.
PADDING = -1e30
# The paper's Softmax-GRPO constants: ratio clipping and the floor under the reward deviation.
CLIP = 0.2
DEVIATION_FLOOR = 1e-4
# Half-width over which the two corners of the clipping are rounded, so that an optimum resting on
# a corner (where the ridge leaves most of them) still has a vanishing gradient to certify. The
# rounded loss differs from the paper's by at most ROUNDING / 4 * mean |A|, and only at a corner.
ROUNDING = 1e-3


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


class Objective(Protocol):
    """One row of targets per query, turned into losses and logit gradients."""

    def __call__(self, logits: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Loss per query (n,) and its gradient in the logits (n, k)."""
        ...

    def take(self, rows: Rows) -> Objective:
        """The objective on some of the queries."""
        ...


@dataclass(frozen=True, slots=True)
class KnowledgeDistillation:
    """KL(p || pi) with the teacher p = softmax(r / tau_T); gradient pi - p.

    Attributes:
        teacher: p (n, k).
        negentropy: sum p log p (n,), the part of the loss no student changes.
    """

    teacher: NDArray[np.float64]
    negentropy: NDArray[np.float64]

    def __call__(self, logits: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Loss per query (n,) and its gradient in the logits (n, k)."""
        shifted = logits - logits.max(axis=-1, keepdims=True)
        weights = np.exp(shifted)
        total = weights.sum(axis=-1)
        losses = self.negentropy + np.log(total) - np.vecdot(self.teacher, shifted)
        return losses, weights / total[..., None] - self.teacher

    def take(self, rows: Rows) -> KnowledgeDistillation:
        """The objective on some of the queries."""
        return KnowledgeDistillation(self.teacher[rows], self.negentropy[rows])


@dataclass(frozen=True, slots=True)
class ReverseKL:
    """KL(pi || p); gradient pi [log(pi / p) - KL(pi || p)]."""

    log_teacher: NDArray[np.float64]

    def __call__(self, logits: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Loss per query (n,) and its gradient in the logits (n, k)."""
        log_student = log_softmax(logits)
        student = np.exp(log_student)
        log_ratio = log_student - self.log_teacher
        losses = np.vecdot(student, log_ratio)
        return losses, student * (log_ratio - losses[..., None])

    def take(self, rows: Rows) -> ReverseKL:
        """The objective on some of the queries."""
        return ReverseKL(self.log_teacher[rows])


@dataclass(frozen=True, slots=True)
class SoftmaxGRPO:
    """Clipped policy ratio against the unmodified query's policy; gradient -A / k at v = 0.

    loss = -mean over candidates of min(rho A, clip(rho, 1 - .2, 1 + .2) A), rho = pi / pi0,
    A = (r - mean r) / (std r + 1e-4).
    """

    advantage: NDArray[np.float64]
    log_reference: NDArray[np.float64]
    candidates: NDArray[np.float64]

    def __call__(self, logits: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Loss per query (n,) and its gradient in the logits (n, k)."""
        log_student = log_softmax(logits)
        student = np.exp(log_student)
        # The reference of a padded slot is the padding itself: its ratio is 1 and its advantage 0.
        ratio = np.exp(np.minimum(log_student - self.log_reference, 700.0))
        rising = self.advantage >= 0
        excess = np.where(rising, ratio - (1 + CLIP), (1 - CLIP) - ratio)
        slope = np.clip((excess + ROUNDING) / (2 * ROUNDING), 0.0, 1.0)
        surplus = np.where(slope < 1, slope**2 * ROUNDING, excess)
        kept = ratio - np.where(rising, surplus, -surplus)
        losses = -np.vecdot(self.advantage, kept) / self.candidates
        # d rho_i / d l_j = rho_i (1[i=j] - pi_j), scaled by what the clipping leaves of it.
        pull = ratio * self.advantage * (1 - slope) / self.candidates[..., None]
        return losses, student * pull.sum(axis=-1, keepdims=True) - pull

    def take(self, rows: Rows) -> SoftmaxGRPO:
        """The objective on some of the queries."""
        return SoftmaxGRPO(self.advantage[rows], self.log_reference[rows], self.candidates[rows])


OBJECTIVES = ("kd", "reverse_kl", "softmax_grpo")


def build(
    name: str,
    rewards: NDArray[np.float64],
    present: NDArray[np.bool_],
    base_logits: NDArray[np.float64],
    teacher_temperature: float,
) -> Objective:
    """The named objective for padded rewards (n, k), with the (n, k) mask of present candidates."""
    if name == "softmax_grpo":
        count = np.maximum(present.sum(axis=-1), 1).astype(np.float64)
        mean = np.where(present, rewards, 0.0).sum(axis=-1) / count
        centred = np.where(present, rewards - mean[..., None], 0.0)
        deviation = np.sqrt((centred**2).sum(axis=-1) / count)
        advantage = centred / (deviation[..., None] + DEVIATION_FLOOR)
        return SoftmaxGRPO(advantage, log_softmax(base_logits), count)
    log_teacher = log_softmax(np.where(present, rewards / teacher_temperature, PADDING))
    if name == "kd":
        teacher = np.exp(log_teacher)
        return KnowledgeDistillation(teacher, np.vecdot(teacher, log_teacher))
    if name == "reverse_kl":
        return ReverseKL(log_teacher)
    raise InputError(f"objective: expected one of {', '.join(OBJECTIVES)}, got {name!r}")
