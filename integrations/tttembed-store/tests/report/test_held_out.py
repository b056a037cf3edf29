"""What a report says of queries that were not learned from, and of what a fit would publish today."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tttembed_store import open_store
from tttembed_store.report import gather, page_of
from tttembed_store.report.crossfit import held_out, moved_without, parts_of

from tests.traffic import rewarded
from tttembed_rag import Offsets, fit
from tttembed_rag.evaluate.page.heldout import Traffic, traffic_of


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
    return held_out(rewards, details_of(rewarded(rewards, range(72), name="")), judge="mixed")


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
    details = details_of(rewarded(rewards, range(40), name=""))

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


def test_a_store_without_a_version_shows_what_would_be_published(store, sqlite_url, planted, parsed):
    """The page before publishing: queries held out, and the offsets that a fit gives."""
    store.observe(rewarded(planted(60, strength=0.9, dtype=np.float32), range(60)), judge="j")

    report = gather(sqlite_url)

    assert report.live.version is None
    assert report.held_out is not None
    assert [offset.verdict for offset in report.today] == ["published"]
    assert "What a fit of the last 500 rewarded queries would publish" in parsed(page_of(report)).sections


def test_the_report_asks_the_labels_of_an_audit_as_the_worker_does(store, sqlite_url, planted):
    """Where trusted labels deny the judge, neither the held-out queries nor the next fit is moved."""
    rewards = planted(60, strength=0.9, dtype=np.float32)
    rows = rewarded(rewards, range(60))
    store.observe(rows, judge="liar")
    denied = {("", row.task, row.query_id): {c.doc_id: 1.0 - c.reward for c in row.candidates} for row in rows}
    store.reward("audit", denied)

    report = gather(sqlite_url)

    assert not report.held_out.moved
    assert [offset.served for offset in report.today] == [False]
    assert "trusted labels contradict the judge" in report.today[0].reason


def test_a_scope_that_no_fit_has_is_taken_for_auto(store, sqlite_url, planted):
    """A version may come from a file of anybody's making: there is a page all the same."""
    rewards = planted(30, strength=0.9, dtype=np.float32)
    store.observe(rewarded(rewards, range(30)), judge="j")
    learned = fit(rewards, scope="global", gate=False)
    odd = Offsets(learned.values(), width=learned.width, settings={**learned.settings, "scope": "mine"})
    store.registry.publish(odd, by="me")

    assert gather(sqlite_url).held_out is not None


@pytest.mark.parametrize("texts", [True, False])
def test_sources_that_contradict_the_retriever_are_named(planted, tmp_path, texts, parsed):
    """As the store keeps them: by their names, or by ids. Those who agree are not, nor is anybody of another tenant."""
    rewards = planted(40, strength=0.9, dtype=np.float32)
    url = f"sqlite:///{tmp_path / 'ttt.db'}"
    with open_store(url, texts=texts) as store:
        for i, query in enumerate(rewarded(rewards, range(40))):
            turned_round = [replace(c, reward=1 - c.reward) for c in query.candidates]
            store.observe([replace(query, source=f"user-{i % 9}")], judge="j")
            if i < 5:
                store.observe([replace(query, source="grudge", candidates=turned_round)], judge="j")
                store.observe([replace(query, source="foreign", candidates=turned_round, tenant="other")], judge="j")
        known = set(store.rewards("j").sources.tolist())
    report = gather(url)

    assert len(report.opposed) == 1
    assert set(report.opposed) <= known
    assert (report.opposed == ("grudge",)) is texts
    assert (
        f"more than chance would: {report.opposed[0]}." in parsed(page_of(report)).sections["Rewards and spend per day"]
    )
