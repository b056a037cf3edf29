"""What a query's candidate similarities should become: KD, reverse KL, Softmax-GRPO.

Every objective sees student logits l = s / tau_S as an (n, k) array, one query per row, padded
with `PADDING` where a query has fewer than k candidates, and returns the loss per query (n,)
with its gradient in the logits (n, k). Equations are those of the paper's appendix on the
connections between the three objectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Logit of an absent candidate: finite, so that 0 * PADDING stays 0, and its softmax is exactly 0.
PADDING = -1e30
# The paper's Softmax-GRPO constants: ratio clipping and the floor under the reward deviation.
CLIP = 0.2
DEVIATION_FLOOR = 1e-4
# Half-width over which the two corners of the clipping are rounded, so that an optimum resting on
# a corner (where the ridge leaves most of them) still has a vanishing gradient to certify. The
# rounded loss differs from the paper's by at most ROUNDING / 4 * mean |A|, and only at a corner.
ROUNDING = 1e-3


def log_softmax(logits: Float64) -> Float64:
    """Log softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def softmax(logits: Float64) -> Float64:
    """Softmax over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


class Objective(NamedTuple):
    """A formula, and for each query what it compares the student with.

    Attributes:
        formula: Logits (n, k) and the targets to the loss per query (n,) and its gradient in the logits (n, k).
        targets: Arrays of n rows, those that the formula names.
    """

    formula: Callable[..., tuple[Float64, Float64]]
    targets: tuple[Float64, ...]

    def __call__(self, logits: Float64) -> tuple[Float64, Float64]:
        """Loss per query (n,) and its gradient in the logits (n, k)."""
        return self.formula(logits, *self.targets)

    def take(self, rows: IntArray | slice) -> Objective:
        """The objective on some of the queries."""
        return Objective(self.formula, tuple(target[rows] for target in self.targets))


def distillation(logits: Float64, teacher: Float64, negentropy: Float64) -> tuple[Float64, Float64]:
    """KL(p || pi) with the teacher p = softmax(r / tau_T); gradient pi - p.

    No student changes *negentropy*, sum p log p (n,).
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    losses = negentropy + np.log(total) - np.vecdot(teacher, shifted)
    return losses, weights / total[..., None] - teacher


def _reverse_kl(logits: Float64, log_teacher: Float64) -> tuple[Float64, Float64]:
    """KL(pi || p); gradient pi [log(pi / p) - KL(pi || p)]."""
    log_student = log_softmax(logits)
    student = np.exp(log_student)
    log_ratio = log_student - log_teacher
    losses = np.vecdot(student, log_ratio)
    return losses, student * (log_ratio - losses[..., None])


def _softmax_grpo(
    logits: Float64, advantage: Float64, log_reference: Float64, candidates: Float64
) -> tuple[Float64, Float64]:
    """Clipped policy ratio against the unmodified query's policy; gradient -A / k at v = 0.

    loss = -mean over candidates of min(rho A, clip(rho, 1 - .2, 1 + .2) A), rho = pi / pi0,
    A = (r - mean r) / (std r + 1e-4).
    """
    log_student = log_softmax(logits)
    student = np.exp(log_student)
    # The reference of a padded slot is the padding itself: its ratio is 1 and its advantage 0.
    ratio = np.exp(np.minimum(log_student - log_reference, 700.0))
    rising = advantage >= 0
    excess = np.where(rising, ratio - (1 + CLIP), (1 - CLIP) - ratio)
    slope = np.clip((excess + ROUNDING) / (2 * ROUNDING), 0.0, 1.0)
    surplus = np.where(slope < 1, slope**2 * ROUNDING, excess)
    kept = ratio - np.where(rising, surplus, -surplus)
    losses = -np.vecdot(advantage, kept) / candidates
    # d rho_i / d l_j = rho_i (1[i=j] - pi_j), scaled by what the clipping leaves of it.
    pull = ratio * advantage * (1 - slope) / candidates[..., None]
    return losses, student * pull.sum(axis=-1, keepdims=True) - pull


def build(
    name: str, rewards: Float64, present: NDArray[np.bool_], base_logits: Float64, teacher_temperature: float
) -> Objective:
    """The named objective for padded rewards (n, k), with the (n, k) mask of present candidates."""
    if name == "softmax_grpo":
        count = np.maximum(present.sum(axis=-1), 1).astype(np.float64)
        mean = np.where(present, rewards, 0.0).sum(axis=-1) / count
        centred = np.where(present, rewards - mean[..., None], 0.0)
        deviation = np.sqrt((centred**2).sum(axis=-1) / count)
        advantage = centred / (deviation[..., None] + DEVIATION_FLOOR)
        return Objective(_softmax_grpo, (advantage, log_softmax(base_logits), count))
    log_teacher = log_softmax(np.where(present, rewards / teacher_temperature, PADDING))
    if name == "kd":
        teacher = np.exp(log_teacher)
        return Objective(distillation, (teacher, np.vecdot(teacher, log_teacher)))
    return Objective(_reverse_kl, (log_teacher,))
