"""A judge that breaks down in every way there is: nothing wrong is learned, nothing is paid for twice."""

import time

import numpy as np
from tttembed_store.worker import Worker

from tests.workers import unsound
from tttembed_rag.judges import HttpJudge, Patience
from tttembed_rag.judging import Budget

FAULTS = [
    "fine",
    "slow",
    "429",
    "500",
    "garbage",
    "html",
    "empty",
    "nan",
    "nan here",
    "text",
    "off scale",
    "too few",
    "twice",
]


def broken(fault, world, body, rng):
    """What a judge with a *fault* answers: status, headers, body."""
    scores = world.judged(body["query"], body["documents"])
    place = int(rng.integers(len(scores)))
    if fault == "slow":
        time.sleep(0.15)
    if fault in ("429", "500"):
        return int(fault), {"retry-after": "0"}, {"message": "too many"}
    if fault in ("garbage", "html", "empty"):
        body = {"garbage": rng.bytes(200), "html": b"<html>bad gateway</html>", "empty": b""}
        return 200, {}, body[fault]
    if fault == "nan":
        return 200, {}, world.reply([float("nan")] * len(scores))
    if fault in ("nan here", "text", "off scale"):
        scores[place] = {"nan here": float("nan"), "text": "high", "off scale": 7.5}[fault]
    reply = world.reply(scores)
    if fault == "too few":
        del reply["results"][place]
    if fault == "twice":
        reply["results"].append(reply["results"][place])
    return 200, {}, reply


def test_a_judge(store, rng, serve, world):
    """Down, slow, overloaded or talking nonsense at random: only what it really said is kept, within the budget."""
    shares = rng.dirichlet(np.full(len(FAULTS), 0.3))
    cap = float(rng.choice([200, 2000]))
    well = False

    def answer(_, body, __):
        fault = "fine" if well else str(rng.choice(FAULTS, p=shares))
        return broken(fault, world, body, rng)

    judge = serve(answer)
    store.observe(world.served(range(60)))
    options = {
        "budget": Budget(pairs=cap),
        "concurrency": int(rng.integers(1, 5)),
        "judge_seconds": 0.5,
        "scope": "task",
    }
    patience = Patience(attempts=int(rng.integers(1, 3)), first_wait=0.001, timeout=0.1)

    def a_round(url):
        asks = HttpJudge(url, "cohere", patience=patience)
        return Worker(store, asks, **options).round(), asks.fingerprint

    for _ in range(4):
        a_round(judge.url)
    down = judge.url.rpartition(":")[0] + ":9"  # nobody listens there
    a_round(down)
    well = True
    _, fingerprint = a_round(judge.url)
    (steps, _) = a_round(judge.url)
    actions = [step.action for step in steps]
    with_rewards = store.rewards(fingerprint) if store.counts().rewards else None

    assert store.judge_queue.spent().pairs <= cap
    assert "failed" not in actions
    assert unsound(store) == []
    if with_rewards is not None:
        kept = {
            (name, value)
            for row, name in enumerate(with_rewards.query_ids.tolist())
            for value in with_rewards.values[with_rewards.starts[row] : with_rewards.starts[row + 1]].tolist()
        }
        true = {(f"q{query.split()[1]}", value) for (query, _), value in world.scores.items()}
        assert kept <= true
