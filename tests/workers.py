"""What tests of the worker share: stores where other hands are at work, judges, and what was done."""

from __future__ import annotations

import sys

import numpy as np
from tttembed_store.sql import schema

from tttembed_rag import Scale
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
    return Meddled(store, registry=Meddled(store.registry, publish=before(store.registry.publish, act)))


def before(call, act):
    def both(*arguments, **options):
        act()
        return call(*arguments, **options)

    return both


def http_judge(host):
    """The judge behind such a server."""
    return HttpJudge(f"http://{host}", "cohere", patience=QUICK)


class Knowing:
    """A judge that says what the *world* knows; *asked* is told of each query first, and may raise or wait."""

    scale, fingerprint = Scale("probability"), "knowing@1"

    def __init__(self, world, asked):
        self._world, self._asked = world, asked

    def score(self, query, documents):
        """What the world knows, once that was told."""
        self._asked(query)
        return self._world.judged(query, documents)


def steal(store, seconds=0):
    """Let the lease that is held be another owner's, for so many seconds more."""
    lease = schema.leases.c
    with store._database.write("observing") as connection:
        taken = {"owner": "another", "token": lease.token + 1, "expires": lease.expires + seconds}
        connection.execute(schema.leases.update().values(taken))


def lapse(store):
    """Let every lease end now, as where its owner was killed a while ago."""
    with store._database.write("observing") as connection:
        connection.execute(schema.leases.update().values(expires=0.0))


def actions(steps):
    """What was done, over all tenants."""
    return [step.action for step in steps]


def shuffled(rewards, seed=0):
    """Rewards that mean nothing any more."""
    return np.random.default_rng(seed).permutation(rewards.values)


def against(rewards, depth=8):
    """Rewards under which what was learned from *rewards* is wrong."""
    base = np.einsum("nkd,nd->nk", rewards.doc_vectors.reshape(-1, depth, rewards.width), rewards.query_vectors)
    drawn = 2 * base - 0.5 * rewards.values.reshape(base.shape)
    return (1 / (1 + np.exp(-4 * (drawn - drawn.mean())))).ravel()


def command(*arguments):
    """`tttembed worker` as a process of its own."""
    return [sys.executable, "-m", "tttembed_rag", "worker", *map(str, arguments)]


def model(seed):
    """An embedding model that is another one for another seed."""
    return lambda text: np.random.default_rng([seed, *text.encode()[:64]]).standard_normal(8)


def hours_pass(store, hours):
    """Let failures of judges be older by so many hours."""
    f = schema.failures.c
    with store._database.write("observing") as connection:
        connection.execute(schema.failures.update().values(due_at=f.due_at - 3600.0 * hours))
