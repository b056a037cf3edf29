"""Lists in the order of their rewards, alone or together with the order of the search."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)


def in_reward_order(ranked: Sequence[Key], rewards: Mapping[Key, float]) -> list[Key]:
    """*ranked* with its judged keys sorted by reward, best first, among the places that judged keys hold.

    Unjudged keys keep their places; judged keys that are missing from *ranked* join at its end before
    sorting, so that a good one is never lost. Equal rewards keep the order of *ranked*.
    """
    listed = set(ranked)
    every = [*ranked, *(key for key in rewards if key not in listed)]
    best = iter(sorted((key for key in every if key in rewards), key=lambda key: -rewards[key]))
    return [next(best) if key in rewards else key for key in every]


def in_fused_order(ranked: Sequence[Key], rewards: Mapping[Key, float]) -> list[Key]:
    """*ranked* with its judged keys sorted by the sum of their ranks, by reward and in *ranked* (Borda's count).

    Places, missing keys and ties are as in `in_reward_order`.
    """
    every = in_reward_order(ranked, dict.fromkeys(rewards, 0.0))
    judged = [key for key in every if key in rewards]
    values = np.array([rewards[key] for key in judged])
    # Equal rewards share the mean of their ranks.
    by_reward = (values > values[:, None]).sum(axis=1) + (values == values[:, None]).sum(axis=1) / 2
    joint = dict(zip(judged, (-(by_reward + np.arange(len(judged)))).tolist(), strict=True))
    return in_reward_order(every, joint)
