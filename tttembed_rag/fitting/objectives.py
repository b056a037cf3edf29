"""What a query's candidate similarities should become: KD, reverse KL, Softmax-GRPO.

Every objective sees student logits l = s / tau_S as an (n, k) array, one query per row, padded
with `PADDING` where a query has fewer than k candidates, and returns the loss per query (n,)
with its gradient in the logits (n, k). Equations are those of the paper's appendix on the
connections between the three objectives. Any object with the three members of `Objective` is one more. The gate
measures every offset by the loss of KD, whichever objective it was learned by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.vectors.rows import Float64

# Which slots of a grid hold a candidate.
Mask: TypeAlias = NDArray[np.bool_]
# What an objective compares the student with: arrays of n rows, one for each query.
Targets: TypeAlias = tuple[Float64, ...]
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


@runtime_checkable
class Objective(Protocol):
    """What the similarities of a query's candidates should become."""

    @property
    def name(self) -> str:
        """The name that a file of offsets keeps."""

    def targets(self, rewards: Float64, present: Mask, base_logits: Float64, teacher_temperature: float) -> Targets:
        """What the student is compared with, by the padded *rewards* (n, k) of candidates that are *present* (n, k).

        *base_logits* (n, k) are the student's at v = 0.
        """

    def loss(self, logits: Float64, targets: Targets) -> tuple[Float64, Float64]:
        """The loss (..., n) of each query at *logits* (..., n, k), and its gradient in them (..., n, k)."""


@dataclass(frozen=True, slots=True)
class KD:
    """KL(p || pi) with the teacher p = softmax(r / tau_T); gradient pi - p. The paper's objective, convex in logits."""

    name: ClassVar[str] = "kd"

    def targets(self, rewards: Float64, present: Mask, base_logits: Float64, teacher_temperature: float) -> Targets:  # noqa: ARG002
        """The teacher p (n, k), and sum p log p (n,), which no student changes."""
        log_teacher = _log_teacher(rewards, present, teacher_temperature)
        teacher = np.exp(log_teacher)
        return teacher, np.vecdot(teacher, log_teacher)

    def loss(self, logits: Float64, targets: Targets) -> tuple[Float64, Float64]:
        """KL(p || pi) and pi - p."""
        teacher, negentropy = targets
        shifted = logits - logits.max(axis=-1, keepdims=True)
        weights = np.exp(shifted)
        total = weights.sum(axis=-1)
        losses = negentropy + np.log(total) - np.vecdot(teacher, shifted)
        return losses, weights / total[..., None] - teacher


@dataclass(frozen=True, slots=True)
class ReverseKL:
    """KL(pi || p); gradient pi [log(pi / p) - KL(pi || p)]."""

    name: ClassVar[str] = "reverse_kl"

    def targets(self, rewards: Float64, present: Mask, base_logits: Float64, teacher_temperature: float) -> Targets:  # noqa: ARG002
        """Log p (n, k)."""
        return (_log_teacher(rewards, present, teacher_temperature),)

    def loss(self, logits: Float64, targets: Targets) -> tuple[Float64, Float64]:
        """KL(pi || p) and its gradient."""
        (log_teacher,) = targets
        log_student = log_softmax(logits)
        student = np.exp(log_student)
        log_ratio = log_student - log_teacher
        losses = np.vecdot(student, log_ratio)
        return losses, student * (log_ratio - losses[..., None])


@dataclass(frozen=True, slots=True)
class SoftmaxGRPO:
    """Clipped policy ratio against the unmodified query's policy; gradient -A / k at v = 0.

    loss = -mean over candidates of min(rho A, clip(rho, 1 - .2, 1 + .2) A), rho = pi / pi0,
    A = (r - mean r) / (std r + 1e-4).
    """

    name: ClassVar[str] = "softmax_grpo"

    def targets(self, rewards: Float64, present: Mask, base_logits: Float64, teacher_temperature: float) -> Targets:  # noqa: ARG002
        """The advantage A (n, k), log pi0 (n, k), and how many candidates there are (n,)."""
        count = np.maximum(present.sum(axis=-1), 1).astype(np.float64)
        mean = np.where(present, rewards, 0.0).sum(axis=-1) / count
        centred = np.where(present, rewards - mean[..., None], 0.0)
        deviation = np.sqrt((centred**2).sum(axis=-1) / count)
        advantage = centred / (deviation[..., None] + DEVIATION_FLOOR)
        return advantage, log_softmax(base_logits), count

    def loss(self, logits: Float64, targets: Targets) -> tuple[Float64, Float64]:
        """The clipped loss, its corners rounded, and its gradient."""
        advantage, log_reference, candidates = targets
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


# The paper's objectives by name, for command lines and files of options.
OBJECTIVES: Mapping[str, Objective] = {known.name: known for known in (KD(), ReverseKL(), SoftmaxGRPO())}


def _log_teacher(rewards: Float64, present: Mask, temperature: float) -> Float64:
    """Log softmax(r / tau_T) (n, k)."""
    return log_softmax(np.where(present, rewards / temperature, PADDING))
