"""A day of traffic in seconds, with all that goes wrong in one."""

import time
from datetime import UTC, datetime

import numpy as np
from tttembed_store import follow
from tttembed_store.sql import open_store
from tttembed_store.worker import Worker

from tttembed_rag import Steering
from tttembed_rag.errors import StoreError
from tttembed_rag.judges import HttpJudge, Patience
from tttembed_rag.judging import Budget

HOUR = 3600.0
CAP = 300.0
EVENTS = ["work", "nothing", "publish", "rollback", "halt"]


class Day:
    """What happens in each hour, drawn beforehand; run in a process whose clock is turned by hand.

    Args:
        rng: Draws it.
        worlds: Where queries come from before they drift, and after.
    """

    def __init__(self, rng, worlds):
        self.began = 1.7e9 + rng.uniform(0, 24) * HOUR
        self.bad_hour, self.drift_hour = rng.integers(2, 22, 2).tolist()
        self.breakdown = str(rng.choice(["429", "garbage", "nan", "off scale"]))
        self.hours = [(int(rng.poisson(4)), str(rng.choice(EVENTS))) for _ in range(24)]
        self._worlds = worlds

    def run(self, url, judge, tell):
        """Live through it, and tell of it."""
        self._clock = self.began
        time.time = lambda: self._clock
        fresh = [iter(range(60)), iter(range(60))]
        with open_store(url) as store:
            live = follow(store, every=60.0)
            for hour, (arrivals, event) in enumerate(self.hours):
                tell("hour", hour)
                drifted = hour >= self.drift_hour
                rows = [row for row, _ in zip(fresh[drifted], range(arrivals), strict=False)]
                for served in self._worlds[drifted].served(rows, at=self._clock, task=f"t{hour % 2}"):
                    self._serve(store, live, served, tell)
                    self._clock += HOUR / (arrivals + 1)
                try:
                    self._meet("work" if hour in (self.bad_hour, 23) else event, store, judge, tell)
                except StoreError as error:
                    tell("refused", str(error))
                self._clock = self.began + (hour + 1) * HOUR
                live._reader.refresh([""])
            live.close()

    @staticmethod
    def _serve(store, live, served, tell):
        base, current = served.vector.tolist(), live.current
        if Steering(live).apply(base, served.query) != (base if current is None else current.apply(base)):
            tell("wrong", served.query_id)
        store.observe([served])
        tell("served", served.query_id)

    @staticmethod
    def _meet(event, store, judge, tell):
        if event in ("work", "halt"):
            store.registry.resume(by="test", tenant="")
            asks = HttpJudge(judge.url, "cohere", patience=Patience(attempts=1, timeout=5.0))
            worker = Worker(store, asks, budget=Budget(pairs=CAP), scope="task", min_new=20)
            worker.round(watch=lambda step: tell("step", step.action))
        if event == "halt":
            store.registry.halt(by="test", tenant="")
        if event == "publish" and (latest := store.registry.version()) is not None:
            store.registry.publish(latest.offsets, by="test", embedder=latest.embedder)
        if event == "rollback":
            store.registry.rollback(by="test")


def test_a_day(child, sqlite_url, rng, seed, serve, world, planted, unsound):
    """Arrivals, workers that come and go, drift, a bad hour of the judge, publishing, rolling back: all holds after."""
    drifted = type(world)(planted(60, strength=0.9, seed=1 + seed, dtype=np.float32), first=60)
    day = Day(rng, [world, drifted])

    def answer(_, body, __):
        known = next((one for one in (world, drifted) if (body["query"], body["documents"][0]) in one.scores), world)
        scores = known.judged(body["query"], body["documents"])
        if [said[1] for said in living.told if said[0] == "hour"][-1] != day.bad_hour:
            return 200, {}, world.reply(scores)
        if day.breakdown == "429":
            return 429, {"retry-after": "0"}, {}
        if day.breakdown == "garbage":
            return 200, {}, b"\x00" * 50
        return 200, {}, world.reply([float("nan") if day.breakdown == "nan" else 99.0] * len(scores))

    judge = serve(answer)
    living = child(lambda tell: day.run(sqlite_url, judge, tell))
    code = living.wait()
    told = living.told
    dates = {datetime.fromtimestamp(day.began + HOUR * hour, UTC).date() for hour in range(26)}

    assert code == 0
    assert [said for said in told if said[0] == "wrong" or said == ["step", "failed"]] == []
    assert [said for said in told if said[0] == "refused" and "found none" not in said[1]] == []
    with open_store(sqlite_url) as store:
        assert max(store.judge_queue.spent(date).pairs for date in dates) <= CAP
        assert store.counts().queries == sum(said[0] == "served" for said in told)
        given = store.rewards(judged[0][0]).values.tolist() if (judged := store.judges()) else []
        assert set(given) <= {*world.scores.values(), *drifted.scores.values()}
        assert unsound(store) == []
