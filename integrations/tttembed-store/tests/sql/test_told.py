"""What `tttembed report` tells is the same of both databases."""

from tttembed_store.report import gather
from tttembed_store.sql import open_store

from tests.traffic import JUDGE, learned, traffic


def reported(url):
    """What is told of a store with 30 rewarded queries, two versions, a rollback and a halt."""
    with open_store(url) as store:
        store.observe(traffic(30), judge=JUDGE)
        for _ in range(2):
            store.registry.publish(learned(store), by="me")
        store.registry.rollback(by="me")
        store.registry.halt(by="me", note="a drill")
    return gather(url, at=100.0)


def test_both_databases_tell_the_same(sqlite_url, postgres_url):
    """Days, moves, evidence, changes, and since when what is live."""
    of_file, of_server = reported(sqlite_url), reported(postgres_url)

    assert of_file.days[-1].rewards == 120
    assert of_file.effect.examples != ()
    for report in (of_file, of_server):
        halt, rollback, *_ = report.changes
        assert (halt.at, rollback.at) == (report.live.halted_since, report.live.since)
    assert (of_file.days, of_file.effect, of_file.judges) == (of_server.days, of_server.effect, of_server.judges)
    assert of_file.live.offsets == of_server.live.offsets != ()
    assert [line.detail for line in of_file.changes] == [line.detail for line in of_server.changes]
