"""What OpenTelemetry's own SDK sees of serving, capture and the worker's steps."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tttembed_store import StoreLog, Worker, follow

from tttembed_rag import Evidence, Offset, Offsets, Steering, context
from tttembed_rag.system import telemetry
from tttembed_rag.testing import FakeJudge

WIDTH = 8
BASE = np.linspace(-1.0, 2.0, WIDTH).tolist()
UNGATED = Evidence(4, None, None, "ungated", "made for a test")
OFFSETS = Offsets([Offset("task", np.ones(WIDTH), 0.8, 4, UNGATED, task="billing")], width=WIDTH)


@pytest.fixture(scope="module")
def reader():
    """The reader of this process; a provider can be set once."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


@pytest.fixture(scope="module")
def exporter():
    """The finished spans of this process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def read(reader):
    """A function from a metric's name to its values by attributes: numbers, or counts of a histogram."""

    def values(name):
        data = reader.get_metrics_data()
        points = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        key = tuple(sorted(point.attributes.items()))
                        points[key] = point.value if hasattr(point, "value") else point.count
        return points

    return values


@pytest.fixture
def spans(exporter):
    """A function from a span's name to the attributes of those that ended since."""
    exporter.clear()
    return lambda name: [dict(span.attributes) for span in exporter.get_finished_spans() if span.name == name]


def grown(before, after):
    """What was added to each value."""
    return {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}


def key(**attributes):
    """Attributes as `read` gives them."""
    return tuple(sorted((f"tttembed.{name}", value) for name, value in attributes.items()))


class TestTallies:
    """Counting in many threads."""

    def test_threads_lose_no_count(self):
        """16 threads at once, read while they count."""
        tallies = telemetry.Tallies("rest")

        def add(_):
            for _ in range(2000):
                tallies.add("key")
            return tallies.values()["key"]

        with ThreadPoolExecutor(16) as pool:
            during = list(pool.map(add, range(16)))

        assert tallies.values() == {"key": 32_000}
        assert all(2000 <= value <= 32_000 for value in during)

    def test_keys_are_bounded(self):
        """Task names from outside fill neither memory nor the exporter; no count is lost."""
        tallies = telemetry.Tallies("rest")
        for number in range(2000):
            tallies.add(number)

        values = tallies.values()
        assert len(values) <= 501
        assert (sum(values.values()), values[0]) == (2000, 1)
        assert values["rest"] >= 1500


class TestServing:
    """Queries, by whether they were served an offset."""

    def test_queries_are_counted_by_task_and_outcome(self, read):
        """An offset, a task without one, and a vector that was refused."""
        before = read("tttembed.apply.queries")
        steering = Steering(OFFSETS)
        for task, vector in (("billing", BASE), ("billing", BASE), ("other", BASE), ("billing", [0.0] * WIDTH)):
            steering.for_task(task).apply(vector, "q")

        assert grown(before, read("tttembed.apply.queries")) == {
            key(task="billing", outcome="offset"): 2,
            key(task="billing", outcome="base"): 1,
            key(task="other", outcome="base"): 1,
        }

    def test_a_refresh_is_seen(self, read, spans, store):
        """Version, age, lag and duration; a span where something changed."""
        lags = read("tttembed.refresh.lag")
        store.registry.publish(OFFSETS, by="test", tenant="seen")
        live = follow(store, tenant="seen", every=60)

        assert live.status.version == 1
        assert read("tttembed.refresh.version")[key(tenant="seen")] == 1
        assert 0 <= read("tttembed.refresh.age")[()] < 60
        assert grown(lags, read("tttembed.refresh.lag")) == {(): 1}
        assert read("tttembed.refresh.duration")[()] >= 1
        seen = {"tttembed.tenant": "seen", "tttembed.version": 1}
        assert seen | {"tttembed.generation": store.generations().own["seen"]} in spans("tttembed.refresh")

    def test_of_several_followers_the_one_behind_is_seen(self, read):
        """Versions and ages are no amounts that add up; what waits is one."""

        class Follower:
            def __init__(self, version, age, queued):
                self.points = [
                    telemetry.Point("tttembed.refresh.version", version, {"tenant": "twice"}),
                    telemetry.Point("tttembed.refresh.age", age, {}),
                    telemetry.Point("tttembed.capture.queued", queued, {}),
                ]

            def measure(self):
                return self.points

        queued = read("tttembed.capture.queued").get((), 0)
        followers = [Follower(2, 1e6, 3), Follower(1, 2e6, 4)]
        for follower in followers:
            telemetry.watch(follower)

        assert read("tttembed.refresh.version")[key(tenant="twice")] == 1
        assert read("tttembed.refresh.age")[()] == 2e6
        assert read("tttembed.capture.queued")[()] == queued + 7


class TestCapture:
    """What became of served queries."""

    def test_outcomes_are_counted(self, read, spans, store):
        """Written, dropped, left out and failed; a span for each batch."""
        before, batches = read("tttembed.capture.queries"), read("tttembed.capture.duration")
        with StoreLog(store, "judge") as log, StoreLog(store, "judge", tenant_required=True) as strict:
            log.record("bad", ["a"], [7.0])
            log.record("good", ["a"], [0.5])
            strict.record("left out", ["a"], [0.5])
        log.observe("late", ["a"])
        log.close()

        assert grown(before, read("tttembed.capture.queries")) == {
            key(outcome="written"): 1,
            key(outcome="failed"): 1,
            key(outcome="without_tenant"): 1,
            key(outcome="dropped"): 1,
        }
        assert grown(batches, read("tttembed.capture.duration")) == {(): 1}
        assert spans("tttembed.capture") == [{"tttembed.queries": 1}]

    def test_an_instrument_that_raises_costs_no_request_and_no_query(self, store, monkeypatch, caplog):
        """It is asked in the thread that writes alone, and its error is logged there."""
        asked = []

        def raises(*_):
            asked.append(threading.current_thread().name)
            raise ZeroDivisionError

        for metric in ("tttembed.capture.queries", "tttembed.capture.duration"):
            monkeypatch.setitem(telemetry.instruments(), metric, raises)
        with StoreLog(store, "judge", capacity=1, tenant_required=True) as log:
            log.record("nobody's", ["a"], [0.5])
            log.record("no texts", 7, [0.5])
            with context(task="t", tenant="acme"):
                for number in range(3):
                    log.record(f"q{number}", ["a"], [0.5])
                    log.flush()
            before_closing = set(asked)

        assert (log.counts.written, log.counts.without_tenant, log.counts.failed) == (3, 2, 0)
        assert before_closing == {"tttembed-write"}
        assert "tttembed.capture.queries was not recorded" in caplog.text

    def test_what_waits_is_seen(self, read, tmp_path):
        """The queue's length, while the store is away, beside those of logs that other tests left open."""
        before = read("tttembed.capture.queued").get((), 0)
        log = StoreLog(f"sqlite:///{tmp_path}/none/ttt.db")
        log.observe("q", ["a"])
        queued = read("tttembed.capture.queued")
        log.close(0.1)

        assert queued == {(): before + 1}


class TestSteps:
    """What the worker reports."""

    def test_a_failed_step_names_its_error(self, read, exporter):
        """The error passes, and is named in metric and span."""
        before = read("tttembed.step.duration")
        with pytest.raises(KeyError), telemetry.step("judge"):
            raise KeyError

        failed = tuple(sorted({"error.type": "KeyError", "tttembed.step": "judge"}.items()))
        assert grown(before, read("tttembed.step.duration")) == {failed: 1}
        assert exporter.get_finished_spans()[-1].status.status_code is trace.StatusCode.ERROR

    def test_spending_and_decisions_are_counted(self, read):
        """Pairs, tokens and money by judge; versions by what became of them."""
        decisions = read("tttembed.publish.decisions")
        telemetry.judged("kind@1", pairs=10, tokens=500, usd=0.25)
        telemetry.judged("kind@1", pairs=5)
        telemetry.record("tttembed.publish.decisions", 1, outcome="published")

        amounts = [read(f"tttembed.judge.{unit}")[key(judge="kind@1")] for unit in ("pairs", "tokens", "cost")]
        assert amounts == [15, 500, 0.25]
        assert grown(decisions, read("tttembed.publish.decisions")) == {key(outcome="published"): 1}


def test_a_round_of_the_worker_is_seen(read, spans, store, world):
    """What was judged, fitted and published; a span for each step."""
    judge = FakeJudge(lambda query, text: world.judged(query, [text])[0], fingerprint="clicks")
    decisions, fits = read("tttembed.publish.decisions"), read("tttembed.step.duration")
    store.observe(world.served(range(40)))
    Worker(store, judge).round()

    assert grown(decisions, read("tttembed.publish.decisions")) == {key(outcome="published"): 1}
    assert grown(fits, read("tttembed.step.duration"))[key(step="fit")] == 1
    assert read("tttembed.judge.pairs")[key(judge=judge.fingerprint)] == 40 * 8
    assert [span["tttembed.rewarded"] for span in spans("tttembed.fit")] == [40]
    assert len(spans("tttembed.round")) == 1


def test_without_opentelemetry_nothing_happens():
    """Serving and steps work where it is not installed."""
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import numpy as np\n"
        "from tttembed_rag import Offsets\nfrom tttembed_rag.system import telemetry\n"
        "from tttembed_rag import Steering\n"
        "Steering(Offsets([], width=2)).apply([1.0, 2.0], 'q')\n"
        "with telemetry.step('fit') as note:\n"
        "    note(rewarded=1)\n"
        "telemetry.judged('kind@1', pairs=1)\n"
        "print(telemetry.applied.values())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "{(None, False): 1}"
