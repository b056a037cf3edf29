"""Shards give the same bits wherever they are held: in threads, processes, actors of a Ray cluster; by command."""

from __future__ import annotations

import csv
import multiprocessing
import socket
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from tttembed_store.shards import fit_sharded

from tttembed_rag import Offsets
from tttembed_rag.cli import main
from tttembed_rag.errors import DataError
from tttembed_rag.testing import eventually

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


# Where shards are held


@contextmanager
def threads(_):
    """The map of an executor takes the place of a loop."""
    with ThreadPoolExecutor(2) as pool:
        yield pool.map


@contextmanager
def processes(_):
    """A shard goes to a process as its path."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.map


@contextmanager
def nodes(request):
    """Actors of a cluster hold the shards."""
    request.getfixturevalue("cluster")
    yield "ray"


@pytest.mark.parametrize(
    "place", [threads, *(pytest.param(place, marks=pytest.mark.slow) for place in (processes, nodes))]
)
def test_where_shards_are_held_changes_no_bit(folder, vectors, verdicts, request, place):
    """Neither of the shared and private offsets, nor of what the gate says of them."""
    alone = fit_sharded(folder(5), gate_queries=200)
    with place(request) as engine:
        offsets = fit_sharded(folder(5), gate_queries=200, engine=engine)

    assert vectors(offsets) == vectors(alone)
    assert verdicts(offsets) == verdicts(alone)


# The command line


def test_the_command_fits_a_folder(folder, tmp_path, vectors):
    """A folder of Parquet files is known by its tables."""
    out = tmp_path / "offsets.safetensors"
    done = CliRunner().invoke(
        main, ["fit", str(folder(3)), "--out", str(out), "--scope", "global", "--no-gate", "--engine", "local"]
    )

    assert done.exit_code == 0, done.output
    assert "1 offsets from 600 rewarded queries, 1 served" in done.output
    assert vectors(Offsets.load(out)) == vectors(fit_sharded(folder(3), scope="global", gate=False))


def test_an_audit_of_a_folder_is_drawn(rewards, folder, tmp_path, labels_of):
    """Pairs to label come from the files; options of other sources are refused here too."""
    audit = tmp_path / "audit.csv"
    command = ["audit", "draw", str(folder(3)), "--out", str(audit), "--count", "40"]
    done = CliRunner().invoke(main, command)

    assert done.exit_code == 0, done.output
    with audit.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    labels = labels_of(rewards, range(600))
    assert len(rows) == 39
    assert all((row["query_id"], row["doc_id"]) in labels for row in rows)

    refused = CliRunner().invoke(main, [*command, "--last", "3"])
    assert refused.exit_code == 2
    assert "--last: expected a store, a file or a BEIR folder" in refused.output


def test_an_engine_needs_a_folder_of_shards(tmp_path):
    """A file is read by one process."""
    (tmp_path / "rows.csv").write_text("query,document,reward\na,b,1\n")
    done = CliRunner().invoke(
        main, ["fit", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "o"), "--engine", "ray", "--embed", "minilm"]
    )

    assert done.exit_code == 2
    assert "--engine: expected a folder of Parquet files" in done.output


@pytest.mark.parametrize(
    "option",
    ["--embed nosuch", "--task t", "--judge j", "--tenant t", "--last 3", "--vectors v", "--rewards z", "--depth 10"],
)
def test_options_of_other_sources_are_refused(folder, tmp_path, option):
    """The files name task and judge, and hold vectors and rewards: an option would do nothing."""
    done = CliRunner().invoke(main, ["fit", str(folder(3)), "--out", str(tmp_path / "o"), *option.split()])

    assert done.exit_code == 2
    assert f"{option.split()[0]}: expected a store, a file or a BEIR folder, got {folder(3)}" in done.output


# A Ray cluster of several nodes


def listens(port):
    """Whether a server does."""
    with socket.socket() as connection:
        return not connection.connect_ex(("127.0.0.1", port))


@pytest.mark.slow
def test_the_command_connects_to_a_cluster(cluster, folder, tmp_path, vectors):
    """From a process that is no part of it, by the address of its server."""
    out = tmp_path / "offsets.safetensors"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # One server process: Ray's proxy would start another one for every client, which may fail on a busy machine.
    served = [sys.executable, "-m", "ray.util.client.server", "--host=127.0.0.1", f"--port={port}", "--mode=legacy"]
    command = [sys.executable, "-m", "tttembed_rag", "fit", folder(5), "--out", out, "--scope", "task", "--no-gate"]
    with (tmp_path / "server.txt").open("wb+") as output:
        with subprocess.Popen([*served, f"--address={cluster.address}"], stdout=output, stderr=output) as server:
            eventually(lambda: listens(port), seconds=60)
            done = subprocess.run(
                [*command, "--engine", f"ray://127.0.0.1:{port}"], check=False, capture_output=True, text=True
            )
            server.terminate()
        output.seek(0)
        assert done.returncode == 0, f"{done.stderr}\n{output.read().decode()}"

    assert vectors(Offsets.load(out)) == vectors(fit_sharded(folder(5), scope="task", gate=False))


@pytest.mark.slow
def test_damage_is_told_by_the_cluster_as_it_is_here(cluster, rewards, tmp_path):
    """One line, and the file that it is about."""
    rewards.to_parquet(tmp_path / "set", shards=2)
    part = tmp_path / "set" / "queries" / "part-00001.parquet"
    table = pq.read_table(part)
    pq.write_table(table.drop_columns(["rewards"]), part)

    with pytest.raises(DataError, match=r"part-00001.parquet: expected a column rewards") as caught:
        fit_sharded(tmp_path / "set", scope="global", gate=False, engine="ray")

    assert len(str(caught.value).splitlines()) == 1
