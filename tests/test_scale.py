"""Fits over shards: the optimum, the verdicts and the offsets of one machine, wherever the shards are held."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tttembed_rag import InputError, Offsets, Rewards, fit
from tttembed_rag.cli import main
from tttembed_rag.errors import DataError, RewardError, VectorError
from tttembed_rag.fitting import Recipe, scope_weights
from tttembed_rag.fitting.scopes import of_task, shared_offset
from tttembed_rag.gate.case import Case, gated
from tttembed_rag.gate.thresholds import RIDGE_STEP
from tttembed_rag.scale import fit_sharded
from tttembed_rag.scale.engines import opened_engine
from tttembed_rag.scale.shards import Group, Plan, Shard

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def made(n=600, tasks=2, k=6, width=24, documents=400, seed=0):
    """Rewards with a preference that all queries share."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((documents, width), dtype=np.float32)
    rows = np.array([rng.choice(documents, k, replace=False) for _ in range(n)])
    queries = vectors[rows].sum(axis=1) + rng.standard_normal((n, width), dtype=np.float32)
    near = np.array([vectors[row] @ query for row, query in zip(rows, queries, strict=True)])
    taste = (vectors @ rng.standard_normal(width))[rows]
    score = (near - near.mean()) / near.std() + 2 * taste / taste.std() + 0.3 * rng.standard_normal((n, k))
    return Rewards.from_indexed(
        queries,
        vectors,
        rows,
        1 / (1 + np.exp(-2 * score)),
        [f"task{q % tasks}" for q in range(n)],
        [f"q{q}" for q in range(n)],
        judge="judge@1",
        doc_ids=[f"d{row}" for row in range(documents)],
        embedder="model@1",
    )


@pytest.fixture(scope="module")
def rewards():
    """Rewards of two tasks."""
    return made()


@pytest.fixture(scope="module")
def folder(rewards, tmp_path_factory):
    """A function that gives a folder of the rewards, cut into so many shards."""
    root = tmp_path_factory.mktemp("shards")

    def cut(shards):
        target = root / str(shards)
        if not target.exists():
            rewards.to_parquet(target, shards=shards)
        return target

    return cut


def vectors(offsets):
    """Every vector, bit by bit, by key."""
    return {key: one.vector.tobytes() for key, one in offsets.items()}


def verdicts(offsets):
    """The evidence of the shared offsets, by key."""
    return {key: one.evidence for key, one in offsets.items() if one.query_id is None}


# The optimum


@pytest.mark.parametrize("scope", ["global", "task"])
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_shards_reach_the_local_optimum(rewards, folder, scope, shards):
    """Within the certificate, however the rewards are cut."""
    alone = fit(rewards, scope=scope, gate=False)
    offsets = fit_sharded(folder(shards), scope=scope, gate=False)

    assert list(offsets) == list(alone)
    for key, offset in offsets.items():
        assert offset.certificate.converged
        assert offset.certificate.objective == pytest.approx(alone[key].certificate.objective, abs=1e-7)
        assert np.linalg.norm(offset.vector - alone[key].vector) < 1e-3
        assert (offset.n, offset.alpha) == (alone[key].n, alone[key].alpha)
    assert offsets.settings == alone.settings


def test_one_shard_gives_the_bits_of_a_local_fit(rewards, folder):
    """The sum of one part is that part."""
    alone = fit(rewards, scope="task", gate=False)

    assert vectors(fit_sharded(folder(1), scope="task", gate=False)) == vectors(alone)


def test_objectives_with_many_minima_are_searched_twice(rewards, folder):
    """Also from the optimum of KD, as a local fit does: the same bits after as many evaluations."""
    alone = fit(rewards, scope="global", gate=False, objective="reverse_kl")
    offsets = fit_sharded(folder(1), scope="global", gate=False, recipe=Recipe(objective="reverse_kl"))

    assert vectors(offsets) == vectors(alone)
    assert offsets["global"].certificate == alone["global"].certificate


def test_a_warm_start_is_where_the_search_begins(folder):
    """From an optimum, one evaluation."""
    cold = fit_sharded(folder(3), scope="task", gate=False)
    warm = fit_sharded(folder(3), scope="task", gate=False, recipe=Recipe(warm_start=cold, tolerance=2e-4))

    assert [one.certificate.evaluations for one in warm.values()] == [1, 1]


def test_tasks_may_lie_in_some_shards_alone(rewards, tmp_path):
    """A shard without a task has no part in its offset."""
    order = np.argsort(rewards.tasks, kind="stable")
    rewards.take(order).to_parquet(tmp_path / "sorted", shards=3)
    alone = fit(rewards, scope="task", gate=False)
    offsets = fit_sharded(tmp_path / "sorted", scope="task", gate=False)

    assert max(np.linalg.norm(offsets[key].vector - alone[key].vector) for key in alone) < 1e-3


def test_private_offsets_are_learned_shard_by_shard(rewards, folder):
    """The bits of a local fit, in the order of the queries."""
    alone = fit(rewards, scope="query", gate=False)

    assert list(vectors(fit_sharded(folder(3), scope="query", gate=False)).items()) == list(vectors(alone).items())


def test_queries_without_names_are_numbered_through(tmp_path):
    """As where all files are read together."""
    made(60, 1).to_parquet(tmp_path / "set", shards=3)
    for file in (tmp_path / "set" / "queries").iterdir():
        pq.write_table(pq.read_table(file).drop_columns(["query_id"]), file)
    alone = fit(Rewards.from_parquet(tmp_path / "set"), scope="query", gate=False)

    assert list(fit_sharded(tmp_path / "set", scope="query", gate=False)) == list(alone)


def of_sources(order):
    """Rewards of each query by two sources: rows of a query side by side ("F"), or one source after the other ("C")."""
    rewards = made(60, 1)
    rows = np.arange(120).reshape(2, 60).ravel(order)
    twice, sources = rewards.take(rows % 60), np.where(rows < 60, "ada", "bob")
    return replace(twice, sources=sources, values=twice.values * np.repeat(np.where(sources == "ada", 1.0, 0.5), 6))


def test_a_private_offset_is_learned_from_all_sources_of_its_query(tmp_path):
    """From their mean rewards, in memory and shard by shard."""
    twice, mean = of_sources("F"), made(60, 1)
    twice.to_parquet(tmp_path / "set", shards=7)
    whole = fit(twice, scope="query", gate=False)
    expected = fit(replace(mean, values=0.75 * mean.values), scope="query", gate=False)

    assert list(whole) == list(expected)
    assert max(np.linalg.norm(whole[key].vector - expected[key].vector) for key in whole) < 1e-3
    assert vectors(fit_sharded(tmp_path / "set", scope="query", gate=False)) == vectors(whole)


@pytest.mark.parametrize("gate", [True, False])
def test_a_query_in_two_shards_has_the_offset_of_the_first(tmp_path, gate):
    """Other engines cut where they like: each key comes once."""
    of_sources("C").to_parquet(tmp_path / "set", shards=2)
    offsets = fit_sharded(tmp_path / "set", scope="query", gate=gate, gate_queries=80)
    first = fit(Rewards.from_parquet(tmp_path / "set", part="part-00000.parquet"), scope="query", gate=False)

    assert list(offsets) == list(first)
    assert gate or vectors(offsets) == vectors(first)


@pytest.mark.parametrize("asked", [{"gate": False, "scope": "query"}, {"gate": False, "scope": "local"}, {}])
@pytest.mark.parametrize("most", [100, 600])
def test_offsets_name_the_model_of_the_vectors(folder, asked, most):
    """Whichever way they were learned: those of another model are never served."""
    offsets = fit_sharded(folder(3), gate_queries=most, **asked)

    assert offsets.settings["embedder"] == "model@1"


# The gate


def test_a_small_folder_is_fitted_as_one(rewards, folder):
    """All of it fits into the sample: nothing differs from a local fit of the folder."""
    alone = fit(Rewards.from_parquet(folder(8)), scope="auto")
    offsets = fit_sharded(folder(8))

    assert vectors(offsets) == vectors(alone)
    assert verdicts(offsets) == verdicts(alone)


def test_verdicts_do_not_depend_on_the_shards(rewards, folder):
    """One, three and eight shards: the same sample and evidence, which says what it is; as a local fit decides."""
    alone = fit(rewards)
    found = [fit_sharded(folder(shards), gate_queries=400) for shards in (1, 3, 8)]

    assert verdicts(found[0]) == verdicts(found[1]) == verdicts(found[2])
    assert {key: one.verdict for key, one in verdicts(found[0]).items()} == {
        key: one.verdict for key, one in verdicts(alone).items()
    }
    assert {one.evidence.verdict for one in found[0].values()} == {"published", "abstained"}
    assert all("; asked of a sample of 400 of 600 rewarded" in one.reason for one in verdicts(found[0]).values())


def test_published_offsets_are_learned_from_all(rewards, folder):
    """In one shard, the very problem that the gate solves without a sample; private offsets for every query."""
    offsets = fit_sharded(folder(1), gate_queries=400)
    constant = [one for one in offsets.values() if one.scope == "task" and one.served]

    assert {one.query_id for one in offsets.values()} == {None, *rewards.query_ids.tolist()}
    assert constant
    for offset in constant:
        rows = of_task(rewards, offset.task)
        kept = rows.only(~np.isin(rows.doc_ids[rows.candidates], offset.evidence.withheld))
        case = Case(kept, gated(Recipe(), kept))
        recipe = replace(case.recipe, ridge=RIDGE_STEP * case.recipe.ridge)
        weights = scope_weights(case.rewards, case.voices)
        expected = shared_offset(case.widened, "task", offset.task, recipe, weights=weights, n=case.questions)
        assert offset.n == expected.n == 300
        assert offset.certificate.converged
        assert np.linalg.norm(offset.vector - expected.vector) < 1e-3 < np.linalg.norm(offset.vector)


def labels_of(rewards, rows):
    """What the judge says of every candidate of some queries."""
    pairs = [(row, pair) for row in rows for pair in range(rewards.starts[row], rewards.starts[row + 1])]
    names = rewards.doc_ids[rewards.candidates]
    return {(str(rewards.query_ids[row]), str(names[pair])): float(rewards.values[pair]) for row, pair in pairs}


def test_queries_that_labels_name_are_in_the_sample(rewards, folder):
    """However few of all they are: labels that agree with the judge confirm it in both tasks."""
    labels = labels_of(rewards, range(0, 600, 151))
    offsets = fit_sharded(folder(3), scope="task", gate_queries=60, audit=labels)
    reasons = [one.evidence.reason for one in offsets.values()]

    assert [one.served for one in offsets.values()] == [True, True]
    assert all("trusted labels say" in reason for reason in reasons)
    assert all("asked of a sample of 64 of 600 rewarded" in reason for reason in reasons)


def test_samples_take_small_tasks_whole(rewards, tmp_path):
    """A large task does not crowd out a small one, and the sample is no larger than asked."""
    kept = np.flatnonzero((rewards.tasks == "task0") | (np.arange(600) < 40))
    rewards.take(kept).to_parquet(tmp_path / "set", shards=4)
    found = verdicts(fit_sharded(tmp_path / "set", scope="task", gate_queries=120))

    assert {key: one.n for key, one in found.items()} == {"task:task0": 100, "task:task1": 20}


def test_withheld_documents_and_their_copies_teach_nothing(tmp_path):
    """A document that the gate takes as unjudged is so in every shard, under each of its names."""
    rng = np.random.default_rng(0)
    documents = rng.standard_normal((20, 8), dtype=np.float32)
    documents[1] = documents[0]
    rows = [rng.permutation(20)[:6] for _ in range(30)]
    judged = Rewards.from_indexed(
        rng.standard_normal((30, 8), dtype=np.float32),
        documents,
        rows,
        [rng.random(6) for _ in rows],
        doc_ids=[f"d{row}" for row in range(20)],
    )
    judged.to_parquet(tmp_path / "set")
    plan = Plan(gated(Recipe(), judged), (Group(None, ("d0",)),), source_voices=1.0)
    learned = Shard(tmp_path / "set", "part-00000.parquet")._of_groups(plan)[0][0]

    assert {"d0", "d1"} <= set(judged.doc_ids[judged.candidates])
    assert {"d0", "d1"} & set(learned.doc_ids[learned.candidates]) == set()


def test_local_offsets_say_that_they_are_of_a_sample(folder):
    """With the gate and without."""
    offsets = fit_sharded(folder(3), scope="local", gate=False, gate_queries=100)

    assert {one.evidence.reason for one in offsets.values()} == {
        "learned without a gate; learned of a sample of 100 of 600 rewarded queries"
    }


# Where shards are held


def test_threads_and_scratch_files_change_no_bit(folder):
    """Nor does the map of an executor."""
    alone = fit_sharded(folder(3), gate_queries=200)
    with ThreadPoolExecutor(2) as pool:
        offsets = fit_sharded(folder(3), gate_queries=200, engine=pool.map, scratch=True)

    assert vectors(offsets) == vectors(alone)


def test_scratch_query_vectors_lie_in_a_file(folder):
    """They are mapped, and the file has no name."""
    before = set(Path("/proc/self/fd").iterdir())
    part = Rewards.from_parquet(folder(3), part="part-00001.parquet", scratch=True)

    assert isinstance(part.query_vectors.base, np.memmap)
    assert part.query_vectors.base.filename is None
    assert np.array_equal(part.query_vectors, Rewards.from_parquet(folder(3), part="part-00001.parquet").query_vectors)
    assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1


@pytest.mark.slow
def test_processes_read_their_shards(folder):
    """A shard goes to a process as its path."""
    alone = fit_sharded(folder(3), scope="global", gate=False)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        offsets = fit_sharded(folder(3), scope="global", gate=False, engine=pool.map)

    assert vectors(offsets) == vectors(alone)


@pytest.mark.parametrize("engine", ["spark", ThreadPoolExecutor(1)])
def test_other_engines_are_refused(folder, engine):
    """The line says what there is."""
    with pytest.raises(InputError, match="engine: expected "):
        fit_sharded(folder(3), scope="global", gate=False, engine=engine)


@pytest.mark.parametrize(
    ("change", "error", "line"),
    [
        ({"judge": "judge@2"}, RewardError, "one judge, got judge@1, judge@2"),
        ({"embedder": ""}, VectorError, "one embedder, got no name, model@1"),
        ({"width": 12}, VectorError, "one width, got 12, 24"),
    ],
)
def test_shards_that_do_not_fit_together_are_refused(tmp_path, change, error, line):
    """Judges are not mixed over shards either."""
    rewards = made(20, 1, documents=20)
    rewards.to_parquet(tmp_path / "set")
    other = made(20, 1, documents=20, width=change.get("width", 24))
    columns = {"judge": "judge@1", "embedder": "model@1", **change}
    Rewards.from_indexed(
        other.query_vectors,
        other.doc_vectors,
        other.candidates.reshape(20, -1),
        other.values.reshape(20, -1),
        judge=columns["judge"],
        embedder=columns["embedder"],
        doc_ids=[f"other{row}" for row in range(20)],
    ).to_parquet(tmp_path / "other")
    for table in ("queries", "documents"):
        (tmp_path / "other" / table / "part-00000.parquet").rename(tmp_path / "set" / table / "part-00001.parquet")

    with pytest.raises(error, match=line):
        fit_sharded(tmp_path / "set", scope="global", gate=False)


def test_the_gate_is_what_auto_chooses_by(folder):
    """As for a local fit."""
    with pytest.raises(InputError, match="gate: expected True"):
        fit_sharded(folder(3), gate=False)
    with pytest.raises(InputError, match="gate_queries: expected at least 1"):
        fit_sharded(folder(3), gate_queries=0)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"gate": False, "audit": {("q0", "d0"): 1.0}}, "audit: expected gate=True"),
        ({"gate": False, "source_voices": -1.0}, "source_voices: expected a number above 0"),
        ({"audit": {("q0", "d0"): 7.0}}, "audit: expected labels in"),
        ({"engine": "rayy"}, "engine: expected local, ray"),
    ],
)
def test_options_are_refused_before_anything_is_read(rewards, tmp_path, given, line):
    """With the gate and without; by a fit in memory too."""
    with pytest.raises(InputError, match=line):
        fit_sharded(tmp_path / "nothing", scope="task", **given)
    if "engine" not in given:
        with pytest.raises(InputError, match=line):
            fit(rewards, scope="task", **given)


@pytest.mark.parametrize("gate", [True, False])
def test_files_without_rows_are_told(tmp_path, gate):
    """One line, as of a folder without files."""
    made(5, 1).to_parquet(tmp_path / "set")
    file = tmp_path / "set" / "queries" / "part-00000.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)

    with pytest.raises(DataError, match="expected rewarded queries, found none in 1 files"):
        fit_sharded(tmp_path / "set", scope="task", gate=gate)


# The command line


def test_the_command_fits_a_folder(folder, tmp_path):
    """A folder of Parquet files is known by its tables."""
    out = tmp_path / "offsets.safetensors"
    done = CliRunner().invoke(
        main, ["fit", str(folder(3)), "--out", str(out), "--scope", "global", "--no-gate", "--engine", "local"]
    )

    assert done.exit_code == 0, done.output
    assert "1 offsets from 600 rewarded queries, 1 served" in done.output
    assert vectors(Offsets.load(out)) == vectors(fit_sharded(folder(3), scope="global", gate=False))


def test_an_audit_of_a_folder_is_drawn(rewards, folder, tmp_path):
    """Pairs to label come from the files; options of other sources are refused here too."""
    offsets, audit = tmp_path / "offsets.safetensors", tmp_path / "audit.csv"
    fit_sharded(folder(3), scope="task").save(offsets)
    asked = ["audit-sample", str(folder(3)), "--offsets", str(offsets), "--out", str(audit), "--count", "40"]
    done = CliRunner().invoke(main, asked)

    assert done.exit_code == 0, done.output
    with audit.open(newline="") as file:
        rows = list(csv.DictReader(file))
    said = labels_of(rewards, range(600))
    assert len(rows) == 40
    assert all((row["query_id"], row["doc_id"]) in said for row in rows)

    refused = CliRunner().invoke(main, [*asked[:-1], "1", "--last", "3"])
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


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes beside the one that the driver is connected to, all on this machine."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    # A lost node is missed after a second, not after fifteen.
    pulse = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    head = {"include_dashboard": False, "_system_config": pulse}
    cluster = Cluster(initialize_head=True, head_node_args=small | head)
    cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def free_port():
    """A port that no server has."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for_port(port):
    """Until a server listens there, or a minute has passed."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as one:
            if not one.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)


def holders():
    """Process ids of the actors below this process."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"ray::_Holder" in (entry / "cmdline").read_bytes() and ours(int(entry.name)):
                found.append(int(entry.name))
        except OSError:  # it ended
            continue
    return found


def ours(pid):
    """Whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


@pytest.mark.slow
def test_a_cluster_gives_the_same_bits(cluster, folder):
    """Gate, shared and private offsets; and errors come as they are."""
    alone = fit_sharded(folder(5), gate_queries=200)
    offsets = fit_sharded(folder(5), gate_queries=200, engine="ray")

    assert vectors(offsets) == vectors(alone)
    assert verdicts(offsets) == verdicts(alone)


@pytest.mark.slow
def test_the_command_connects_to_a_cluster(cluster, folder, tmp_path):
    """From a process that is no part of it, by the address of its server."""
    port, out = free_port(), tmp_path / "offsets.safetensors"
    # One server process: Ray's proxy would start another one for every client, which may fail on a busy machine.
    served = [sys.executable, "-m", "ray.util.client.server", "--host=127.0.0.1", f"--port={port}", "--mode=legacy"]
    command = [sys.executable, "-m", "tttembed_rag", "fit", folder(5), "--out", out, "--scope", "task", "--no-gate"]
    with (tmp_path / "server.txt").open("wb+") as said:
        with subprocess.Popen([*served, f"--address={cluster.address}"], stdout=said, stderr=said) as server:
            wait_for_port(port)
            done = subprocess.run(
                [*command, "--engine", f"ray://127.0.0.1:{port}"], check=False, capture_output=True, text=True
            )
            server.terminate()
        said.seek(0)
        assert done.returncode == 0, f"{done.stderr}\n{said.read().decode()}"

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


@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_reads_its_shards_again(cluster, folder):
    """Killed in the middle of a fit, the fit ends as if nothing had been."""
    alone = fit_sharded(folder(5), scope="task", gate=False)
    killed = []

    def kill_one():
        while not killed:
            for pid in holders():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    offsets = fit_sharded(folder(5), scope="task", gate=False, engine="ray")
    killer.join()

    assert len(killed) == 1
    assert vectors(offsets) == vectors(alone)


@pytest.mark.slow
def test_a_lost_node_is_survived(cluster, folder):
    """Its actors start on what is left, however full that is, and read their shards again."""
    import ray

    alone = fit_sharded(folder(5), scope="task", gate=False)
    plan = Plan(Recipe(), (Group(None),))
    shards = [Shard(folder(5), f"part-{part:05d}.parquet") for part in range(5)]
    node = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    with opened_engine("ray", shards) as held:
        before = held.each("voices", plan)
        on = [actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for actor in held._actors]
        assert node.node_id in ray.get(on)
        cluster.remove_node(node, allow_graceful=False)
        after = held.each("voices", plan)

    assert before == after == [[{"task0": 60.0, "task1": 60.0}]] * 5
    assert vectors(fit_sharded(folder(5), scope="task", gate=False, engine="ray")) == vectors(alone)
