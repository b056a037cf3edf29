"""The store against a model in dictionaries: whatever is done to both, in whatever order, both say the same.

The law of forgetting: what is forgotten teaches nothing. What is left equals a store that never saw it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tttembed_store.sql import Candidate, Served, schema

from tttembed_rag import Offsets
from tttembed_rag.errors import InputError, RewardError, StoreError

TENANTS, JUDGES = ("", "a"), ("judge", "users")
# What a second tenant holds that never saw what was forgotten.
NEVER = "never saw it"

tenants, judges, sources = (st.sampled_from(names) for names in (TENANTS, JUDGES, ("", "ann", "bob")))
tasks, queries, documents = (st.sampled_from(names) for names in (("t0", "t1"), ("q0", "q1"), ("d0", "d1")))
# What is forgotten, by kind and name: now and then all of a tenant.
THINGS = [("query", "q0"), ("query", "q1"), ("document", "d0"), ("document", "d1"), ("tenant", "")]
THINGS += 2 * [("source", "ann"), ("source", "bob")]
rewards = st.sampled_from((0.0, 0.25, 1.0))


def vector(name):
    """The vector of a query or a document, the same whenever it is asked for."""
    return np.random.default_rng(crc32(name.encode())).standard_normal(4).astype(np.float32)


@dataclass
class Query:
    """When a query was last served, and the documents that it was shown."""

    at: float
    shown: set[str]


@dataclass
class Model:
    """What a store holds: queries by tenant, task and id, rewards by query, document, judge and source, versions."""

    queries: dict = field(default_factory=dict)
    rewards: dict = field(default_factory=dict)
    written: Counter = field(default_factory=Counter)
    due: set = field(default_factory=set)
    forgotten: set = field(default_factory=set)
    versions: defaultdict = field(default_factory=lambda: defaultdict(dict))
    live: dict = field(default_factory=dict)
    halted: dict = field(default_factory=dict)
    # Tenants with versions that may have learned from queries that have expired; those that were ever served something
    # of their own, and those of which that has changed since the last comparison.
    expired: set = field(default_factory=set)
    announced: set = field(default_factory=lambda: {""})
    changed: set = field(default_factory=set)

    def reward(self, query, document, judge, source, value):
        """A reward of one pair; the same again changes nothing."""
        if self.rewards.get((query, document, judge, source)) != value:
            self.written[query[0], judge] += 1
            self.due.add(query[0])
        self.rewards[query, document, judge, source] = value

    def observe(self, query, shown, judge, source, at, *, late):
        """A query that was served; what was forgotten since is left out. Gives how many queries were written."""
        tenant, _, name = query
        gone = {key[1:] for key in self.forgotten if late and key[0] == tenant}
        if ("tenant", "") in gone or ("query", name) in gone:
            return 0
        kept = {document: reward for document, reward in shown.items() if ("document", document) not in gone}
        known = self.queries.setdefault(query, Query(at, set()))
        known.at, known.shown = max(at, known.at), known.shown | kept.keys()
        for document, reward in kept.items():
            if reward is not None and ("source", source) not in gone:
                self.reward(query, document, judge, source, reward)
        return 1

    def of(self, tenant):
        """The queries of a tenant."""
        return {key: query for key, query in self.queries.items() if key[0] == tenant}

    def given(self, tenant, judge=None):
        """The rewards of a tenant's queries, of one judge or all."""
        return {key: value for key, value in self.rewards.items() if key[0][0] == tenant and judge in (None, key[2])}

    def drop(self, keys):
        """Take queries away, with their rewards."""
        self.queries = {key: query for key, query in self.queries.items() if key not in keys}
        self.rewards = {key: value for key, value in self.rewards.items() if key[0] not in keys}

    def forget(self, tenant, kind, name, *, unseen):
        """Forget, with all that may have learned from it; gives how many versions went, None where it is refused."""
        mine = self.of(tenant)
        found = [key for key in mine if kind == "tenant" or (kind == "query" and key[2] == name)]
        place = {"document": 1, "source": 3}.get(kind)
        gone = [key for key in self.given(tenant) if place and key[place] == name]
        if kind == "source" and not (gone or unseen or (tenant, kind, name) in self.forgotten):
            return None
        self.drop(found)
        for key in gone:
            del self.rewards[key]
        for query in mine.values() if kind == "document" else ():
            query.shown.discard(name)
        self.forgotten.add((tenant, kind, name))
        if not (kind == "tenant" or found or gone or (kind == "source" and unseen) or tenant in self.expired):
            return 0
        self.live.pop(tenant, None)
        self.expired.discard(tenant)
        self.changed.add(tenant)
        self.due.add(tenant)
        return len(self.versions.pop(tenant, ()))

    def serve(self, tenant, number):
        """Serve a version; one that is not on the way back replaces what was live."""
        versions, step, behind = self.versions[tenant], self.live.get(tenant), set()
        while step is not None and step not in behind:
            behind.add(step)
            step = versions[step]
        if number not in behind:
            versions[number] = self.live.get(tenant)
        self.live[tenant] = number
        self.changed.add(tenant)
        self.due.add(tenant)

    def serving(self, tenant):
        """The number of the version that a tenant is served, and why it is halted."""
        whose = [tenant] if tenant in self.live else [tenant, ""]
        reasons = [self.halted[name] for name in (None, *whose) if name in self.halted]
        return next((self.live[name] for name in whose if name in self.live), None), (*reasons, None)[0]


class StoreMachine(RuleBasedStateMachine):
    """A store and its model, to which the same is done."""

    store = None

    def __init__(self):
        super().__init__()
        self.model, self.steps = Model(), 0
        with self.store._database.write("forgetting") as connection:
            for table in reversed(schema.metadata.sorted_tables):
                if table is not schema.facts:
                    connection.execute(table.delete())
            connection.execute(schema.facts.delete().where(schema.facts.c.name.like("halted%")))
            connection.execute(schema.tenants.insert().values(name=""))
        self.generations = self.store.generations().own

    @initialize(values=st.lists(rewards, min_size=12, max_size=12))
    def begin(self, values):
        """Each tenant was asked two queries, of which a judge and two sources have judged both documents."""
        self.steps, given = 2, iter(values)
        for tenant, name, source in product(TENANTS, ("q0", "q1"), ("", "ann", "bob")):
            query, shown = (tenant, "t0", name), {"d0": next(given), "d1": None if source == "ann" else values[0]}
            at = 1.0 + (name == "q1")  # no two queries of a tenant were served at once
            self._observed(query, shown, "judge", source, at)
            self.model.observe(query, shown, "judge", source, at, late=True)

    @rule(
        tenant=tenants,
        task=tasks,
        name=queries,
        shown=st.dictionaries(documents, st.none() | rewards, min_size=1),
        judge=judges,
        source=sources,
        late=st.booleans(),
    )
    def observe(self, tenant, task, name, shown, judge, source, late):
        """A query is served now, or was served before anything was forgotten."""
        self.steps += 1
        at = float(self.steps) if late else time.time()
        written = self._observed((tenant, task, name), shown, judge, source, at)

        assert written == self.model.observe((tenant, task, name), shown, judge, source, at, late=late)

    @rule(tenant=tenants, task=tasks, name=queries, document=documents, judge=judges, source=sources, value=rewards)
    def reward(self, tenant, task, name, document, judge, source, value):
        """Somebody says something of a pair, which may not be there."""
        query = (tenant, task, name)
        written = self.store.reward(judge, {query: {document: value}}, source=source)
        is_there = query in self.model.queries and document in self.model.queries[query].shown
        if is_there:
            self.model.reward(query, document, judge, source, value)

        assert written == is_there

    @rule(tenant=tenants, judge=judges, value=rewards)
    def judge(self, tenant, judge, value):
        """A judge is asked about what waits, which is what it has not answered."""
        waiting = self.store.judge_queue.waiting(judge, tenant=tenant)
        is_waited_for = tenant in self.store.judge_queue.tenants(judge)
        pairs = {(query.query, shown.text) for query in waiting for shown in query.candidates}
        answered = {key[:2] for key in self.model.given(tenant, judge)}
        unanswered = [
            (query, document)
            for query, known in self.model.of(tenant).items()
            for document in known.shown
            if (query, document) not in answered
        ]
        verdicts = {query.query_id: {shown.doc_id: value for shown in query.candidates} for query in waiting}
        by_another = self.store.judge_queue.judged(judge, verdicts, tenant=TENANTS[tenant == TENANTS[0]])
        written = self.store.judge_queue.judged(judge, verdicts, tenant=tenant)
        for query, document in unanswered:
            self.model.reward(query, document, judge, "", value)

        assert pairs == {(str(query), f"{document} of {tenant}") for query, document in unanswered}
        assert (by_another, written) == (0, len(unanswered))
        assert is_waited_for == bool(unanswered)
        assert tenant not in self.store.judge_queue.tenants(judge)

    @rule(
        tenant=tenants,
        what=st.sampled_from(THINGS),
        unseen=st.booleans(),
    )
    def forget(self, tenant, what, unseen):
        """A query, a document, a source or all of a tenant is forgotten."""
        kind, name = what
        expected = self.model.forget(tenant, kind, name, unseen=unseen)
        named = {"query": "query_id", "document": "document_id", "source": "source"}
        given = {} if kind == "tenant" else {named[kind]: name}
        gone = None
        with suppress(InputError):
            gone = self.store.forget(tenant=tenant, unseen=unseen, by="me", **given).versions

        assert gone == expected

    @precondition(lambda self: self.model.queries)
    @rule(step=st.integers(1, 30))
    def expire(self, step):
        """What was last served before a time goes, and no version with it."""
        old = {key for key, query in self.model.queries.items() if query.at < step}
        self.model.drop(old)
        self.model.due |= {tenant for tenant, _, _ in old}
        self.model.expired |= {tenant for tenant, versions in self.model.versions.items() if old and versions}

        assert self.store.expire(float(step), by="me") == len(old)

    @rule(tenant=tenants)
    def publish(self, tenant):
        """A version is published."""
        number = self.store.registry.publish(Offsets([], width=4), by="me", tenant=tenant).number

        assert number > max((known for of_one in self.model.versions.values() for known in of_one), default=0)
        self.model.serve(tenant, number)

    @rule(tenant=tenants, to=st.none() | st.integers(1, 6))
    def roll_back(self, tenant, to):
        """The version before is served again, or one that is named; what never was the tenant's is refused."""
        versions, live = self.model.versions[tenant], self.model.live.get(tenant)
        number = versions.get(live) if to is None else to if to in versions else None
        served = None
        with suppress(StoreError):
            served = self.store.registry.rollback(by="me", tenant=tenant, to=to).number
        if number is not None:
            self.model.serve(tenant, number)

        assert served == number

    @rule(tenant=tenants | st.none(), note=st.none() | st.sampled_from(("wrong", "slow")))
    def halt(self, tenant, note):
        """Offsets of one tenant or all are halted, or resumed."""
        registry, halted = self.store.registry, self.model.halted
        if note is None:
            registry.resume(by="me", tenant=tenant)
            halted.pop(tenant, None)
        else:
            registry.halt(by="me", tenant=tenant, note=note)
            halted[tenant] = note
        self.model.changed.add(tenant or "")
        self.model.due |= {tenant} - {None}

    @rule(tenant=tenants)
    def look(self, tenant):
        """A worker has looked at what is new of a tenant."""
        marks, lease = self.store.due.marks(tenant), self.store.leases.take(tenant, "me", 60.0)
        self.store.due.settle(marks, tenant=tenant, lease=lease)
        self.store.leases.release(lease)
        self.model.due.discard(tenant)

    @rule()
    def restart(self):
        """Workers look with something else from now on."""
        self.store.due.restart()
        self.model.due |= {tenant for tenant in TENANTS if tenant in self.model.live or self.model.given(tenant)}

    @invariant()
    def both_say_the_same(self):
        """What there is, what is learned from, what is served, what is due."""
        store, model = self.store, self.model
        generations = store.generations().own
        changed = {name for name, number in generations.items() if number != self.generations.get(name)}
        assert changed == model.changed
        model.announced |= changed
        assert generations.keys() == model.announced
        assert store.generations().halted == model.halted.get(None)
        self.generations, model.changed = generations, set()
        assert store.due.tenants() == sorted(model.due)
        for tenant in TENANTS:
            serving, own = store.serving(tenant=tenant), store.serving(tenant=tenant, own=True)
            live, halted = model.live.get(tenant), model.halted.get(tenant)
            assert (serving.version and serving.version.number, serving.halted) == model.serving(tenant)
            assert (own.version and own.version.number, own.halted) == (live, halted)
            assert own.generation == generations.get(tenant, 0)
            aliases = {"live": live, "previous": model.versions[tenant].get(live)}
            assert store.registry.aliases(tenant=tenant) == {k: v for k, v in aliases.items() if v is not None}
            known = model.of(tenant).values()
            pairs = sum(len(query.shown) for query in known)
            answered = {key[:2] for key in model.given(tenant)}
            counts = store.counts(tenant)
            assert (counts.queries, counts.pairs, counts.rewards) == (len(known), pairs, len(model.given(tenant)))
            assert counts.documents == len({document for query in known for document in query.shown})
            assert counts.waiting == pairs - len(answered)
            assert dict(store.judges(tenant=tenant)) == Counter(judge for _, _, judge, _ in model.given(tenant))
            for judge in JUDGES:
                given = model.given(tenant, judge)
                assert self._learned_from(tenant, judge) == given
                means = defaultdict(lambda: defaultdict(list))
                for (query, document, _, _), value in given.items():
                    means[query[2], document][query[1]].append(value)
                verdicts = store.history.verdicts(tenant, judge=judge)
                assert verdicts.keys() == means.keys()
                assert all(value in map(np.mean, means[pair].values()) for pair, value in verdicts.items())
                assert store.written(judge, tenant=tenant) == model.written[tenant, judge]

    def teardown(self):
        """What is left of a tenant equals one that never saw the rest, whatever came in which order."""
        for tenant in TENANTS:
            if self.store is not None and self.model.of(tenant):
                self._never_saw(tenant)

    def _never_saw(self, tenant):
        """Compare a tenant with another that is told what is left of it, and nothing else."""
        other = f"{NEVER}: {tenant}"
        for (_, *key), query in reversed(self.model.of(tenant).items()):
            self._observed((other, *key), dict.fromkeys(query.shown), "judge", "", query.at, like=tenant)
        for ((_, *key), document, judge, source), value in reversed(self.model.given(tenant).items()):
            self.store.reward(judge, {(other, *key): {document: value}}, source=source)
        assert replace(self.store.counts(other), bytes=0) == replace(self.store.counts(tenant), bytes=0)
        for judge in JUDGES:
            for last in (None, 1, 2):
                left, never = self._arrays(tenant, judge, last), self._arrays(other, judge, last)
                assert left == never

    def _observed(self, query, shown, judge, source, at, *, like=None):
        tenant, task, name = query
        whose = tenant if like is None else like
        candidates = [
            Candidate(document, vector(document), f"{document} of {whose}", reward)
            for document, reward in shown.items()
        ]
        text = str((whose, task, name))
        served = Served(name, vector(name), candidates, text, task, tenant, at, "e", source=source)
        return self.store.observe([served], judge=judge)

    def _learned_from(self, tenant, judge):
        """The rewards that a fit reads, as the model has them; vectors and texts are those that were served."""
        try:
            rewards = self.store.rewards(judge, tenant=tenant)
        except RewardError:
            return {}
        assert rewards.query_vectors.tolist() == [vector(name).tolist() for name in rewards.query_ids]
        assert rewards.doc_vectors.tolist() == [vector(name).tolist() for name in rewards.doc_ids]
        keys = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True)
        assert list(rewards.query_texts) == [str((tenant, *key)) for key in keys]
        assert list(rewards.doc_texts) == [f"{name} of {tenant}" for name in rewards.doc_ids]
        rows = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), rewards.sources.tolist(), strict=True)
        names = rewards.doc_ids[rewards.candidates]
        return {
            ((tenant, task, name), document, judge, source): value
            for row, (task, name, source) in enumerate(rows)
            for document, value in zip(
                names[rewards.starts[row] : rewards.starts[row + 1]].tolist(),
                rewards.values[rewards.starts[row] : rewards.starts[row + 1]].tolist(),
                strict=True,
            )
        }

    def _arrays(self, tenant, judge, last):
        """All that a fit reads, to compare bit for bit."""
        try:
            rewards = self.store.rewards(judge, tenant=tenant, last=last)
        except RewardError:
            return None
        arrays = (rewards.query_vectors, rewards.doc_vectors, rewards.values, rewards.candidates)
        names = (
            rewards.tasks,
            rewards.query_ids,
            rewards.sources,
            rewards.doc_ids,
            rewards.query_texts,
            rewards.doc_texts,
        )
        return [array.tobytes() for array in arrays], [list(column) for column in names]


def test_a_store_says_what_its_model_says(store, request):
    """Served, rewarded, judged, forgotten, expired, published, rolled back and halted in any order."""
    machine = type("Machine", (StoreMachine,), {"store": store})
    examples = 3 if "postgresql" in request.node.name else 12
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=checks,
            database=None,
            derandomize=True,  # what fails here fails everywhere
        ),
    )


@pytest.mark.parametrize("last", [1, 2, 3])
def test_the_last_queries_are_chosen_by_when_they_were_served(store, last):
    """Whatever order they came in, and whoever else was served later."""
    for number in (3, 0, 4, 1, 2):
        shown = [Candidate("d0", vector("d0"), "text", 0.5)]
        at = float(number)
        store.observe([Served(f"q{number}", vector("q"), shown, "asked", at=at)], judge="judge")
        store.observe([Served("later", vector("q"), shown, "asked", tenant="a", at=at + 10)], judge="judge")

    chosen = store.rewards("judge", last=last), store.rewards("judge", since=5.0 - last)

    assert [sorted(query.query_ids.tolist()) for query in chosen] == [
        [f"q{number}" for number in range(5 - last, 5)]
    ] * 2
