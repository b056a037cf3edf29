"""What is due: the tenants with something new, what ends that, and what other tenants cost."""

import re

import numpy as np
import pytest
from sqlalchemy import event
from tttembed_store.sql import Candidate, Served, open_store

from tests.traffic import JUDGE


@pytest.fixture
def store(store_url):
    """A store of either kind with three tenants; nothing is due."""
    with open_store(store_url) as opened:
        observe(opened, "quiet", "loud", "")
        for tenant in opened.due.tenants():
            look(opened, tenant)
        yield opened


def observe(store, *tenants, reward=0.5, query="q"):
    """A rewarded query of each tenant."""
    one = Candidate("d", np.ones(8), "text", reward)
    store.observe([Served(query, np.ones(8), [one], "asked", tenant=tenant) for tenant in tenants], judge=JUDGE)


def look(store, tenant, judge=None):
    """A worker looks at what is due for a tenant."""
    marks, lease = store.due.marks(tenant, judge), store.leases.take(tenant, "me", 60)
    store.due.settle(marks, tenant=tenant, lease=lease)


def test_what_is_due_for_one_judge_stays_due_for_another(store):
    """Each judge's worker looks for itself."""
    observe(store, "quiet", query="new")
    store.observe([Served("new", np.ones(8), [Candidate("d", np.ones(8), "text", 0.5)], tenant="loud")], judge="other")
    look(store, "quiet", JUDGE)
    due = {judge: store.due.tenants(judge) for judge in (JUDGE, "other", "third", None)}

    assert due == {JUDGE: [], "other": ["loud"], "third": [], None: ["loud"]}


def test_what_comes_while_it_is_looked_at_stays(store):
    """A worker ends what it has seen, and nothing else; nothing of the count is lost."""
    observe(store, "loud", query="one")
    marks, lease = store.due.marks("loud"), store.leases.take("loud", "me", 60)
    observe(store, "loud", query="two")
    store.due.settle(marks, tenant="loud", lease=lease)

    assert store.due.tenants() == ["loud"]
    assert store.written(JUDGE, tenant="loud") == 3


def test_idle_tenants_are_not_read(sqlite_url):
    """Neither what is due nor what waits is found by going over all tenants."""
    with open_store(sqlite_url) as store:
        observe(store, *(f"t{number}" for number in range(50)))
        store.judge_queue.tenants("somebody")
        scans = []

        def explain(connection, cursor, statement, parameters, *_):
            plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            whole = re.compile("SCAN (tenants|progress|due)(?!.* INDEX due_marked)")
            scans.extend(step[3] for step in plan if whole.match(step[3]))

        event.listen(store._database.engine, "before_cursor_execute", explain)
        store.due.tenants()
        store.judge_queue.tenants("somebody")

    assert scans == []
