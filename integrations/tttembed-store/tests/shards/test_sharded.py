"""Fits over shards: the optimum, the verdicts and the offsets of a fit of all rewards at once."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tttembed_store.shards import fit_sharded
from tttembed_store.shards.shards import Shard, ShardGroup, ShardPlan

from tttembed_rag import InputError, Rewards, fit
from tttembed_rag.errors import DataError, RewardError, VectorError
from tttembed_rag.fitting import ReverseKL
from tttembed_rag.fitting.optima import scope_weights
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import of_task, shared_offset
from tttembed_rag.gate.case import Case, gated
from tttembed_rag.gate.thresholds import RIDGE_STEP
from tttembed_rag.rewards import columns

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


# The optimum


def test_a_document_twice_in_a_query_is_refused_in_whichever_part_it_is_checked(made, monkeypatch):
    """The message names the query, also behind the first part."""
    monkeypatch.setattr(columns, "_CHECK_ROWS", 4)
    rewards = made(20, 1)
    pairs = rewards.candidates.reshape(20, -1).copy()
    pairs[17, 3] = pairs[17, 1]

    with pytest.raises(InputError, match=f"got document {pairs[17, 1]} twice in query 17"):
        Rewards.from_indexed(rewards.query_vectors, rewards.doc_vectors, pairs, rewards.values.reshape(20, -1))


@pytest.mark.parametrize(("scope", "shards"), [("global", 3), ("task", 8)])
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


@pytest.mark.parametrize(
    ("shards", "options"),
    [
        (1, {"scope": "task", "gate": False}),
        (1, {"scope": "global", "gate": False, "recipe": Recipe(objective=ReverseKL())}),
        (3, {"scope": "query", "gate": False}),
        (8, {"scope": "auto"}),
    ],
    ids=[
        "the sum of one part is that part",
        "an objective with many minima is searched also from the optimum of KD",
        "private offsets are learned shard by shard, in the order of the queries",
        "a small folder fits whole into the sample of the gate",
    ],
)
def test_the_bits_of_a_local_fit(folder, vectors, verdicts, shards, options):
    """Nothing differs, and as many evaluations were needed."""
    alone, offsets = fit(Rewards.from_parquet(folder(shards)), **options), fit_sharded(folder(shards), **options)

    assert list(vectors(offsets).items()) == list(vectors(alone).items())
    assert [offset.certificate for offset in offsets.values()] == [offset.certificate for offset in alone.values()]
    assert verdicts(offsets) == verdicts(alone)


def test_tasks_may_lie_in_some_shards_alone(rewards, tmp_path):
    """A shard without a task has no part in its offset."""
    order = np.argsort(rewards.tasks, kind="stable")
    rewards.take(order).to_parquet(tmp_path / "sorted", shards=3)
    alone = fit(rewards, scope="task", gate=False)
    offsets = fit_sharded(tmp_path / "sorted", scope="task", gate=False)

    assert max(np.linalg.norm(offsets[key].vector - alone[key].vector) for key in alone) < 1e-3


def test_queries_without_names_are_numbered_through(tmp_path, made):
    """As where all files are read together."""
    made(60, 1).to_parquet(tmp_path / "set", shards=3)
    for file in (tmp_path / "set" / "queries").iterdir():
        pq.write_table(pq.read_table(file).drop_columns(["query_id"]), file)
    alone = fit(Rewards.from_parquet(tmp_path / "set"), scope="query", gate=False)

    assert list(fit_sharded(tmp_path / "set", scope="query", gate=False)) == list(alone)


def of_sources(mean, order):
    """The rewards by two sources: rows of a query side by side ("F"), or one source after the other ("C")."""
    rows = np.arange(2 * len(mean)).reshape(2, -1).ravel(order)
    twice, sources = mean.take(rows % len(mean)), np.where(rows < len(mean), "ada", "bob")
    return replace(twice, sources=sources, values=twice.values * np.repeat(np.where(sources == "ada", 1.0, 0.5), 6))


def test_a_private_offset_is_learned_from_all_sources_of_its_query(tmp_path, made, vectors):
    """From their mean rewards, in memory and shard by shard."""
    mean = made(60, 1)
    twice = of_sources(mean, "F")
    twice.to_parquet(tmp_path / "set", shards=7)
    whole = fit(twice, scope="query", gate=False)
    expected = fit(replace(mean, values=0.75 * mean.values), scope="query", gate=False)

    assert list(whole) == list(expected)
    assert max(np.linalg.norm(whole[key].vector - expected[key].vector) for key in whole) < 1e-3
    assert vectors(fit_sharded(tmp_path / "set", scope="query", gate=False)) == vectors(whole)


@pytest.mark.parametrize("gate", [True, False])
def test_the_rows_of_a_query_lie_in_one_file(tmp_path, made, gate):
    """Other engines cut where they like: a query whose sources they part is neither heard twice nor withheld."""
    of_sources(made(60, 1), "C").to_parquet(tmp_path / "set", shards=2)

    with pytest.raises(DataError, match="all rows of a query in one file, got 60 queries whose rows are in several"):
        fit_sharded(tmp_path / "set", scope="query", gate=gate, gate_queries=80)


@pytest.mark.parametrize("asked", [{"gate": False, "scope": "query"}, {"scope": "local"}, {}])
@pytest.mark.parametrize("most", [100, 600])
def test_offsets_name_the_model_of_the_vectors(folder, asked, most):
    """Whichever way they were learned: those of another model are never served."""
    offsets = fit_sharded(folder(3), gate_queries=most, **asked)

    assert offsets.settings["embedder"] == "model@1"


# The gate


def test_verdicts_do_not_depend_on_the_shards(rewards, folder, verdicts):
    """One, three and eight shards: the same sample and evidence, which says what it is; as a local fit decides."""
    alone = fit(rewards)
    cuts = [fit_sharded(folder(shards), gate_queries=400) for shards in (1, 3, 8)]

    assert verdicts(cuts[0]) == verdicts(cuts[1]) == verdicts(cuts[2])
    assert {key: evidence.verdict for key, evidence in verdicts(cuts[0]).items()} == {
        key: evidence.verdict for key, evidence in verdicts(alone).items()
    }
    assert {offset.evidence.verdict for offset in cuts[0].values()} == {"published"}
    assert all(
        "asked of a sample of 400 of 600 rewarded" in evidence.details for evidence in verdicts(cuts[0]).values()
    )


def test_published_offsets_are_learned_from_all(rewards, folder):
    """In one shard, the very problem that the gate solves without a sample; private offsets for every query."""
    offsets, private = (fit_sharded(folder(1), scope=scope, gate_queries=400) for scope in ("task", "query"))

    assert {offset.query_id for offset in private.values()} == set(rewards.query_ids.tolist())
    assert np.mean([offset.served for offset in private.values()]) > 0.8
    assert [offset.served for offset in offsets.values()] == [True, True]
    for offset in offsets.values():
        kept = of_task(rewards, offset.task)
        case = Case.of(kept, gated(Recipe(), kept))
        recipe = replace(case.recipe, ridge=RIDGE_STEP * case.recipe.ridge)
        weights = scope_weights(case.rewards, case.voices)
        expected = shared_offset(case.widened, offset.task, recipe, weights=weights, n=case.questions)
        assert offset.n == expected.n == 300
        assert offset.certificate.converged
        assert np.linalg.norm(offset.vector - expected.vector) < 1e-3 < np.linalg.norm(offset.vector)


def test_queries_that_labels_name_are_in_the_sample(rewards, folder, labels_of):
    """However few of all they are: labels that agree with the judge confirm it in both tasks."""
    labels = labels_of(rewards, range(0, 600, 25))
    offsets = fit_sharded(folder(3), scope="task", gate_queries=60, audit=labels)
    reasons = [offset.evidence.details for offset in offsets.values()]

    assert [offset.served for offset in offsets.values()] == [True, True]
    assert all("trusted labels say" in reason for reason in reasons)
    assert all("asked of a sample of 81 of 600 rewarded" in reason for reason in reasons)


def test_samples_take_small_tasks_whole(rewards, tmp_path, verdicts):
    """A large task does not crowd out a small one, and the sample is no larger than asked."""
    kept = np.flatnonzero((rewards.tasks == "task0") | (np.arange(600) < 40))
    rewards.take(kept).to_parquet(tmp_path / "set", shards=4)
    evidence = verdicts(fit_sharded(tmp_path / "set", scope="task", gate_queries=120))

    assert {key: item.n for key, item in evidence.items()} == {"task:task0": 100, "task:task1": 20}


@pytest.mark.parametrize(("most", "drawn"), [(59, 56), (60, 60), (1, 4)])
def test_a_sample_counts_a_query_once_for_each_of_its_sources(tmp_path, made, verdicts, most, drawn):
    """Each comes with all of its rows, so that the gate holds no more of them than asked, save one query a task."""
    mean = made(120, 2)
    of_sources(mean, "F").to_parquet(tmp_path / "set", shards=3)
    evidence = verdicts(fit_sharded(tmp_path / "set", scope="task", gate_queries=most))

    assert all(f"asked of a sample of {drawn} of 240 rewarded" in item.details for item in evidence.values())


def test_withheld_documents_and_their_copies_teach_nothing(tmp_path):
    """What sources say of a document that is withheld is heard in no shard, under none of its names."""
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
        sources=[f"user {row}" for row in range(30)],
    )
    judged.to_parquet(tmp_path / "set")
    plan = ShardPlan(gated(Recipe(), judged), (ShardGroup(None, ("d0",)),), gated=True)
    learned = Shard(tmp_path / "set", "part-00000.parquet")._of_groups(plan)[0][0]

    assert {"d0", "d1"} <= set(judged.doc_ids[judged.candidates])
    assert {"d0", "d1"} & set(learned.doc_ids[learned.candidates]) == set()


def test_local_offsets_are_of_a_sample_and_need_its_gate(folder):
    """They are decided on where they were learned; ungated ones would pass for offsets of all rewards."""
    offsets = fit_sharded(folder(3), scope="local", gate_queries=400)

    assert {offset.served for offset in offsets.values()} == {True}
    assert all(
        offset.evidence.details.endswith("asked of a sample of 400 of 600 rewarded queries")
        for offset in offsets.values()
    )
    with pytest.raises(InputError, match="gate: expected True with scope='local' and more than 100 rewarded queries"):
        fit_sharded(folder(3), scope="local", gate=False, gate_queries=100)


@pytest.mark.parametrize("most", [600, 100])
def test_a_scale_is_doubted_once(rewards, tmp_path, caplog, most):
    """By the rewards that the gate sees: one of the shards may hold low grades alone."""
    for name, highest in (("low", 0.2), ("whole", 1.0)):
        values = np.where(np.arange(len(rewards.values)) < 2400, 0.2, highest) * rewards.values
        replace(rewards, values=values).to_parquet(tmp_path / name, shards=3)
        for file in (tmp_path / name / "queries").iterdir():
            table = pq.read_table(file)
            place = table.schema.get_field_index("rewards")
            lists = [[5 * value for value in row] for row in table.column(place).to_pylist()]
            column = pa.array(lists, table.schema.field(place).type)
            pq.write_table(table.set_column(place, table.schema.field(place), column), file)
        fit_sharded(tmp_path / name, scope="task", gate_queries=most, scale="rubric:0,5")

    doubts = [record.message for record in caplog.records if "no score lies above" in record.message]
    assert len(doubts) == 1
    assert doubts[0].startswith("rewards: on scale rubric:0,5 no score lies above")


# What is refused


def test_a_shard_that_is_replaced_between_two_rounds_is_refused(tmp_path, made):
    """Where each round reads it again, as in a pool of processes; a fit of a mixture would be nobody's."""
    made(60).to_parquet(tmp_path / "set", shards=3)
    made(60, seed=1).to_parquet(tmp_path / "other", shards=3)
    rounds = []

    def spread(ask, shards):
        rounds.append(ask)
        if len(rounds) == 3:
            (tmp_path / "other/queries/part-00001.parquet").replace(tmp_path / "set/queries/part-00001.parquet")
        return [ask(pickle.loads(pickle.dumps(shard))) for shard in shards]  # noqa: S301 - our own bytes

    with pytest.raises(
        DataError, match=r"part-00001\.parquet: expected the file that the fit began with, found another$"
    ):
        fit_sharded(tmp_path / "set", scope="global", gate=False, engine=spread)


@pytest.mark.parametrize(
    ("change", "error", "line"),
    [
        ({"judge": "judge@2"}, RewardError, "one judge, got judge@1, judge@2"),
        ({"embedder": ""}, VectorError, "one embedder, got model@1, no name"),
        ({"width": 12}, VectorError, "one width, got 12, 24"),
    ],
)
def test_shards_that_do_not_fit_together_are_refused(tmp_path, change, error, line, made):
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


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"scope": "task", "gate": False, "audit": {("q0", "d0"): 1.0}}, "audit: expected gate=True"),
        ({"scope": "task", "audit": {("q0", "d0"): 7.0}}, "audit: expected labels in"),
        ({"gate": False}, "gate: expected True"),
        ({"engine": "spark"}, "engine: expected local, ray"),
        ({"engine": ThreadPoolExecutor(1)}, "engine: expected local, ray"),
        ({"gate_queries": 0}, "gate_queries: expected at least 1"),
    ],
)
def test_options_are_refused_before_anything_is_read(rewards, tmp_path, options, line):
    """With the gate and without; by a fit in memory too."""
    with pytest.raises(InputError, match=line):
        fit_sharded(tmp_path / "nothing", **options)
    if not options.keys() & {"engine", "gate_queries"}:
        with pytest.raises(InputError, match=line):
            fit(rewards, **options)


@pytest.mark.parametrize("gate", [True, False])
def test_files_without_rows_are_told(tmp_path, gate, made):
    made(5, 1).to_parquet(tmp_path / "set")
    file = tmp_path / "set" / "queries" / "part-00000.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)

    with pytest.raises(DataError, match="expected rewarded queries, found none in 1 files"):
        fit_sharded(tmp_path / "set", scope="task", gate=gate)
