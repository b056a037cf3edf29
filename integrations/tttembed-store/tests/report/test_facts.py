"""What is reported of a store that a worker has filled: what is live and why, over time, and list by list."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from tttembed_store import Candidate, Served, open_store
from tttembed_store.report import gather, page_of
from tttembed_store.sql.database import Database
from tttembed_store.worker.tenant import prevailing_judge, read_memory

from tests.traffic import fan, observed, published, rewarded, task_offset, turned
from tttembed_rag import Evidence, InputError, Offset, Offsets, fit
from tttembed_rag.evaluate.page.moving import effect_of, lists_of
from tttembed_rag.judging import Paid
from tttembed_rag.offsets.rerankskips import Skips
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


def test_the_live_version_is_told_with_its_evidence(url, report):
    """Each shared offset with gain, interval, dose, number and reason, and the gain on queries since."""
    with open_store(url) as store:
        (known,) = [offset for offset in store.registry.version().offsets.values() if offset.query_id is None]
    version, evidence = report.live.version, known.evidence
    (facts,) = report.live.offsets

    assert (version.number, version.aliases, version.by, version.kept, version.served) == (2, ("live",), "worker", 1, 1)
    assert (facts.n, facts.alpha, facts.gain, facts.interval) == (
        known.n,
        known.alpha,
        evidence.gain,
        evidence.interval,
    )
    assert (facts.verdict, facts.reason) == ("published", evidence.reason)
    assert "on the last 40 queries that came after the version they test" in report.live.trial
    assert [(version.number, version.rewarded, version.served) for version in report.versions] == [
        (2, 80, 1),
        (1, 40, 1),
    ]


def test_the_page_tells_these_facts(report, page, held):
    """Section by section, in sentences and tables."""
    version, (today, *_) = report.live.version, report.days[::-1]
    (offset,) = report.live.offsets
    low, high = offset.interval
    since = datetime.fromtimestamp(version.at, UTC).strftime("%Y-%m-%d %H:%M")
    gain, lose = (sum(sign * change > 0 for change in held.gains) for sign in (1, -1))
    sentences = [
        ("", f"Version 2 is live since {since}: {version.served} of {version.kept} offsets are served"),
        (
            "Why",
            f"published {offset.gain:+.3f} [{low:+.3f}, {high:+.3f}] {offset.n} {offset.alpha:.2f} {offset.reason}",
        ),
        ("Why", "by worker"),
        ("Why", f"Since then: {report.live.trial}."),
        ("Rewards and spend per day", f"{report.judges[0][0]} 480"),
        (
            "On queries that were not learned from",
            f"goes from {held.raw:.3f} to {held.served:.3f} ({held.gain:+.3f}, 90 %",
        ),
        (
            "On queries that were not learned from",
            f"{held.share:.0%} of what reranking by the rewards themselves would",
        ),
        ("Query by query", f"{gain} queries gain, {lose} lose, {80 - gain - lose} stay as they are."),
        ("Query by query", f"nDCG@10 {held.best[0].before:.3f} → {held.best[0].after:.3f}"),
    ]

    assert today.queries == 0
    assert page.sections["Versions"].index("2 live") < page.sections["Versions"].index("1 previous")
    assert [(section, sentence) for section, sentence in sentences if sentence not in page.sections[section]] == []


def halted(url):
    """A drill."""
    published(url, turned())
    with open_store(url) as store:
        store.registry.halt(by="me", note="a drill")


def withheld(url):
    """A version that serves nothing."""
    evidence = Evidence(9, 0.01, (-0.06, 0.08), "abstained", "too few", 30)
    published(url, Offsets([task_offset("billing", [0.0, 0.0], evidence)], width=2))


def damaged(url):
    """A version whose offsets were changed behind the store's back."""
    published(url, turned())
    database = Database(url)
    with database.write("publishing") as connection:
        connection.exec_driver_sql("UPDATE versions SET content = zeroblob(10)")
    database.close()


@pytest.mark.parametrize(
    ("change", "section", "sentence"),
    [
        (lambda _: None, "", "The store is empty"),
        (lambda url: observed(url, "q"), "", "No version is live"),
        (halted, "", r"Halted since \d{4}-\d\d-\d\d \d\d:\d\d: every query is served its base vector \(a drill\)\. "),
        (halted, "", "Version 1 waits"),
        (withheld, "", "serves none of its 1 offsets: every query is served its base vector"),
        (withheld, "Why", r"task:billing: about 30 more rewarded queries would settle it, if the gain holds\."),
        (damaged, "Why", "damaged"),
        (damaged, "Audit trail", "publish"),
    ],
)
def test_the_page_tells_the_state_of_a_store(sqlite_url, change, section, sentence, parsed):
    change(sqlite_url)

    assert re.search(sentence, parsed(page_of(gather(sqlite_url))).sections[section])


def test_since_when_is_told_from_the_rollback_on(store, sqlite_url):
    """A version that is served again is live since then, not since it was published."""
    published(sqlite_url, turned())
    published(sqlite_url, turned())
    store.registry.rollback(by="me", note="was better")
    went_live = store.changes.lines(limit=1)[0].at

    live = gather(sqlite_url).live

    assert (live.version.number, live.since) == (1, went_live)
    assert live.version.at < went_live


@pytest.mark.parametrize("tenant", [None, ""])
def test_a_halt_is_told_with_its_reason(store, sqlite_url, tenant):
    """And since when, whether all tenants or this one is halted; after `resume` the version is live again."""
    published(sqlite_url, turned())
    store.registry.halt(by="me", tenant=tenant, note="a drill")
    halted = gather(sqlite_url)
    store.registry.resume(by="me", tenant=tenant)

    assert (halted.live.halted, halted.live.version.number) == ("a drill", 1)
    assert (halted.changes[0].action, halted.live.halted_since) == ("halt", halted.changes[0].at)
    assert gather(sqlite_url).live.halted is None


def test_an_offset_says_how_much_reranking_it_spares_and_whether_words_sort(sqlite_url, parsed):
    """Nothing of a task where that was not measured."""
    sure = Evidence(99, 0.1, (0.05, 0.15), "published", "steady")
    measured = replace(sure, lost=(0.2, 0.05, 0.004, 0.002))
    billing = replace(task_offset("billing", [0.0, 2.0], measured), skips=Skips((2.0,), (0.01,), 10))
    rescorer = Rescorer(np.ones(4), Vocabulary.of(["red fox"]), replace(sure, reason="words beside vectors"))
    local = replace(task_offset("shop", [0.0, 0.0], sure), scope="local", rescorer=rescorer)
    published(sqlite_url, Offsets([billing, local, task_offset("legal", [0.0, 1.0], sure)], width=2))

    report = gather(sqlite_url)
    why = parsed(page_of(report)).sections["Why"]

    facts = {known.key: (known.reranking, known.words) for known in report.live.offsets}
    assert facts["task:legal"] == ("", "")
    assert facts["task:billing"][0].startswith(
        "rerank 3 instead of 4: at most 0.01 nDCG@10 lost (90 %), 25% fewer pairs; a cascade skips the reranker in 2%"
    )
    assert facts["local:shop"][1].startswith("published: +.100")
    assert f"task:billing: {facts['task:billing'][0]}." in why
    assert f"local:shop, sorted by words too: {facts['local:shop'][1]}" in why


def test_a_tenant_without_a_version_is_served_the_shared_one(sqlite_url, parsed):
    """And the page says whose it is."""
    published(sqlite_url, turned())
    observed(sqlite_url, "q", tenant="shop")

    report = gather(sqlite_url, tenant="shop")

    assert (report.live.shared, report.effect.looked, report.effect.moved) == (True, 1, 1)
    assert "Version 1 of the shared tenant is live" in parsed(page_of(report)).sections[""]


def test_tenants_are_not_told_of_each_other(sqlite_url):
    """The report of one names nothing of another's: ids, versions, judges, changes."""
    observed(sqlite_url, "secret-query", tenant="secret")
    published(sqlite_url, turned("secret-task"), tenant="secret", note="secret-note")
    observed(sqlite_url, "my-query", tenant="shop")
    published(sqlite_url, turned(), tenant="shop", note="my-note")

    html = page_of(gather(sqlite_url, tenant="shop"))

    assert [word for word in ("my-query", "my-note", "secret") if word in html] == ["my-query", "my-note"]


def test_an_unknown_tenant_is_refused(url):
    """A slip of the pen is not served a page of the shared tenant."""
    with pytest.raises(InputError, match="expected one of the store, got 'shpo'"):
        gather(url, tenant="shpo")


def test_a_gain_that_nothing_bounds_has_no_interval(sqlite_url):
    """It is told by itself."""
    unbounded = Evidence(3, 0.125, (float("-inf"), float("inf")), "published", "odd")
    published(sqlite_url, Offsets([task_offset("a", [1, 0], unbounded)], width=2))

    (known,) = gather(sqlite_url).live.offsets

    assert (known.gain, known.interval) == (0.125, None)


# Over time


def test_the_report_looks_at_the_judge_that_the_worker_learns_from(store, sqlite_url, planted):
    """A judge that rewarded most of the last queries, not one that gave most rewards long ago."""
    rewards = planted(160, strength=0.9, dtype=np.float32)
    store.observe(rewarded(rewards, range(105), at=NOON - 9 * DAY), judge="old")
    store.observe(rewarded(rewards, range(105, 160), at=NOON), judge="new")
    learned_from = prevailing_judge(store, "", read_memory(store, ""))

    report = gather(sqlite_url, at=NOON)

    assert report.judges[0][0] == "old"
    assert learned_from == "new"
    assert report.held_out is not None
    assert report.held_out.measure == "by the rewards of new"


def test_days_count_what_was_served_on_them(sqlite_url):
    """Thirty days by UTC, the last one that of the report; what is older is not told."""
    start = datetime(2026, 3, 20, tzinfo=UTC).timestamp()
    for number, at in enumerate([start - 30 * DAY, start - 29 * DAY - 1, start - 29 * DAY, start - 1, start, NOON]):
        observed(sqlite_url, f"q{number}", at=at)

    days = gather(sqlite_url, at=NOON).days

    assert [day.day for day in days] == [datetime(2026, 2, 19, tzinfo=UTC).date() + timedelta(d) for d in range(30)]
    assert [day.queries for day in days] == [1, *[0] * 27, 1, 2]
    assert [day.rewards for day in days] == [6, *[0] * 27, 6, 12]


def test_spend_is_told_of_the_day_on_which_it_was_paid(store, sqlite_url):
    store.judge_queue.answers().put("j", {bytes(32): Paid(0.5, 100.0, 1.25)})

    spend = gather(sqlite_url).days[-1].spend

    assert (spend.pairs, spend.tokens, spend.usd) == (1, 100.0, 1.25)


def test_changes_are_told_newest_first(store, sqlite_url):
    """Those of the tenant and those of all tenants."""
    store.registry.halt(by="me", note="all")
    store.changes.note("me", "checked", "another's", tenant="other")
    store.changes.note("me", "checked", "ours")

    assert [line.detail for line in gather(sqlite_url).changes] == ["ours", "all"]


# Lists before and after


def test_lists_are_those_of_the_offset(sqlite_url):
    """A query turned past all its documents has them in reverse, each with its rank before, its reward and its text."""
    published(sqlite_url, turned())
    observed(sqlite_url, "q1", query="which?", at=NOON)

    (lists,) = gather(sqlite_url).effect.examples

    # The turned query is at 63 degrees, documents every 18: d4, d3, d5, d2, d1, d0.
    assert (lists.query_id, lists.query, lists.offset) == ("q1", "which?", "task:default")
    assert [listed.document for listed in lists.candidates] == ["d0", "d1", "d2", "d3", "d4", "d5"]
    assert [(listed.rank, listed.document, listed.reward, listed.text) for listed in lists.ranked()] == [
        (5, "d4", 0.8, "text 4"),
        (4, "d3", 0.6, "text 3"),
        (6, "d5", 1.0, "text 5"),
        (3, "d2", 0.4, "text 2"),
        (2, "d1", 0.2, "text 1"),
        (1, "d0", 0.0, "text 0"),
    ]


def test_a_document_from_far_below_has_its_rank():
    """A list holds the first candidates before and after alone; the ranks of those are among all."""
    angles = np.linspace(0.0, np.pi / 2, 60)
    far = [Candidate(f"d{i}", np.array([np.cos(a), np.sin(a)])) for i, a in enumerate(angles)]

    lists = lists_of(Served("q", np.array([1.0, 0.0]), far), np.array([0.0, 5000.0]), "global")

    assert len(lists.candidates) == 40
    assert [(listed.document, listed.rank) for listed in lists.ranked()[:2]] == [("d59", 60), ("d58", 59)]


def test_a_list_is_what_is_served(planted):
    """Two numbers for each candidate give the order that `apply` gives, local offsets included."""
    rewards = planted(60, strength=0.9)
    offsets = fit(rewards, scope="local", gate=False)
    served = Served(
        "new", rewards.query_vectors[0] + 0.1, [Candidate(str(i), v) for i, v in enumerate(rewards.doc_vectors[:15])]
    )
    base = served.vector / np.linalg.norm(served.vector)

    lists = lists_of(served, offsets["local:default"].dosed(base), "local:default")

    similar = rewards.documents.unit[:15] @ offsets.apply(served.vector)
    assert [int(listed.document) for listed in lists.ranked()] == np.argsort(-similar).tolist()
    assert lists.moved


def test_a_private_offset_moves_its_query_alone(sqlite_url, parsed):
    """Found by the query's id, and never for another tenant's query with the same id; the page says when."""
    evidence = Evidence(9, None, None, "published", "steady")
    names = ["q1", "q3"]
    own = [Offset("query", np.array([0.0, 2.0]), 1.0, 1, evidence, task="default", query_id=name) for name in names]
    published(sqlite_url, Offsets(own, width=2))
    for tenant in ("", "acme"):
        for query_id in ("q1", "q2"):
            observed(sqlite_url, query_id, tenant=tenant, at=NOON)

    shared, other = gather(sqlite_url), gather(sqlite_url, tenant="acme")

    assert [example.query_id for example in shared.effect.examples] == ["q1"]
    assert other.effect.examples == ()
    sentence = "Private offsets of judged queries: 2 of 2 are served, each where the text of its query is asked again."
    assert sentence in parsed(page_of(shared)).sections["Why"]


def test_queries_that_get_another_order_are_counted(sqlite_url):
    """Those that no offset serves, or that nothing moves, are looked at and not counted."""
    published(sqlite_url, turned())
    observed(sqlite_url, "moved", at=NOON)
    observed(sqlite_url, "moved too", at=NOON - 1)
    observed(sqlite_url, "unmoved", [*fan()[:1], Candidate("far", np.array([-1.0, 0.0]))], at=NOON + 2)
    observed(sqlite_url, "unserved", task="another", at=NOON + 3)

    effect = gather(sqlite_url).effect

    assert (effect.looked, effect.moved) == (4, 2)
    assert [example.query_id for example in effect.examples] == ["moved", "moved too"]


def test_vectors_of_another_model_are_left_out(store, sqlite_url):
    """Of another width, or of another name than the version was learned from."""
    published(sqlite_url, turned(), embedder="new")
    observed(sqlite_url, "q1", embedder="old", at=NOON)
    observed(sqlite_url, "q2", embedder="new", at=NOON - 1)
    wide = [Candidate("w1", np.ones(3)), Candidate("w2", np.arange(3.0))]
    store.observe([Served("q3", np.ones(3), wide, at=NOON + 1, embedder="wide")])

    assert [example.query_id for example in gather(sqlite_url).effect.examples] == ["q2"]


def test_queries_that_nobody_judged_are_shown_first():
    """An offset says little by what it does to queries that it learned from; the page says which are which."""
    rng = np.random.default_rng(0)
    vector = rng.normal(size=8)
    evidence = Evidence(9, None, None, "ungated", "made for a test")
    offsets = Offsets([Offset("task", vector, 0.9, 9, evidence, task="t")], width=8)
    recent = [
        Served(
            f"q{number}",
            rng.normal(size=8),
            [Candidate(f"d{i}", rng.normal(size=8), f"text {i}", 0.5 if number < 8 else None) for i in range(10)],
            task="t",
        )
        for number in range(12)
    ]

    effect = effect_of(offsets, recent, owner="")

    assert [example.judged for example in effect.examples] == [False] * 4 + [True]


def test_a_store_without_texts_tells_ids(tmp_path):
    """And no text of a query or document."""
    url = f"sqlite:///{tmp_path / 'quiet.db'}"
    with open_store(url, texts=False) as store:
        candidates = [replace(shown, text="secret") for shown in fan()]
        store.observe([Served("q1", np.array([1.0, 0.0]), candidates, "secret", at=NOON)], judge="j")
        store.registry.publish(turned(), by="me")

    report = gather(url)

    assert [example.query_id for example in report.effect.examples] == ["q1"]
    assert "secret" not in repr(report) + page_of(report)
