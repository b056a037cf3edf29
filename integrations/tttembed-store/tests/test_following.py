"""What a store publishes is served by every process, and nothing a store does can hurt a query."""

import gc
import logging
import pickle
import re
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tttembed_store import StoreLog, follow, open_store
from tttembed_store.following.follower import Follower

from tttembed_rag import Evidence, InputError, Offset, Offsets, Steering, context
from tttembed_rag.errors import StoreError
from tttembed_rag.testing import eventually

WIDTH = 8
BASE = np.linspace(-1.0, 2.0, WIDTH).tolist()
UNGATED = Evidence(4, None, None, "ungated", "made for a test")


def offsets_of(seed):
    """One global offset, drawn at random."""
    return Offsets([Offset("global", np.random.default_rng(seed).normal(size=WIDTH), 0.8, 4, UNGATED)], width=WIDTH)


@pytest.fixture
def live(store):
    """Live offsets that look often."""
    live = follow(store, every=0.01)
    yield live
    live.close()


@pytest.fixture
def steering(live):
    return Steering(live)


class TestWhatIsServed:
    """The store decides."""

    def test_nothing_published_is_the_base_vector(self, live, steering):
        """A new store serves what was there before it, bit for bit, and says why."""
        assert steering.apply(BASE, "q") is BASE
        assert live.status.reason == "nothing was published"

    def test_a_version_is_served_and_rolled_back(self, store, live, steering):
        """Publishing and rolling back reach a running process."""
        store.registry.publish(offsets_of(1), by="test")
        first = eventually(lambda: live.status.version == 1) and steering.apply(BASE, "q")
        store.registry.publish(offsets_of(2), by="test")
        second = eventually(lambda: live.status.version == 2) and steering.apply(BASE, "q")
        store.registry.rollback(by="test")

        assert (first, second) == (offsets_of(1).apply(BASE), offsets_of(2).apply(BASE))
        assert eventually(lambda: steering.apply(BASE, "q") == first)

    def test_what_was_replaced_is_let_go(self, store):
        """A process that follows tenants for long holds the live version of each, and none from before."""
        live = follow(store, tenants=["acme", "beta"], every=0.01)
        steering, held = Steering(live), []
        for number in range(1, 6):
            for tenant in ("acme", "beta"):
                store.registry.publish(offsets_of(number), by="test", tenant=tenant)
                with context(tenant=tenant):
                    assert eventually(lambda number=number: steering.apply(BASE, "q") == offsets_of(number).apply(BASE))
                    held.append(weakref.ref(live.current))
        gc.collect()

        assert [version() is None for version in held] == [True] * 8 + [False] * 2

    @pytest.mark.parametrize("tenant", [None, ""])
    def test_halting_serves_base_vectors(self, store, live, steering, tenant):
        """The store's kill switch works in every process, and resuming brings the offsets back."""
        store.registry.publish(offsets_of(1), by="test")
        served = eventually(lambda: live.status.version == 1)
        store.registry.halt(tenant=tenant, by="test", note="complaints")
        halted = eventually(lambda: steering.apply(BASE, "q") == BASE) and live.status.reason
        store.registry.resume(tenant=tenant, by="test")

        assert (served, halted) == (True, "halted: complaints")
        assert eventually(lambda: steering.apply(BASE, "q") == offsets_of(1).apply(BASE))

    def test_the_environment_switches_off(self, store, live, steering, monkeypatch):
        """TTTEMBED_OFF=1 takes the offsets away while running, and taking it back brings them again."""
        store.registry.publish(offsets_of(1), by="test")
        served = eventually(lambda: live.status.version == 1)
        monkeypatch.setenv("TTTEMBED_OFF", "1")
        off = eventually(lambda: steering.apply(BASE, "q") == BASE) and live.status.reason
        fresh = Steering(follow(store, tenant="new", every=0.01)).apply(BASE, "q")
        monkeypatch.setenv("TTTEMBED_OFF", "0")

        assert (served, off, fresh) == (True, "TTTEMBED_OFF is set", BASE)
        assert eventually(lambda: steering.apply(BASE, "q") == offsets_of(1).apply(BASE))

    def test_offsets_of_another_embedder_are_not_served(self, store, caplog):
        """A version learned for another model leaves queries alone, with one line in the log."""
        store.registry.publish(offsets_of(1), by="test", embedder="minilm@1")
        wrong, right = follow(store, embedder="other@2"), follow(store, embedder="minilm@1")

        served = [Steering(wrong).apply(BASE, "q") for _ in range(3)]

        assert served == [BASE] * 3
        assert Steering(right).apply(BASE, "q") == offsets_of(1).apply(BASE)
        assert wrong.status.reason == "learned for minilm@1, not for other@2"
        assert [record.getMessage() for record in caplog.records] == [
            "version 1: base vectors are served: learned for minilm@1, not for other@2"
        ]

    def test_another_width_is_served_as_it_came(self, store, caplog):
        """Offsets of a wider model do no harm to vectors of this one."""
        store.registry.publish(Offsets([Offset("global", np.ones(3), 0.8, 4, UNGATED)], width=3), by="test")

        assert Steering(follow(store)).apply(BASE, "q") == BASE
        assert "expected shape (m, 3) or (3,)" in caplog.text


class Delayed:
    """A store that calls *wait* before each answer."""

    def __init__(self, store, wait):
        self.store, self.wait = store, wait

    def __getattr__(self, name):
        self.wait()
        return getattr(self.store, name)


class Counted:
    """A store that keeps what it was *asked*, and says that some tenants have something of their *own*."""

    def __init__(self, store, own=()):
        self.store, self.own, self.asked = store, dict.fromkeys(own, 1), ()
        self.text_id = store.text_id

    def generations(self):
        """Those of the store, and 1 for each that has something of its own."""
        self.asked += ("generations",)
        answer = self.store.generations()
        return replace(answer, own=self.own | answer.own)

    def serving(self, *, tenant="", own=False):
        """What the store says."""
        self.asked += (tenant,)
        answer = self.store.serving(tenant=tenant, own=own)
        return replace(answer, generation=self.own.get(tenant, answer.generation))


class TestHowOftenItLooks:
    """Queries come first."""

    def test_looking_takes_a_small_part_of_the_time(self, store):
        """However often it is asked to look: answers of 1 ms each are asked for every 100 ms at most."""
        answers, began = [], time.monotonic()

        def keep_busy():
            answers.append(until := time.thread_time() + 0.001)
            while time.thread_time() < until:
                pass

        live = follow(Delayed(store, keep_busy), every=0.001)
        eventually(lambda: len(answers) >= 6)
        live.close()
        seconds = time.monotonic() - began

        assert len(answers) <= 3 + seconds / 0.1


class TestTenants:
    """Each tenant its own."""

    def test_a_tenant_is_served_its_own_offsets(self, store, live, steering):
        """Own offsets, else the shared ones; a wrapper of one tenant serves it whatever the context says."""
        store.registry.publish(offsets_of(0), by="test")
        store.registry.publish(offsets_of(1), by="test", tenant="acme")

        def served(tenant):
            with context(task="any", tenant=tenant):
                return steering.apply(BASE, "q")

        assert eventually(lambda: served("acme") == offsets_of(1).apply(BASE))
        assert eventually(lambda: served("other") == offsets_of(0).apply(BASE))
        assert eventually(lambda: served(None) == offsets_of(0).apply(BASE))
        with context(tenant="other"):
            assert Steering(live.for_tenant("acme")).apply(BASE, "q") == offsets_of(1).apply(BASE)

    def test_a_name_that_no_store_takes_is_served_what_is_shared(self, store, steering, live, caplog):
        """A tenant name from outside cannot hurt: neither its own query nor anybody else's."""
        good = "'; DROP TABLE tenants; --"
        bad = ["x" * 10_000, "\ud800", *(f"nul\0{number}" for number in range(20))]
        for name in (good, *bad):
            with context(tenant=name):
                steering.apply(BASE, "q")
        store.registry.publish(offsets_of(0), by="test")

        assert eventually(lambda: steering.apply(BASE, "q") == offsets_of(0).apply(BASE))
        with context(tenant=good):
            assert eventually(lambda: steering.apply(BASE, "q") == offsets_of(0).apply(BASE))
        with context(tenant=bad[1]):
            assert steering.apply(BASE, "q") == offsets_of(0).apply(BASE)
        assert {record.levelno for record in caplog.records} <= {logging.WARNING}

    def test_a_tenant_that_is_met_later_is_read_at_once(self, store):
        """Its queries do not wait for the next look at the store."""
        store.registry.publish(offsets_of(1), by="test", tenant="acme")
        live = follow(store, every=60)

        with context(tenant="acme"):
            first = Steering(live).apply(BASE, "q")
            assert eventually(lambda: Steering(live).apply(BASE, "q") == offsets_of(1).apply(BASE))
        assert first == BASE

    def test_newcomers_do_not_put_off_the_look_at_all_others(self, store):
        """However often new tenants are met, each look finds what all others are served."""
        follower = Follower(store, every=60)
        follower.refresh()
        store.registry.halt(tenant="acme", by="test")
        store.registry.publish(offsets_of(1), by="test")
        follower._wanted.add("acme")
        follower.round()

        assert [follower.status(tenant).version for tenant in ("acme", "")] == [None, 1]

    def test_many_tenants_are_asked_about_together(self, store):
        """One look reads what changed, and asks once for all the rest; a bad name among them changes nothing."""
        counted = Counted(store)
        tenants = [f"t{number}" for number in range(50)]
        for tenant in tenants:
            store.registry.halt(tenant=tenant, by="test")
        follower = follow(counted, tenants=[*tenants, "\ud800"], every=60)._reader
        before, counted.asked = counted.asked, ()
        store.registry.publish(offsets_of(1), by="test", tenant="t7")
        follower.refresh([*tenants, "\ud800"])

        assert sorted(before) == sorted(["", "generations", *tenants])
        assert sorted(counted.asked) == ["generations", "t7"]

    def test_what_concerns_all_reaches_every_tenant_in_one_look(self, store):
        """A halt of all, its end, a version for whoever has none of their own: two questions, however many they are."""
        tenants = [f"t{number}" for number in range(300)]
        counted = Counted(store, own=tenants)
        follower = follow(counted, tenants=tenants, every=60)._reader
        followed = len(follower._snapshots)
        looks = []

        def look():
            counted.asked = ()
            follower.refresh()
            served = {(now.version, now.reason) for now in map(follower.snapshot, tenants)}
            looks.append((counted.asked, served))

        store.registry.publish(offsets_of(1), by="test")
        look()
        store.registry.halt(by="test", note="all wrong")
        look()
        store.registry.resume(by="test")
        look()

        assert followed == 301
        assert looks == [
            (("generations", ""), {(1, None)}),
            (("generations", ""), {(None, "halted: all wrong")}),
            (("generations", ""), {(1, None)}),
        ]

    def test_made_up_names_push_nobody_out(self, store):
        """Names that requests invent are served what is shared, at once, and nothing is kept of them."""
        store.registry.publish(offsets_of(0), by="test")
        for number in range(5):
            store.registry.publish(offsets_of(1), by="test", tenant=f"t{number}")
        live = follow(store, tenants=[f"t{number}" for number in range(5)], every=0.01)
        steering, served = Steering(live), []
        for number in range(600):
            with context(tenant=f"made up {number}"):
                served.append(steering.apply(BASE, "q") == offsets_of(0).apply(BASE))
            with context(tenant=f"t{number % 5}"):
                served.append(steering.apply(BASE, "q") == offsets_of(1).apply(BASE))
        kept = set(live._reader._snapshots)
        live.close()

        assert all(served)
        assert kept == {"", *(f"t{number}" for number in range(5))}

    def test_a_share_of_queries_keeps_its_base_vectors(self, store):
        """About as many as asked, the same ones each time, also for another tenant and in another process."""
        store.registry.publish(offsets_of(1), by="test")
        texts = [f"question {number}" for number in range(1000)]
        live = follow(store, base_share=0.3)

        def kept(followed):
            steering = Steering(followed)
            return [text for text in texts if steering.apply(BASE, text) == BASE]

        assert 250 < len(kept(live)) < 350
        assert kept(live) == kept(live.for_tenant("acme"))
        assert (len(kept(follow(store))), len(kept(follow(store, base_share=1.0)))) == (0, 1000)

    def test_a_tenant_may_be_required(self, store):
        """A query without one is served its base vector, and counted; one with a tenant its own, or the shared ones."""
        store.registry.publish(offsets_of(0), by="test")
        store.registry.publish(offsets_of(1), by="test", tenant="acme")
        live = follow(store, tenants=["acme"], tenant_required=True)
        steering = Steering(live)
        without = [steering.apply(BASE, "q")]
        with context(task="any", tenant=""):
            without.append(steering.apply(BASE, "q"))
        with context(task="any", tenant="acme"):
            own = steering.apply(BASE, "q")

        assert without == [BASE, BASE]
        assert own == offsets_of(1).apply(BASE)
        assert (live.without_tenant, live.current) == (2, None)
        assert live.status.reason == "a tenant is required, and none was said"
        assert Steering(live.for_tenant("acme")).apply(BASE, "q") == own
        live.close()


class TestOutages:
    """The database goes away."""

    def test_the_last_version_stays(self, store, live, steering, tmp_path, caplog):
        """What was served goes on, one line is logged, the status says so; later it catches up."""
        store.registry.publish(offsets_of(1), by="test")
        served = eventually(lambda: live.status.version == 1)
        store.close()
        (tmp_path / "data").rename(tmp_path / "away")
        noticed = eventually(lambda: live.status.error is not None and live.status.age >= 0.1)
        during, lines = (steering.apply(BASE, "q"), live.status), len(caplog.records)
        (tmp_path / "away").rename(tmp_path / "data")
        store.registry.publish(offsets_of(2), by="test")

        assert served
        assert noticed
        assert during[0] == offsets_of(1).apply(BASE)
        assert (during[1].version, lines) == (1, 1)
        assert during[1].age >= 0.1
        assert eventually(lambda: steering.apply(BASE, "q") == offsets_of(2).apply(BASE))
        assert eventually(lambda: live.status.error is None)  # the follower serves first, then clears its error
        assert eventually(lambda: [record.levelno for record in caplog.records] == [logging.WARNING] * 2)

    def test_a_store_that_is_away_at_the_start_is_met_later(self, tmp_path):
        """A process starts while its database cannot be read, on base vectors, and follows as soon as it can."""
        with open_store(f"sqlite:///{tmp_path}/later.db") as store:
            store.registry.publish(offsets_of(1), by="test")
        (tmp_path / "ttt.db").mkdir()
        live = follow(f"sqlite:///{tmp_path}/ttt.db", every=0.01)
        before = Steering(live).apply(BASE, "q"), live.status
        (tmp_path / "ttt.db").rmdir()
        (tmp_path / "later.db").rename(tmp_path / "ttt.db")

        assert before[0] == BASE
        assert "unable to open database file" in before[1].error
        assert before[1].age is None
        assert eventually(lambda: Steering(live).apply(BASE, "q") == offsets_of(1).apply(BASE))
        live.close()

    def test_a_store_that_says_nothing_does_not_answer(self, store, monkeypatch, caplog):
        """A server that hangs raises no error: the status says so, and one line is logged as queries are answered."""
        monkeypatch.setattr("tttembed_store.following.follower._PATIENCE", 0.5)
        store.registry.publish(offsets_of(1), by="test")
        answers = threading.Event()
        answers.set()
        live = follow(Delayed(store, answers.wait), every=0.01)
        steering = Steering(live)
        before = live.status.error
        answers.clear()
        error = eventually(lambda: live.status.error)
        during = steering.apply(BASE, "q")
        lines = [record.getMessage().rpartition(":")[0] for record in caplog.records]
        answers.set()

        assert (before, during) == (None, offsets_of(1).apply(BASE))
        assert error.startswith("nothing came back for ")
        assert lines == ["store of live offsets: does not answer"]
        assert eventually(lambda: live.status.error is None)
        live.close()

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("sqlite:///{}/ttt.db", r"ttt\.db: expected a store, found no file \(`tttembed store create` makes"),
            ("sqlite:///{}/no/ttt.db", r"ttt\.db: expected a store, found no file"),
            ("mysql://nowhere", r"^url: expected sqlite:///FILE or postgresql"),
        ],
    )
    def test_a_store_that_is_not_there_is_refused(self, tmp_path, url, message):
        """Its name is mistyped, or nobody made it yet: no store is made where one is only read."""
        with pytest.raises(StoreError, match=message):
            follow(url.format(tmp_path))

        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_moved_away_is_made_by_nobody(self, store, sqlite_url, tmp_path):
        """The last version stays until it is back: an empty store in its place would take it away."""
        store.registry.publish(offsets_of(1), by="test")
        store.close()
        live = follow(sqlite_url, every=0.01)
        file = Path(sqlite_url.removeprefix("sqlite:///"))
        away = tmp_path / "away"
        away.mkdir()
        for part in file.parent.glob(f"{file.name}*"):
            part.rename(away / part.name)
        error = eventually(lambda: live.status.error)

        assert "found no file" in error
        assert (live.status.version, file.exists()) == (1, False)
        live.close()

    def test_a_log_makes_the_file_that_is_followed(self, tmp_path):
        """A program that records may begin before anybody made a store, and serves while it records."""
        url = f"sqlite:///{tmp_path}/ttt.db"
        log = StoreLog(url)
        live = follow(url)

        assert live.status.error is None
        live.close()
        log.close()

    @pytest.mark.parametrize("every", [0, -1.0, float("inf"), float("nan"), 1e12])
    def test_an_interval_that_no_thread_can_wait_is_refused(self, store, every):
        """Where it is written, not by a thread that dies of it."""
        with pytest.raises(InputError, match=re.escape(f"every: expected seconds in (0, 9.2e+09], got {every:g}")):
            follow(store, every=every)


class TestLife:
    """Threads and processes."""

    def followers(self):
        """Threads that follow a store."""
        return {thread for thread in threading.enumerate() if thread.name == "tttembed-follow"}

    def test_one_thread_follows_for_all(self, sqlite_url, store):
        """Any number of live offsets and tenants of one store share a thread, which ends with the last."""
        before = self.followers()
        lives = [follow(sqlite_url, tenant=f"t{number}", every=0.01) for number in range(5)]
        mine = self.followers() - before
        for live in lives:
            live.close()

        assert len(mine) == 1
        assert eventually(lambda: not mine & self.followers())

    def test_the_shortest_interval_holds(self, store):
        """Who must be quick is, whoever followed the same store before."""
        slow, quick = follow(store, every=60), follow(store, every=0.01)
        store.registry.publish(offsets_of(1), by="test")

        assert eventually(lambda: slow.status.version == quick.status.version == 1)

    def test_closed_offsets_stay_as_they_are(self, store):
        """After closing, what was served last is served for good; what was never read is the base vector."""
        store.registry.publish(offsets_of(1), by="test")
        store.registry.publish(offsets_of(3), by="test", tenant="unread")
        live = follow(store, every=0.01)
        live.close()
        store.registry.publish(offsets_of(2), by="test")
        time.sleep(0.05)

        assert Steering(live).apply(BASE, "q") == offsets_of(1).apply(BASE)
        with context(tenant="new"):
            assert Steering(live).apply(BASE, "q") == offsets_of(1).apply(BASE)
        with context(tenant="unread"):
            assert Steering(live).apply(BASE, "q") == BASE

    @pytest.mark.parametrize(("share", "served"), [(0.0, offsets_of(1).apply(BASE)), (1.0, BASE)])
    def test_a_pickle_follows_by_itself(self, sqlite_url, store, share, served):
        """Another process that unpickles them follows the same store, and serves as many base vectors.

        The pickle holds the URL whole, as documented: whoever sends it sends the password too.
        """
        store.registry.publish(offsets_of(1), by="test")
        pickled = pickle.dumps(Steering(follow(sqlite_url, base_share=share)))
        code = (
            "import pickle, sys\n"
            "steering = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
            f"print(steering.apply({BASE!r}, 'q'))"
        )
        done = subprocess.run([sys.executable, "-c", code, pickled.hex()], check=True, capture_output=True, text=True)

        assert done.stdout.strip() == str(served)
        assert sqlite_url.encode() in pickled

    def test_an_open_store_cannot_be_pickled(self, live):
        """Connections stay in their process, and the error says what to do."""
        with pytest.raises(TypeError, match=r"^pickle: expected offsets that follow a store by its URL"):
            pickle.dumps(live)


def test_a_file_is_named_from_the_current_folder(tmp_path, monkeypatch):
    """The same relative URL in another folder is another store."""
    alive, vectors = [], []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        with open_store("sqlite:///here.db") as store:
            store.registry.publish(offsets_of(len(folder) + ord(folder[0])), by="test", note=folder)
        alive.append(follow("sqlite:///here.db"))
        vectors.append(Steering(alive[-1]).apply(np.ones(WIDTH), "asked"))

    assert not np.array_equal(*vectors)
