"""The recipes of docs/reference/beyond-one-machine.md: each scheduler runs a round of the worker as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tttembed_store import StoreLog, open_store

from tests.test_documentation import parsed

REPO = Path(__file__).resolve().parents[3]
PAGE = (REPO / "docs" / "reference" / "beyond-one-machine.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.slow


def block(head):
    """The block of the page that begins so."""
    return re.search(rf"^```{re.escape(head)}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def fill(world):
    """Fills a store with queries that all lack one direction, which their rewards know."""

    def filled(url):
        with open_store(url) as store:
            store.observe(world.served(range(120), judged=True, embedder="m"), judge="reranker")

    return filled


def versions(url):
    """The number of versions that were written."""
    with open_store(url) as store:
        return len(store.registry.versions())


def environment(url, **more):
    """What a scheduler gives its tasks."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"TTTEMBED_STORE": url, "PATH": path, "PYTHONPATH": str(REPO)} | more


def run(code, folder, url, **more):
    """Runs a script beside the tasks of the page."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env=environment(url, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cron(sqlite_url, tmp_path, fill):
    """The line of the crontab, below its five fields, runs in a shell."""
    fill(sqlite_url)
    line = block("cron").strip().split(maxsplit=5)[5]
    shell = line.replace("tttembed worker", f"{sys.executable} -m tttembed_rag worker", 1)
    subprocess.run(["sh", "-c", shell], cwd=tmp_path, env=environment(sqlite_url), check=True, timeout=120)

    assert versions(sqlite_url) == 1
    assert "published" in (tmp_path / "worker.log").read_text()


def test_kubernetes(monkeypatch):
    """The container's command is a round of the worker, which takes the store from the container's variable."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    job = yaml.safe_load(block("yaml"))
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], "sqlite:///ttt.db")
    program, *words = container["command"]
    name, parameters = parsed(words)

    assert [job["kind"], job["spec"]["concurrencyPolicy"]] == ["CronJob", "Forbid"]
    assert (program, name, parameters["once"]) == ("tttembed", "worker", True)
    assert parameters["url"] == "sqlite:///ttt.db"


def test_celery(sqlite_url, tmp_path, fill):
    """A worker of Celery takes the task that is due from a broker; delivered twice, it learns once."""
    pytest.importorskip("celery", reason="celery is not installed")
    fill(sqlite_url)
    (tmp_path / "celery_tasks.py").write_text(block('py title="celery_tasks.py"'), encoding="utf-8")
    code = """
        import time
        from celery.contrib.testing.worker import start_worker
        from celery_tasks import app, learn
        from tttembed_store import open_store

        due = app.conf.beat_schedule["learn"]
        for _ in range(2):
            app.send_task(due["task"], **due["options"])
        with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False) as worker:
            ends = time.monotonic() + 60
            while worker.stats()["total"].get("learn", 0) < 2 and time.monotonic() < ends:
                time.sleep(0.05)
            time.sleep(0.5)
        print(worker.stats()["total"])
    """
    output = run(code, tmp_path, sqlite_url, BROKER="memory://")

    assert "{'learn': 2}" in output
    assert versions(sqlite_url) == 1


def test_a_process_of_celery_closes_its_log(sqlite_url, tmp_path, monkeypatch):
    """The signal that Celery sends where a process of its pool ends writes what a task noted."""
    signals = pytest.importorskip("celery.signals", reason="celery is not installed")
    monkeypatch.setattr(signals.worker_process_shutdown, "receivers", [])
    log = StoreLog(sqlite_url)
    exec(block('py title="celery_searches.py"'), {"log": log})  # noqa: S102 - the page's own line
    log.observe("question", ["document"])
    signals.worker_process_shutdown.send(sender=None)

    assert log.counts.written == 1


def test_procrastinate(postgres_url, tmp_path, fill):
    """A worker of Procrastinate takes the periodic task from the store's own server."""
    pytest.importorskip("procrastinate", reason="procrastinate is not installed")
    fill(postgres_url)
    (tmp_path / "procrastinate_tasks.py").write_text(block('py title="procrastinate_tasks.py"'), encoding="utf-8")
    code = """
        import asyncio
        from procrastinate_tasks import app, learn

        async def work():
            async with app.open_async():
                await app.schema_manager.apply_schema_async()
                await learn.defer_async(timestamp=0)
                await app.run_worker_async(wait=False, install_signal_handlers=False)
                print([job.status for job in await app.job_manager.list_jobs_async()])

        asyncio.run(work())
    """
    output = run(code, tmp_path, postgres_url)

    assert "succeeded" in output
    assert versions(postgres_url) == 1
