"""What is served already: verdicts are learned around it, and it goes where they speak against it."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.speakers import Speakers
from tttembed_rag import Offsets, fit
from tttembed_rag.offsets.codes import FALLS, NOTHING_TO_GAIN
from tttembed_rag.offsets.offset import Offset


@pytest.fixture(scope="module")
def world():
    """Questions in three languages, and the documents that answer them in each."""
    return Speakers.of(("de", "en", "zh"))


def key_of(offsets, task):
    """The key of what serves a task."""
    offset = offsets.find(task)
    return None if offset is None else offset.key


def test_verdicts_learn_around_the_start_and_lists_stay_fair(world):
    """Users who want what answers, in whatever language, keep the means, and lists get no worse."""
    start = world.means()
    learned = fit(world.rewards(start, range(30)), start=start, trusted=True)
    before, after = (world.lists(offsets, range(30, 60)) for offsets in (start, learned))

    assert {key_of(learned, task) for task in world.languages} == {f"local:{task}" for task in world.languages}
    assert world.recall(after, range(30, 60)) >= world.recall(before, range(30, 60)) - 0.01
    assert abs(world.own(after) - 1 / 3) < 0.1


def test_far_from_all_verdicts_the_start_is_served(planted, world):
    """Verdicts say something where they lie, and nothing elsewhere."""
    rewards = planted(40, strength=0.9)
    vector = 0.3 * fit(rewards, scope="global")["global"].vector
    begun = replace(world.means()["task:de"], task="default", vector=vector)
    learned = fit(rewards, start=Offsets([begun], width=rewards.width), trusted=True)["local:default"]
    away = -1e3 * rewards.queries.unit.mean(axis=0)

    assert "a local offset around what is served" in learned.evidence.details
    assert np.abs(learned.dosed(rewards.queries.unit) - vector).max() > 0.05
    assert_allclose(learned.dosed(away), vector, atol=1e-6)


def test_users_who_want_their_own_language_get_it_back(world):
    """Their verdicts speak against the means: the gate takes them away."""
    start = world.means()
    learned = fit(world.rewards(start, range(30), own=True), start=start, trusted=True)
    lists = {name: world.lists(offsets, range(30, 60)) for name, offsets in (("start", start), ("learned", learned))}

    assert world.own(lists["start"]) < 0.5
    assert world.own(lists["learned"]) > 0.8
    assert all("around what is served" not in offset.evidence.details for offset in learned.values())


def test_verdicts_that_say_nothing_leave_the_start(world):
    """Its line says why nothing was learned, and its vector stays."""
    start = world.means()
    rewards = world.rewards(start, range(4))
    learned = fit(replace(rewards, values=np.full(len(rewards.values), 0.5)), start=start, trusted=True)["local:en"]

    assert learned.served
    assert_allclose(learned.vector, start["task:en"].vector)
    assert "language means" in learned.evidence.reason
    assert learned.evidence.details == "kept: every candidate of a query has the same reward"


def test_what_is_kept_has_the_floor_of_its_lists(world):
    """A judge that repeats the order under the start teaches no offset, and a floor all the same."""
    start = world.means()
    rewards = world.rewards(start, range(30))
    values = []
    for row, name in enumerate(rewards.tasks.tolist()):
        documents = rewards.documents.rows(rewards.candidates[rewards.starts[row] : rewards.starts[row + 1]]).unit
        cosines = documents @ start.apply(rewards.queries.unit[row], task=name)
        values += (cosines == cosines.max()).astype(float).tolist()
    learned = fit(replace(rewards, values=np.array(values)), start=start, trusted=True)["local:en"]

    assert learned.evidence.details == f"kept: {NOTHING_TO_GAIN}"
    assert learned.floor is not None
    assert learned.floor.n == 30


@pytest.mark.parametrize("voice", ["an inverted judge", "one source"])
def test_who_is_not_believed_takes_no_start_away(world, voice):
    """Neither a judge that contradicts the retriever nor a single account decides what others are served."""
    start = world.means()
    rewards = world.rewards(start, range(30), own=True if voice == "one source" else None)
    if voice == "one source":
        rewards = replace(rewards, sources=np.full(len(rewards), "someone"))
    else:
        rewards = replace(rewards, values=1.0 - rewards.values)
    learned = fit(rewards, start=start)

    assert all(learned.find(task).served for task in world.languages)
    assert_allclose(learned.find("de").vector, start["task:de"].vector)


def test_a_start_that_depends_on_the_query_is_a_part_of_what_is_learned(planted):
    """What was learned elsewhere, as from questions that a model wrote, stays below what verdicts add."""
    rewards = planted(60, strength=0.9)
    earlier = fit(rewards.take(np.arange(8)), scope="local", trusted=True)
    learned = fit(rewards.take(np.arange(8, 60)), start=earlier, scope="local", trusted=True)
    both, below = learned["local:default"], earlier["local:default"]
    away = -1e3 * rewards.queries.unit.mean(axis=0)

    assert both.evidence.details.startswith("a local offset around what is served")
    assert len(both.map.landmarks) == len(below.map.landmarks) + 52 == 60
    assert both.map.bandwidth == below.map.bandwidth
    assert_allclose(both.dosed(away), below.dosed(away), atol=1e-3)


def test_rewards_are_compared_with_what_was_served(world):
    """Where other languages are wanted, rewards agree with the order of the start, and not with that before it."""
    start = world.means()
    rewards = world.rewards(start, range(30), own=False)
    around, alone = fit(rewards, start=start), fit(rewards)

    assert {offset.evidence.vouched for offset in around.values()} == {"the data"}
    assert {offset.evidence.vouched for offset in alone.values()} == {"nobody"}


def test_tasks_without_verdicts_keep_their_start(world):
    start = world.means()
    rewards = world.rewards(start, range(30))
    learned = fit(rewards.take(np.flatnonzero(rewards.tasks != "zh")), start=start, trusted=True)

    assert key_of(learned, "zh") == "task:zh"
    assert set(learned) - {"global"} == {"local:de", "local:en", "task:zh"}


def test_a_start_that_was_dropped_leaves_base_vectors_where_nothing_is_learned():
    """A follower that keeps what nothing speaks against must take it away too."""
    world = Speakers.of(("de", "en"), seed=1)
    harmful = {task: -30.0 * world.means()[f"task:{task}"].vector for task in world.languages}
    kind = world.means()["task:de"]
    start = Offsets([replace(kind, task=task, vector=vector) for task, vector in harmful.items()], width=world.width)
    learned = fit(world.rewards(None, range(30), own=True), start=start, trusted=True)

    dropped = [offset for offset in learned.values() if not offset.served]
    assert all(offset.evidence.against for offset in dropped)
    assert all(offset.evidence.code in (FALLS.code, "TTT-G01") for offset in dropped)
    assert all(not np.allclose(offset.vector, start[f"task:{offset.task}"].vector) for offset in learned.values())


def test_a_language_without_verdicts_gets_the_global_offset_and_then_its_own(planted):
    """As any task does: four languages teach what a fifth is served, until it has verdicts, which want the opposite."""
    languages = np.repeat(["de", "en", "es", "fr", "pt"], 12)
    signs = np.where(languages == "pt", -1, 1)
    rewards = planted(60, depth=10, strength=1.2, signs=signs, tasks=languages.tolist())
    others = fit(rewards.take(np.flatnonzero(languages != "pt")), trusted=True)
    every = fit(rewards, trusted=True)

    assert isinstance(others.find("pt"), Offset)
    assert (key_of(others, "pt"), key_of(every, "pt")) == ("global", "local:pt")
