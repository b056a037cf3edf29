"""`tttembed report`: what it tells of a store that a worker has filled, and that it stays one harmless small page."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from markupsafe import escape
from tttembed_store import Candidate, Served, Worker, open_store
from tttembed_store.report import gather, page_of
from tttembed_store.report.crossfit import held_out, moved_without, parts_of
from tttembed_store.sql.database import Database
from tttembed_store.worker.tenant import prevailing_judge, read_memory

from tttembed_rag import Evidence, InputError, Offset, Offsets, fit
from tttembed_rag.cli import main
from tttembed_rag.evaluate.page import drawing
from tttembed_rag.evaluate.page.heldout import Traffic, traffic_of
from tttembed_rag.evaluate.page.moving import effect_of, lists_of
from tttembed_rag.judging import Paid
from tttembed_rag.offsets.rerankskips import Skips
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0
JUDGE = "judge<script>alert('judge')</script>"
EVIL = "<script>alert(\"{}\")</script><img src=x onerror='alert(1)'>&amp;"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """What a page says, section by section, and which elements it is made of."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"": ""}
        self.unclosed: list[str] = []
        self._heading: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note the element and where it lies."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.unclosed.append(tag)
        if tag == "h2":
            self._heading = ""

    def handle_startendtag(self, tag, attrs):
        """Note an element of a drawing."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        """Check that it closes what was opened last."""
        assert self.unclosed.pop() == tag
        if tag == "h2" and self._heading is not None:
            self.sections[self._heading] = ""
            self._heading = None

    def handle_data(self, data):
        """Keep what is said, but not the style."""
        if self._heading is not None:
            self._heading += data
        elif "style" not in self.unclosed:
            name = list(self.sections)[-1]
            self.sections[name] = " ".join(f"{self.sections[name]} {data}".split())

    def all(self, tag):
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


def served(rewards, rows, *, at=NOON, name="q", texts=EVIL.format):
    """Queries with rewarded candidates, served at a moment, by default with hostile names and texts everywhere."""

    def query(i):
        candidates = [
            Candidate(texts(f"d{j}"), rewards.doc_vectors[j], texts(f"document {j}"), float(rewards.values[j]))
            for j in range(rewards.starts[i], rewards.starts[i + 1])
        ]
        names = texts(f"query {i}"), texts("task")
        return Served(f"{name}{i}", rewards.query_vectors[i], candidates, *names, at=at - i, embedder="e")

    return [query(i) for i in rows]


@pytest.fixture(scope="module")
def url(planted, tmp_path_factory):
    """A store in which a worker has published twice; every text is hostile."""
    rewards = planted(80, strength=0.9, dtype=np.float32)
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'ttt.db'}"
    with open_store(url) as store:
        worker = Worker(store)
        store.observe(served(rewards, range(40), at=NOON - 9 * DAY), judge=JUDGE)
        worker.round()
        store.observe(served(rewards, range(40, 80), at=NOON - DAY), judge=JUDGE)
        worker.round()
        store.judge_queue.answers().put(JUDGE, {bytes(32): Paid(0.5, 100.0, 1.25)})
        store.changes.note(EVIL.format("by"), EVIL.format("action"), EVIL.format("detail"))
    return url


@pytest.fixture(scope="module")
def report(url):
    """What is told of it."""
    return gather(url, at=NOON)


@pytest.fixture(scope="module")
def page(report):
    return Page(page_of(report))


@pytest.fixture
def fresh(tmp_path):
    """The URL of an empty store."""
    url = f"sqlite:///{tmp_path / 'fresh.db'}"
    open_store(url).close()
    return url


def offset(key, vector, evidence):
    """A shared offset of a task."""
    return Offset("task", np.array(vector, np.float32), 1.0, 9, evidence, task=key)


def turned(key="default"):
    """An offset in two dimensions that turns a query along the second."""
    return Offsets([offset(key, [0.0, 2.0], Evidence(9, 0.1, (0.05, 0.15), "published", "steady"))], width=2)


def fan(count=6):
    """Documents fanned out from the first dimension to the second, the farther the better rewarded."""
    angles = np.linspace(0.0, np.pi / 2, count)
    return [
        Candidate(f"d{i}", np.array([np.cos(a), np.sin(a)]), f"text {i}", i / (count - 1)) for i, a in enumerate(angles)
    ]


def published(url, offsets, **facts):
    with open_store(url) as store:
        store.registry.publish(offsets, by="me", **facts)


def observed(url, query_id, candidates=None, **facts):
    """A query along the first dimension that was served."""
    query = Served(query_id, np.array([1.0, 0.0]), fan() if candidates is None else candidates, **facts)
    with open_store(url) as store:
        store.observe([query], judge="j")


def learned_from(url, queries, judge="j"):
    """A store with rewarded *queries*, and what is told of it."""
    with open_store(url) as store:
        store.observe(queries, judge=judge)
    return gather(url, at=NOON)


def changed(url, change):
    """A change of a store that stands."""
    with open_store(url) as store:
        change(store)


def damaged(url):
    """A version whose offsets were changed behind the store's back."""
    published(url, turned())
    database = Database(url)
    with database.write("publishing") as connection:
        connection.exec_driver_sql("UPDATE versions SET content = zeroblob(10)")
    database.close()


# What is live, and why


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
        ("Rewards and spend per day", f"{JUDGE} 640"),
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
    changed(url, lambda store: store.registry.halt(by="me", note="a drill"))


def withheld(url):
    """A version that serves nothing."""
    evidence = Evidence(9, 0.01, (-0.06, 0.08), "abstained", "too few", 30)
    published(url, Offsets([offset("billing", [0.0, 0.0], evidence)], width=2))


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
def test_the_page_tells_the_state_of_a_store(fresh, change, section, sentence):
    change(fresh)

    assert re.search(sentence, Page(page_of(gather(fresh))).sections[section])


def test_since_when_is_told_from_the_rollback_on(fresh):
    """A version that is served again is live since then, not since it was published."""
    published(fresh, turned())
    published(fresh, turned())
    with open_store(fresh) as store:
        store.registry.rollback(by="me", note="was better")
        went_live = store.changes.lines(limit=1)[0].at

    live = gather(fresh).live

    assert (live.version.number, live.since) == (1, went_live)
    assert live.version.at < went_live


@pytest.mark.parametrize("tenant", [None, ""])
def test_a_halt_is_told_with_its_reason(fresh, tenant):
    """And since when, whether all tenants or this one is halted; after `resume` the version is live again."""
    published(fresh, turned())
    changed(fresh, lambda store: store.registry.halt(by="me", tenant=tenant, note="a drill"))
    halted = gather(fresh)
    changed(fresh, lambda store: store.registry.resume(by="me", tenant=tenant))

    assert (halted.live.halted, halted.live.version.number) == ("a drill", 1)
    assert (halted.changes[0].action, halted.live.halted_since) == ("halt", halted.changes[0].at)
    assert gather(fresh).live.halted is None


def test_an_offset_says_how_much_reranking_it_spares_and_whether_words_sort(fresh):
    """Nothing of a task where that was not measured."""
    sure = Evidence(99, 0.1, (0.05, 0.15), "published", "steady")
    measured = replace(sure, lost=(0.2, 0.05, 0.004, 0.002))
    billing = replace(offset("billing", [0.0, 2.0], measured), skips=Skips((2.0,), (0.01,), 10))
    rescorer = Rescorer(np.ones(4), Vocabulary.of(["red fox"]), replace(sure, reason="words beside vectors"))
    local = replace(offset("shop", [0.0, 0.0], sure), scope="local", rescorer=rescorer)
    published(fresh, Offsets([billing, local, offset("legal", [0.0, 1.0], sure)], width=2))

    report = gather(fresh)
    why = Page(page_of(report)).sections["Why"]

    facts = {known.key: (known.reranking, known.words) for known in report.live.offsets}
    assert facts["task:legal"] == ("", "")
    assert facts["task:billing"][0].startswith(
        "rerank 3 instead of 4: at most 0.01 nDCG@10 lost (90 %), 25% fewer pairs; a cascade skips the reranker in 2%"
    )
    assert facts["local:shop"][1].startswith("published: +.100")
    assert f"task:billing: {facts['task:billing'][0]}." in why
    assert f"local:shop, sorted by words too: {facts['local:shop'][1]}" in why


def test_a_tenant_without_a_version_is_served_the_shared_one(fresh):
    """And the page says whose it is."""
    published(fresh, turned())
    observed(fresh, "q", tenant="shop")

    report = gather(fresh, tenant="shop")

    assert (report.live.shared, report.effect.looked, report.effect.moved) == (True, 1, 1)
    assert "Version 1 of the shared tenant is live" in Page(page_of(report)).sections[""]


def test_tenants_are_not_told_of_each_other(fresh):
    """The report of one names nothing of another's: ids, versions, judges, changes."""
    observed(fresh, "secret-query", tenant="secret")
    published(fresh, turned("secret-task"), tenant="secret", note="secret-note")
    observed(fresh, "my-query", tenant="shop")
    published(fresh, turned(), tenant="shop", note="my-note")

    html = page_of(gather(fresh, tenant="shop"))

    assert [word for word in ("my-query", "my-note", "secret") if word in html] == ["my-query", "my-note"]


def test_an_unknown_tenant_is_refused(url):
    """A slip of the pen is not served a page of the shared tenant."""
    with pytest.raises(InputError, match="expected one of the store, got 'shpo'"):
        gather(url, tenant="shpo")


def test_a_gain_that_nothing_bounds_has_no_interval(fresh):
    """It is told by itself."""
    unbounded = Evidence(3, 0.125, (float("-inf"), float("inf")), "published", "odd")
    published(fresh, Offsets([offset("a", [1, 0], unbounded)], width=2))

    (known,) = gather(fresh).live.offsets

    assert (known.gain, known.interval) == (0.125, None)


# Over time


@pytest.mark.parametrize(
    ("store", "name"),
    [("sqlite:////srv/shop.db", "shop"), ("postgresql+psycopg://me@host/shop", "shop"), ("sqlite:///a b.db", "a b")],
)
def test_the_page_is_called_by_the_store(report, store, name):
    """Its title tells several reports apart in tabs and in mails."""
    assert f"<title>Offsets of {name}</title>" in page_of(replace(report, store=store))


def test_the_report_looks_at_the_judge_that_the_worker_learns_from(fresh, planted):
    """A judge that rewarded most of the last queries, not one that gave most rewards long ago."""
    rewards = planted(160, strength=0.9, dtype=np.float32)
    with open_store(fresh) as store:
        store.observe(served(rewards, range(105), at=NOON - 9 * DAY), judge="old")
        store.observe(served(rewards, range(105, 160), at=NOON), judge="new")
        learned_from = prevailing_judge(store, "", read_memory(store, ""))

    report = gather(fresh, at=NOON)

    assert report.judges[0][0] == "old"
    assert learned_from == "new"
    assert report.held_out is not None
    assert report.held_out.measure == "by the rewards of new"


def test_days_count_what_was_served_on_them(fresh):
    """Thirty days by UTC, the last one that of the report; what is older is not told."""
    start = datetime(2026, 3, 20, tzinfo=UTC).timestamp()
    for number, at in enumerate([start - 30 * DAY, start - 29 * DAY - 1, start - 29 * DAY, start - 1, start, NOON]):
        observed(fresh, f"q{number}", at=at)

    days = gather(fresh, at=NOON).days

    assert [day.day for day in days] == [datetime(2026, 2, 19, tzinfo=UTC).date() + timedelta(d) for d in range(30)]
    assert [day.queries for day in days] == [1, *[0] * 27, 1, 2]
    assert [day.rewards for day in days] == [6, *[0] * 27, 6, 12]


def test_spend_is_told_of_the_day_on_which_it_was_paid(url):
    spend = gather(url).days[-1].spend

    assert (spend.pairs, spend.tokens, spend.usd) == (1, 100.0, 1.25)


def test_changes_are_told_newest_first(fresh):
    """Those of the tenant and those of all tenants."""
    with open_store(fresh) as store:
        store.registry.halt(by="me", note="all")
        store.changes.note("me", "checked", "another's", tenant="other")
        store.changes.note("me", "checked", "ours")

    assert [line.detail for line in gather(fresh).changes] == ["ours", "all"]


# Lists before and after


def test_lists_are_those_of_the_offset(fresh):
    """A query turned past all its documents has them in reverse, each with its rank before, its reward and its text."""
    published(fresh, turned())
    observed(fresh, "q1", query="which?", at=NOON)

    (lists,) = gather(fresh).effect.examples

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


def test_a_private_offset_moves_its_query_alone(fresh):
    """Found by the query's id, and never for another tenant's query with the same id; the page says when."""
    evidence = Evidence(9, None, None, "published", "steady")
    names = ["q1", "q3"]
    own = [Offset("query", np.array([0.0, 2.0]), 1.0, 1, evidence, task="default", query_id=name) for name in names]
    published(fresh, Offsets(own, width=2))
    for tenant in ("", "acme"):
        for query_id in ("q1", "q2"):
            observed(fresh, query_id, tenant=tenant, at=NOON)

    shared, other = gather(fresh), gather(fresh, tenant="acme")

    assert [example.query_id for example in shared.effect.examples] == ["q1"]
    assert other.effect.examples == ()
    sentence = "Private offsets of judged queries: 2 of 2 are served, each where the text of its query is asked again."
    assert sentence in Page(page_of(shared)).sections["Why"]


def test_queries_that_get_another_order_are_counted(fresh):
    """Those that no offset serves, or that nothing moves, are looked at and not counted."""
    published(fresh, turned())
    observed(fresh, "moved", at=NOON)
    observed(fresh, "moved too", at=NOON - 1)
    observed(fresh, "unmoved", [*fan()[:1], Candidate("far", np.array([-1.0, 0.0]))], at=NOON + 2)
    observed(fresh, "unserved", task="another", at=NOON + 3)

    effect = gather(fresh).effect

    assert (effect.looked, effect.moved) == (4, 2)
    assert [example.query_id for example in effect.examples] == ["moved", "moved too"]


def test_vectors_of_another_model_are_left_out(fresh):
    """Of another width, or of another name than the version was learned from."""
    published(fresh, turned(), embedder="new")
    observed(fresh, "q1", embedder="old", at=NOON)
    observed(fresh, "q2", embedder="new", at=NOON - 1)
    wide = [Candidate("w1", np.ones(3)), Candidate("w2", np.arange(3.0))]
    with open_store(fresh) as store:
        store.observe([Served("q3", np.ones(3), wide, at=NOON + 1, embedder="wide")])

    assert [example.query_id for example in gather(fresh).effect.examples] == ["q2"]


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


# The page


def test_the_page_loads_nothing_and_runs_nothing(page):
    """No element or attribute that fetches or executes, and a policy that forbids both."""
    tags = {tag for tag, _ in page.elements}
    attributes = {name for _, values in page.elements for name in values}

    assert tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "a", "b", "i"} == set()
    assert {name for name in attributes if name.startswith("on") or name in {"src", "href", "style", "srcset"}} == set()
    assert [word for word in ("@import", "url(") if word in page.html] == []
    assert {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"} in (
        page.all("meta")
    )


def test_hostile_texts_are_shown_as_texts(page):
    """Queries, documents, tasks, judges, names and details of changes: all are there, none is markup."""
    moved = page.sections["Query by query"]

    for name in (r"query \d+", r"d\d+", r"document \d+"):
        assert re.search(re.escape(EVIL).replace(r"\{\}", name), moved)
    assert JUDGE in page.sections["On queries that were not learned from"]
    assert f"local:{EVIL.format('task')}" in page.sections["Why"]
    assert " ".join(EVIL.format(part) for part in ("by", "action", "detail")) in page.sections["Audit trail"]
    assert "<script" not in page.html
    assert "<img" not in page.html


def test_names_of_all_kinds_are_shown_as_text(fresh):
    """A tenant in title and heading; control characters of ids and notes are question marks."""
    tenant = EVIL.format("tenant")
    observed(fresh, "acme:\x1bq", tenant=tenant)
    published(fresh, turned(), tenant=tenant, note="a\x1b[2Jb")

    page = Page(page_of(gather(fresh, tenant=tenant)))

    title = f"Offsets of fresh, tenant {tenant}"
    assert f"{title} {title}" in page.sections[""]
    assert [text in page.html for text in ("acme:?q", "a?[2Jb", "<script")] == [True, True, False]
    assert [character for character in page.html if not character.isprintable() and character != "\n"] == []


def test_the_page_can_be_read_by_everybody(page):
    """A language, a width for phones, headings in order, headers of tables, titles of drawings, nothing left open."""
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    drawings, titles = page.all("svg"), page.all("title")

    assert page.unclosed == []
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert levels.count(1) == 1
    assert {header["scope"] for header in page.all("th")} == {"col", "row"}
    assert len(drawings) >= 4
    assert len(titles) == len(drawings) + 1
    assert {svg["role"] for svg in drawings} == {"img"}
    assert len(page.all("summary")) == len(page.all("details")) > 1  # which every browser opens by keys


def test_the_same_store_gives_the_same_page(url, report):
    """Byte for byte, whoever reads it, as of a moment that may be given."""
    html = page_of(report)

    assert html == page_of(gather(url, at=NOON))
    assert "read 2026-03-20 12:00" in html


@pytest.mark.slow
def test_the_page_stays_small(fresh):
    """However much there is, and however long it is: under 1 MB."""
    rng = np.random.default_rng(0)
    quotes = '"' * 500
    pool = rng.normal(size=(300, 2))
    with open_store(fresh) as store:
        for number in range(60):
            candidates = [
                Candidate(f"{quotes}{d}", pool[d], '"' * 20_000, float(rng.random())) for d in range(60 * (number < 9))
            ]
            query = Served(f"{quotes}{number}", np.array([1.0, 0.0]), candidates, '"' * 20_000, f"{quotes}t", at=NOON)
            store.observe([query], judge=f"{quotes}{number}")
            reason = Evidence(9, 0.1, (0.05, 0.15), "published", '"' * 5000)
            tasks = [offset(f"{quotes}{task}", [0.0, 2.0], reason) for task in range(40)]
            store.registry.publish(Offsets(tasks, width=2), by=quotes, note='"' * 5000, embedder="")
            store.changes.note(quotes, quotes, '"' * 5000)
        store.registry.publish(turned(f"{quotes}t"), by=quotes)

    report = gather(fresh)

    assert (len(report.versions), len(report.changes), len(report.effect.examples)) == (20, 50, 5)
    assert len(page_of(report).encode()) < 1_000_000


# Drawings


@pytest.mark.parametrize(
    ("amounts", "heights", "top"),
    [([2.0, 0.0, 4.0], [58.0, 116.0], 12.0), ([-3.0, 1.0], [87.0, 29.0], 12.0), ([-2.0, -4.0], [58.0, 116.0], 12.0)],
)
def test_bars_are_as_high_as_their_amounts(amounts, heights, top):
    """Half the amount, half the height; none for nothing; from the least to the greatest the drawing is full."""
    bars = Page(drawing.bars("amounts", amounts, str, "1 Mar", "3 Mar")).all("rect")

    assert [float(bar["height"]) for bar in bars] == heights
    assert min(float(bar["y"]) for bar in bars) == top


# The command


def tttembed(*arguments):
    """What the command does with *arguments*."""
    return CliRunner().invoke(main, ["report", *(str(argument) for argument in arguments)])


def test_the_command_writes_the_page_and_prints_the_same_as_json(url, tmp_path):
    """One line, or one JSON object, with the page or without it."""
    plain, beside = tmp_path / "plain.html", tmp_path / "beside.html"

    line = tttembed("--store", url, "--html", plain)
    with_page = tttembed("--store", url, "--html", beside, "--json")
    alone = tttembed("--store", url, "--json")

    facts = json.loads(with_page.stdout)
    assert (line.exit_code, line.output) == (0, f"Report: {plain}\n")
    assert (facts["live"]["version"]["number"], facts["judges"], len(facts["days"])) == (2, [[JUDGE, 640]], 30)
    assert json.loads(alone.stdout)["live"] == facts["live"]
    assert ["Version 2 is live" in Page(file.read_text()).sections[""] for file in (plain, beside)] == [True, True]


@pytest.mark.slow
def test_a_terminal_shows_how_far_the_report_is(url, tmp_path):
    """The fifths are counted on stderr; what the command prints stays as it is."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "tttembed_rag", "report", "--store", url, "--html", str(tmp_path / "page.html")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, text=True, timeout=120, check=True)
    os.close(end)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)

    assert done.stdout == f"Report: {tmp_path / 'page.html'}\n"
    assert "held-out fifths" in shown
    assert "100%" in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--store", "{url}"], "expected --html OUT.html, --json, or both"),
        (["--store", "{url}", "--html", "{folder}/absent/out.html"], "expected a file in an existing folder"),
        (["--store", "{url}", "--tenant", "nobody", "--json"], "got 'nobody'"),
        (["--store", "sqlite:///{folder}/absent.db", "--json"], "found no file"),
        (["--store", "mysql://user:secret@host/db", "--json"], "expected sqlite:///FILE"),
    ],
)
def test_bad_input_is_one_line(url, tmp_path, arguments, reason):
    """With exit code 2, no trace, no password, and nothing made."""
    result = tttembed(*(argument.format(url=url, folder=tmp_path) for argument in arguments))

    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error")]
    assert reason in line
    assert "secret" not in result.output
    assert list(tmp_path.iterdir()) == []


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


def test_texts_come_before_ids(report):
    """A list of documents is read by their texts; an id stands behind, quietly."""
    listed = [shown for example in report.effect.examples for shown in example.candidates[:10] if shown.text]
    html = page_of(report)

    assert listed
    assert [shown.document for shown in listed if f'{escape(shown.text)} <span class="quiet">' not in html] == []


def test_digests_of_texts_are_told_as_texts(fresh):
    """Neither lists nor evidence show an id that was made of a text that the store has; `versions` does not either."""
    with open_store(fresh) as store:
        shown = [replace(document, doc_id=store.text_id(document.text)) for document in fan()]
        query = store.text_id("which way?")
    observed(fresh, query, shown, query="which way?", at=NOON)
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", f"into many lists rises {shown[5].doc_id}, {'0' * 32}")
    published(fresh, Offsets([offset("default", [0.0, 2.0], evidence)], width=2))

    html = page_of(gather(fresh))
    listed = CliRunner().invoke(main, ["store", "versions", "--store", fresh]).output

    assert "which way?" in html
    assert escape("into many lists rises 'text 5', " + "0" * 32) in html
    assert [name for name in (query, *(document.doc_id for document in shown)) if name in html + listed] == []


# Queries held out


@pytest.fixture(scope="module")
def held(report):
    """What offsets of the rewards in the store do to queries held out."""
    assert report.held_out is not None
    return report.held_out


def test_the_gain_is_of_queries_that_were_not_learned_from(held):
    """Means, share and gains belong together."""
    low, high = held.interval

    assert len(held.gains) == 80
    assert held.rerank == 1.0
    assert held.gain == pytest.approx(np.mean(held.gains), abs=1e-6)
    assert held.share == pytest.approx(held.gain / (1 - held.raw))
    assert low < held.gain < high


def details_of(queries):
    """A function that gives some of the *queries*, by task and id."""
    known = {query.query_id: query for query in queries}
    return lambda names: [replace(known[query_id], task=task) for task, query_id in names]


@pytest.fixture(scope="module")
def mixed(planted):
    """Queries held out, of which every sixth has its rewards upside down: it loses where the others gain."""
    rewards = planted(72, strength=0.9)
    upside_down = np.repeat(np.arange(72) % 6 == 0, rewards.depths)
    rewards = replace(rewards, values=np.where(upside_down, 1 - rewards.values, rewards.values))
    return held_out(rewards, details_of(served(rewards, range(72), name="", texts=str)), judge="mixed")


def test_queries_are_shown_worst_first(mixed):
    """The ten that lose most, the largest loss first, then those that gain most; as many as there are."""
    lost, won = ([query.after - query.before for query in lists] for lists in (mixed.worst, mixed.best))

    assert list(mixed.gains) == sorted(mixed.gains)
    assert len(lost) == 10
    assert lost == pytest.approx(mixed.gains[:10], abs=1e-6)
    assert won == pytest.approx(mixed.gains[:-6:-1], abs=1e-6)
    assert [int(query.query_id) % 6 for query in mixed.worst].count(0) >= 8


def test_lists_of_a_query_held_out_are_those_that_were_measured(mixed):
    """nDCG@10 of the rewards in the order shown is the nDCG@10 that stands above."""
    for query in (*mixed.worst, *mixed.best):
        for order, measured in ((query.candidates, query.before), (query.ranked(), query.after)):
            rewards = np.array([listed.reward for listed in order])
            gains = rewards - rewards.min()
            discount = 1 / np.log2(np.arange(2, len(gains) + 2))
            best = np.sort(gains)[::-1][:10] @ discount[:10]

            assert gains[:10] @ discount[:10] / best == pytest.approx(measured)


def test_offsets_from_noise_are_not_called_a_gain(planted):
    """Where the gate publishes nothing from four fifths, nothing moves, and the sentence says so."""
    rewards = planted(40, strength=0.0)
    noise = np.random.default_rng(1).permutation(rewards.values)

    held = held_out(replace(rewards, values=noise), lambda _: [], judge="noise")

    assert (held.gain, held.moved, held.worst, held.best) == (0.0, False, (), ())
    assert "stays at" in str(held)


def test_a_query_that_was_learned_from_twice_is_held_out_together(planted):
    """A question that was logged again under another id teaches nothing about itself: copies share a part."""
    rewards = planted(30, strength=0.9)
    twice = np.repeat(np.arange(30), 2)
    ids = np.array([f"{row}-{copy}" for row in range(30) for copy in range(2)])
    parts = parts_of(replace(rewards.take(twice), query_ids=ids))

    assert len(np.unique(parts)) == 5
    assert parts[::2].tolist() == parts[1::2].tolist()


def test_the_rows_of_several_sources_are_one_query(planted):
    """Each query counts, and is listed, once, with the mean of what its sources measure."""
    rewards = planted(40, strength=0.5)
    twice = rewards.take(np.repeat(np.arange(40), 2))
    noise = np.random.default_rng(3).permutation(twice.values)
    values = np.where(np.repeat(np.arange(80) % 2 == 0, twice.depths), twice.values, noise)
    rows = replace(twice, values=values, sources=np.array(["ann", "bob"] * 40))
    details = details_of(served(rewards, range(40), name="", texts=str))

    held = held_out(rows, details, scope="task", judge="users")

    shown = [query.query_id for query in (*held.worst, *held.best)]
    assert held.moved
    assert len(held.gains) == 40
    assert len(shown) == len(set(shown)) > 0


def test_no_query_is_moved_by_its_own_rewards(planted):
    """Where the rewards of one part change, the queries of that part are moved as before, and others are not."""
    rewards = planted(40, strength=0.9)
    part = parts_of(rewards)
    mine = part == 0
    upside_down = np.repeat(mine, rewards.depths)
    changed = replace(rewards, values=np.where(upside_down, 1 - rewards.values, rewards.values))

    before, after = (moved_without(rows, part, "task")[0] for rows in (rewards, changed))

    assert np.abs(before[mine]).max() > 0.01
    assert before[mine].tolist() == after[mine].tolist()
    assert before[~mine].tolist() != after[~mine].tolist()


def test_too_few_questions_are_not_held_out(planted):
    """The page then has no such section."""
    assert held_out(planted(9, strength=0.9), lambda _: [], judge="few") is None


def test_the_busiest_documents_are_counted():
    """One document in every list of two places has half of the traffic."""
    before, after = np.array([[0, 1], [2, 3], [4, 5]]), np.array([[0, 1], [0, 3], [0, 5]])

    assert traffic_of(before, after, 100) == Traffic(100, 1, before=1 / 6, after=0.5)
    assert traffic_of(before, after, 101).busiest == 2


def test_a_store_without_a_version_shows_what_would_be_published(fresh, planted):
    """The page before publishing: queries held out, and the offsets that a fit gives."""
    report = learned_from(fresh, served(planted(60, strength=0.9, dtype=np.float32), range(60)))

    assert report.live.version is None
    assert report.held_out is not None
    assert [offset.verdict for offset in report.today] == ["published"]
    assert "What a fit of the last 500 rewarded queries would publish" in Page(page_of(report)).sections


def test_the_report_asks_the_labels_of_an_audit_as_the_worker_does(fresh, planted):
    """Where trusted labels deny the judge, neither the held-out queries nor the next fit is moved."""
    rewards = planted(60, strength=0.9, dtype=np.float32)
    with open_store(fresh) as store:
        rows = served(rewards, range(60), texts=str)
        store.observe(rows, judge="liar")
        denied = {("", row.task, row.query_id): {c.doc_id: 1.0 - c.reward for c in row.candidates} for row in rows}
        store.reward("audit", denied)

    report = gather(fresh)

    assert not report.held_out.moved
    assert [offset.served for offset in report.today] == [False]
    assert "trusted labels contradict the judge" in report.today[0].reason


def test_a_scope_that_no_fit_has_is_taken_for_auto(fresh, planted):
    """A version may come from a file of anybody's making: there is a page all the same."""
    with open_store(fresh) as store:
        rewards = planted(30, strength=0.9, dtype=np.float32)
        store.observe(served(rewards, range(30), texts=str), judge="j")
        learned = fit(rewards, scope="global", gate=False)
        odd = Offsets(learned.values(), width=learned.width, settings={**learned.settings, "scope": "mine"})
        store.registry.publish(odd, by="me")

    assert gather(fresh).held_out is not None


@pytest.mark.parametrize("texts", [True, False])
def test_sources_that_contradict_the_retriever_are_named(planted, tmp_path, texts):
    """As the store keeps them: by their names, or by ids. Those who agree are not, nor is anybody of another tenant."""
    rewards = planted(40, strength=0.9, dtype=np.float32)
    url = f"sqlite:///{tmp_path / 'ttt.db'}"
    with open_store(url, texts=texts) as store:
        for i, query in enumerate(served(rewards, range(40), texts=str)):
            turned_round = [replace(c, reward=1 - c.reward) for c in query.candidates]
            store.observe([replace(query, source=f"user-{i % 9}")], judge="j")
            if i < 5:
                store.observe([replace(query, source="grudge", candidates=turned_round)], judge="j")
                store.observe([replace(query, source="foreign", candidates=turned_round, tenant="other")], judge="j")
        known = set(store.rewards("j").sources.tolist())
    report = gather(url, at=NOON)

    assert len(report.opposed) == 1
    assert set(report.opposed) <= known
    assert (report.opposed == ("grudge",)) is texts
    assert (
        f"more than chance would: {report.opposed[0]}." in Page(page_of(report)).sections["Rewards and spend per day"]
    )
