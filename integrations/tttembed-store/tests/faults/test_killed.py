"""kill -9 at a random moment: what was acknowledged is there, nothing is half-applied, the next process goes on."""

import socket
import threading
import time

import httpx
import numpy as np
import uvicorn
from tttembed_store import StoreLog, follow
from tttembed_store.proxy import FeedbackWriter, proxy_app
from tttembed_store.sql import open_store
from tttembed_store.worker import Worker

from tests.traffic import JUDGE, frozen, traffic
from tests.workers import captured, pairs_asked, stamp_of, stamped, unsound
from tttembed_rag import Steering
from tttembed_rag.judges import HttpJudge, Patience
from tttembed_rag.judges.examination import questions
from tttembed_rag.judging import Budget
from tttembed_rag.testing import eventually

# Pairs of the examination of a judge, charged as one call.
EXAMINED = 2 * len(questions())
BASE = np.linspace(-1.0, 2.0, 8).tolist()


def test_a_writer(child, store, store_url, rng):
    """Everything that a capture log said is written is there, each query with all its rewards."""

    def work(tell):
        log = StoreLog(store_url, JUDGE, embedder="e")
        for number in range(10_000):
            captured(log, number)
            if number % 7 == 0 and log.flush():
                tell(number)

    writer = child(work)
    time.sleep(rng.uniform(0.0, 0.4))
    writer.end()
    acknowledged = {f"q{number}" for (last,) in writer.messages for number in range(last + 1)}
    counts = store.counts()
    store.observe(traffic(1, first=20_000), judge=JUDGE)
    kept = set(store.rewards(JUDGE).query_ids.tolist())

    assert acknowledged <= kept
    assert (counts.queries * 4, counts.queries * 4) == (counts.pairs, counts.rewards)
    assert unsound(store) == []


def test_a_server_of_feedback(child, store, store_url, rng):
    """Everything that was answered is in the store, whoever else was in the middle of being written."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listening.getsockname()[1]

    def work(_):
        app = proxy_app("http://127.0.0.1:9", frozen(), model="m", feedback=FeedbackWriter(store_url, JUDGE))
        uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", log_level="error")).run(sockets=[listening])

    def send(first):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            for number in range(first, first + 10_000):
                body = {"query": f"q{number}", "documents": [{"id": "a", "thumb": 1}, {"id": "b", "click": 0}]}
                try:
                    answer = client.post("/v1/feedback", json=body)
                except httpx.TransportError:
                    return
                if answer.status_code == 200:
                    answered.append(f"q{number}")

    answered = []
    server = child(work)
    listening.close()
    senders = [threading.Thread(target=send, args=(10_000 * place,)) for place in range(4)]
    for sender in senders:
        sender.start()
    eventually(lambda: answered)
    time.sleep(rng.uniform(0.0, 0.4))
    server.end()
    for sender in senders:
        sender.join(30)
    verdicts = store.history.verdicts("", judge=JUDGE)
    texts = store.history.texts("")

    assert set(answered) <= {texts[query] for query, _ in verdicts}
    assert len(verdicts) == 2 * len(texts)
    assert unsound(store) == []


def test_a_server(child, store, store_url, rng):
    """What a serving process sent out was whole to its end, and its successor serves what is live."""
    whole = {str(BASE)} | {str(stamped(number).apply(BASE)) for number in range(200)}

    def work(tell):
        steering = Steering(follow(store_url, every=0.002))
        log = StoreLog(store_url, JUDGE)

        def serve():
            for _ in range(100_000):
                vector = steering.apply(BASE, "q")
                log.observe("q", ["a", "b"])
                if str(vector) not in whole:
                    tell("mixed", vector)
                time.sleep(0.001)

        for _ in range(3):
            threading.Thread(target=serve, daemon=True).start()
        tell("serving")
        time.sleep(60)

    server = child(work)
    ends = time.monotonic() + rng.uniform(0.0, 0.4)
    number = 0
    while time.monotonic() < ends:
        store.registry.publish(stamped(number), by="test", note=str(number))
        number += 1
    server.end()
    with_live = store.registry.publish(stamped(150), by="test", note="150")

    def again(tell):
        tell(Steering(follow(store_url, every=60.0)).apply(BASE, "q"))

    successor = child(again)

    assert successor.wait() == 0
    assert [[stamped(150).apply(BASE)]] == successor.messages
    assert [message for message in server.messages if message != ["serving"]] == []
    assert stamp_of(with_live) == 150
    assert unsound(store) == []


def test_workers_on_one_store(child, store, store_url, rng, slow_judge, world):
    """Three that share tenants and a budget, one of them killed again and again: no verdict is lost or paid twice.

    Neighbouring tenants have half of their texts in common, which are paid for once.
    """
    pause = rng.uniform(0.0, 0.01)
    judge = slow_judge(pause)
    tenants = ["a", "b", "c", "d"]
    for place, tenant in enumerate(tenants):
        store.observe(world.served(range(10 * place, 10 * place + 20), tenant=tenant))

    def work(tell):
        with open_store(store_url) as mine:
            asks = HttpJudge(judge.url, "cohere", patience=Patience(attempts=1))
            # A lease that a busy machine does not let end: whoever takes a tenant over may pay for what is on its way.
            options = {"lease_seconds": 4.0, "concurrency": 2, "scope": "task", "min_new": 150}
            worker = Worker(mine, asks, budget=budget, **options)
            worker.run(every=0.05, watch=lambda step: tell(step.action, step.tenant))

    kills = int(rng.integers(1, 4))
    # What was on its way when a worker was killed stays counted.
    budget = Budget(pairs=400 + EXAMINED + (16 + EXAMINED) * kills)
    workers = [child(work) for _ in range(3)]
    for _ in range(kills):
        time.sleep(rng.uniform(0.0, 0.4))
        workers[0].end()
        workers[0] = child(work)
    eventually(lambda: sum(n for _, n in store.judges(tenant=None)) == 640, seconds=180)
    for worker in workers:
        worker.end()
    asked = pairs_asked(judge)

    assert len(set(asked)) == 400 + EXAMINED
    assert len(asked) - len(set(asked)) <= (16 + EXAMINED) * kills  # on their way when a worker was killed
    assert len(asked) <= store.judge_queue.spent().pairs <= budget.pairs
    assert [store.counts(tenant).rewards for tenant in tenants] == [160] * 4
    assert unsound(store) == []
