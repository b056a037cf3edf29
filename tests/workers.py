"""What tests of the worker share: stores where other hands are at work, judges, and what was done."""

from __future__ import annotations

import sys

import numpy as np

from tttembed_rag.judges import HttpJudge, Patience

QUICK = Patience(attempts=1, first_wait=0.01)


class Meddled:
    """A store, or a part of one, with some methods replaced: other hands are at work meanwhile."""

    def __init__(self, part, **replaced):
        self._part = part
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(self._part, name)


def publishing(store, act):
    """A *store* where *act* is done before anything is published."""
    return Meddled(store, registry=Meddled(store.registry, publish=before(store.registry.publish, act)))


def before(call, act):
    """*call*, before which *act* is done."""

    def both(*arguments, **options):
        act()
        return call(*arguments, **options)

    return both


def after(call, act):
    """*call*, after which *act* is done."""

    def both(*arguments, **options):
        found = call(*arguments, **options)
        act()
        return found

    return both


def http_judge(host):
    """The judge behind such a server."""
    return HttpJudge(f"http://{host}", "cohere", patience=QUICK)


def actions(rounds):
    """What was done, over all tenants."""
    return [action for one in rounds for action in one.actions]


def shuffled(rewards, seed=0):
    """Rewards that mean nothing any more."""
    return np.random.default_rng(seed).permutation(rewards.values)


def command(*arguments):
    """`tttembed worker` as a process of its own."""
    return [sys.executable, "-m", "tttembed_rag", "worker", *map(str, arguments)]


def model(seed):
    """An embedding model that is another one for another seed."""
    return lambda text: np.random.default_rng([seed, *text.encode()[:64]]).standard_normal(8)
