"""Rewards as Parquet files: what is written is what is read, also by and from other engines."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tttembed_store import Candidate, Served, open_store

from tttembed_rag import Rewards
from tttembed_rag.cli import main
from tttembed_rag.errors import DataError, InputError, RewardError, VectorError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
import pyarrow.parquet as pq  # noqa: E402 (after the check that it is there)

FIELDS = (
    *("query_vectors", "doc_vectors", "query_norms", "doc_norms", "starts", "candidates", "values"),
    *("tasks", "query_ids", "sources", "doc_ids"),
)


def made(n=30, documents=40, width=8, *, seed=0, dtype=np.float32, most=6):
    """Rewards with every column, at ragged depths."""
    rng = np.random.default_rng(seed)
    candidates = [rng.choice(documents, rng.integers(1, most + 1), replace=False) for _ in range(n)]
    return Rewards.from_indexed(
        rng.normal(size=(n, width)).astype(dtype),
        rng.normal(size=(documents, width)).astype(dtype),
        candidates,
        [rng.random(len(rows)) for rows in candidates],
        [f"task{q % 3}" for q in range(n)],
        [f"q{q}" for q in range(n)],
        judge="judge@1",
        sources=["" if q % 2 else f"user{q % 5}" for q in range(n)],
        doc_ids=[f"d{row}" for row in range(documents)],
        embedder="model@1",
    )


def check_same(expected, got):
    """Every column is equal, bit for bit, and of the same type."""
    for name in FIELDS:
        before, after = getattr(expected, name), getattr(got, name)
        assert np.array_equal(before, after), name
        assert before.dtype.kind == after.dtype.kind, name
        assert before.dtype.itemsize == after.dtype.itemsize or before.dtype.kind == "U", name
    assert (expected.judge, expected.embedder) == (got.judge, got.embedder)


def test_rows_of_one_query_lie_in_one_file(tmp_path):
    """Where they stand side by side; a query of the same id in another task is another query."""
    rewards = Rewards.from_indexed(
        np.eye(8),
        np.eye(8),
        [[row] for row in range(8)],
        [[0.5]] * 8,
        ["b", "b", "b", "a", "a", "a", "a", "a"],
        ["q", "q", "q", "q", "q", "r", "r", "r"],
        sources=list("abcabcde"),
    )
    rewards.to_parquet(tmp_path / "set", shards=4)

    check_same(rewards, Rewards.from_parquet(tmp_path / "set"))
    files = sorted((tmp_path / "set" / "queries").iterdir())
    assert [pq.read_table(file)["source"].to_pylist() for file in files] == [
        ["a", "b", "c"],
        ["a", "b"],
        ["c", "d", "e"],
    ]


def test_a_file_of_queries_is_read_alone(tmp_path):
    """With the documents that it names, whichever files and groups of rows they lie in; together they are all."""
    whole = made(n=30, documents=200)
    whole.to_parquet(tmp_path / "set", shards=3)
    for file in (tmp_path / "set" / "documents").iterdir():
        pq.write_table(pq.read_table(file), file, row_group_size=7)

    for number in range(3):
        rows = np.arange(10 * number, 10 * number + 10)
        check_same(whole.take(rows), Rewards.from_parquet(tmp_path / "set", part=f"part-{number:05d}.parquet"))


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "int64"])
def test_a_file_of_queries_is_read_alone_whatever_the_type_of_ids(tmp_path, kind):
    """Engines write ids as texts of several types, and as numbers."""
    ids = pa.array(["1", "2", "3"]).cast(kind)
    vectors = [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    for table, name, columns in (
        ("documents", "all", {"doc_id": ids, "vector": vectors}),
        ("queries", "first", {"doc_ids": pa.ListArray.from_arrays([0, 2], ids[:2]), "rewards": [[0.1, 0.9]]}),
        ("queries", "last", {"doc_ids": pa.ListArray.from_arrays([0, 1], ids[2:]), "rewards": [[0.5]]}),
    ):
        (tmp_path / table).mkdir(exist_ok=True)
        pq.write_table(pa.table({"vector": vectors[:1], **columns}), tmp_path / table / f"{name}.parquet")
    read = Rewards.from_parquet(tmp_path, part="last.parquet")

    assert read.doc_ids.tolist() == ["3"]
    assert read.doc_vectors.tolist() == vectors[2:]


def test_large_files_are_read_in_parts(tmp_path):
    """More rows than are copied at a time, in one file and in two."""
    rewards = made(140_000, 70_000, 2, most=1)
    rewards.to_parquet(tmp_path / "set", shards=2)

    check_same(rewards, Rewards.from_parquet(tmp_path / "set"))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(6, 9), st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 3, 8, 1000]))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_written_is_read(tmp_path_factory, dtype, n, documents, width, seed, shards):
    """Few and many, narrow and wide, however many files there are."""
    rewards = made(n, documents, width, seed=seed, dtype=dtype)
    folder = tmp_path_factory.mktemp("set") / "set"
    rewards.to_parquet(folder, shards=shards)

    check_same(rewards, Rewards.from_parquet(folder))
    assert len(list((folder / "queries").iterdir())) == min(shards, n)


def test_names_of_any_kind_go_round(tmp_path):
    """Ids with line breaks, a NUL, and letters of any script are kept as they are."""
    ids = ["a\nb", "tenant:\0q", "日本語 🎈"]
    rewards = Rewards.from_indexed(np.eye(3), np.eye(3), [[0], [1], [2]], [[0.5]] * 3, ids, ids, doc_ids=ids)
    rewards.to_parquet(tmp_path / "set")

    check_same(rewards, Rewards.from_parquet(tmp_path / "set"))


def test_duckdb_reads_and_writes_them(tmp_path):
    """The columns are those of any engine: a query over them, and a new folder from it, are rewards again."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    rewards = made()
    rewards.to_parquet(tmp_path / "set", shards=2)
    (tmp_path / "other").mkdir()
    with duckdb.connect() as database:
        pairs = database.execute(
            "SELECT count(*), avg(reward) FROM (SELECT unnest(rewards) reward FROM read_parquet(?))",
            [f"{tmp_path}/set/queries/*.parquet"],
        ).fetchall()[0]
        for table, chosen in (("queries", "vector, doc_ids, rewards, task"), ("documents", "doc_id, vector")):
            (tmp_path / "other" / table).mkdir()
            chosen_rows = database.read_parquet(f"{tmp_path}/set/{table}/*.parquet").project(chosen)
            chosen_rows.write_parquet(f"{tmp_path}/other/{table}/data.parquet")
    read = Rewards.from_parquet(tmp_path / "other")

    assert pairs == (rewards.budget, pytest.approx(rewards.values.mean()))
    assert np.array_equal(read.query_vectors, rewards.query_vectors)
    assert np.array_equal(read.values, rewards.values)
    assert [read.judge, set(read.sources.tolist())] == ["unnamed", {""}]


def test_polars_writes_them(tmp_path):
    """Plain lists, whole numbers as ids, grades on a scale, files that are not for readers."""
    polars = pytest.importorskip("polars", reason="polars is not installed")
    for table, columns in (
        ("queries", {"vector": [[1.0, 0.0], [0.0, 1.0]], "doc_ids": [[7, 9], [9]], "rewards": [[5, 0], [2]]}),
        ("documents", {"doc_id": [9, 7], "vector": [[1.0, 1.0], [1.0, 2.0]]}),
    ):
        (tmp_path / table).mkdir()
        polars.DataFrame(columns).write_parquet(tmp_path / table / "part-0.parquet")
        (tmp_path / table / "_metadata.parquet").write_bytes(b"not for readers")
        (tmp_path / table / "_SUCCESS").write_bytes(b"")
    read = Rewards.from_parquet(tmp_path, scale="rubric:0,5")

    assert read.values.tolist() == [1.0, 0.0, 0.4]
    assert read.doc_ids[read.candidates].tolist() == ["7", "9", "9"]


def write(folder, **changes):
    """A folder of two queries and two documents, columns changed or left out (None)."""
    queries = {
        "vector": pa.array([[1.0, 0.0], [0.0, 1.0]]),
        "doc_ids": pa.array([["a"], ["a", "b"]]),
        "rewards": pa.array([[0.5], [0.1, 0.9]]),
    }
    documents = {"doc_id": pa.array(["a", "b"]), "vector": pa.array([[1.0, 1.0], [1.0, 2.0]])}
    for name, column in changes.items():
        table = documents if name == "doc_id" or name.startswith("document_") else queries
        table[name.removeprefix("document_")] = None if column is None else pa.array(column)
    for name, table in (("queries", queries), ("documents", documents)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        columns = {column: values for column, values in table.items() if values is not None}
        pq.write_table(pa.table(columns), folder / name / "part.parquet")
    return folder


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"doc_id": None}, DataError, "documents/part.parquet: expected a column doc_id, found vector"),
        ({"rewards": None}, DataError, "part.parquet: expected a column rewards, found vector, doc_ids"),
        ({"doc_id": ["a", "a"]}, DataError, "expected unique doc_ids, got 1 for 2 documents"),
        ({"doc_ids": [["a"], ["a", "z"]]}, DataError, "expected doc_ids of documents/, got 'z'"),
        ({"doc_ids": [["a"], ["a"]]}, DataError, "expected as many rewards as doc_ids, got 2 for 1 in row 1"),
        ({"doc_ids": [["a"], ["a", None]]}, DataError, "expected no nulls in doc_ids, got 1"),
        ({"doc_ids": [["a"], None]}, DataError, "expected no nulls in doc_ids, got 1"),
        ({"doc_ids": [["a"], ["b", "b"]]}, InputError, "twice"),
        ({"doc_ids": ["a", "b"]}, DataError, "expected lists in doc_ids, got string"),
        ({"rewards": [[0.5], [0.1, None]]}, DataError, "expected no nulls in rewards, got 1"),
        ({"rewards": [[0.5], [0.1, 7.0]]}, RewardError, "expected scale probability"),
        ({"rewards": [["x"], ["y", "z"]]}, DataError, "expected whole Parquet files of rewards"),
        ({"rewards": [[], [0.1, 0.9]], "doc_ids": [[], ["a", "b"]]}, RewardError, "got none for query 0"),
        ({"vector": [[1.0, 0.0], [1.0]]}, DataError, "expected vectors of one width, got 2 and 1"),
        ({"vector": [[1, 0], [0, 1]]}, DataError, "expected vectors of float or double, got int64"),
        ({"vector": [[1.0, None], [0.0, 1.0]]}, DataError, "expected no nulls in vector"),
        ({"vector": [[0.0, 0.0], [0.0, 1.0]]}, VectorError, "query_vectors"),
        ({"vector": [[1.0], [1.0]]}, VectorError, "expected width 1 like query_vectors, got 2"),
        ({"vector": [[], []]}, DataError, "expected vectors of float or double, got null"),
        ({"vector": [np.empty(0), np.empty(0)]}, DataError, "expected vectors of one width, got 0"),
        ({"judge": ["a", "b"]}, RewardError, "judge"),
        ({"embedder": ["a", "b"]}, DataError, "expected vectors of one embedder, got a, b"),
        ({"task": ["t", None]}, DataError, "expected no nulls in task, got 1"),
        ({"query_id": ["q", "q"]}, InputError, "query_ids"),
    ],
)
def test_wrong_columns_are_one_line(tmp_path, changes, error, reason):
    """The folder, what was expected and what came."""
    with pytest.raises(error) as raised:
        Rewards.from_parquet(write(tmp_path, **changes))

    assert reason in str(raised.value)


def test_damaged_files_are_one_line(tmp_path):
    """Cut off, overwritten, empty, and no folder at all."""
    with pytest.raises(DataError, match=r"documents: expected files \*.parquet, found none"):
        Rewards.from_parquet(tmp_path / "nothing")
    path = write(tmp_path) / "queries" / "part.parquet"
    whole = path.read_bytes()
    for damaged in (b"", whole[:50], whole[:-9], b"x" * len(whole)):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="queries: expected whole Parquet files of rewards"):
            Rewards.from_parquet(tmp_path)


@pytest.mark.slow
def test_a_changed_byte_never_gets_through_as_another_kind_of_error(tmp_path):
    """Bytes changed at random: an error of ours, or rewards that passed every check."""
    made().to_parquet(tmp_path / "set")
    path = tmp_path / "set" / "queries" / "part-00000.parquet"
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        changed = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            changed[place] = rng.integers(256)
        path.write_bytes(changed)
        with suppress(DataError, InputError, RewardError, VectorError):
            Rewards.from_parquet(tmp_path / "set")


def test_a_changed_number_is_not_read(tmp_path):
    """A byte of a vector that has changed on the disk is told by the checksum of its page."""
    rewards = made()
    rewards.to_parquet(tmp_path / "r")
    (file,) = (tmp_path / "r" / "queries").iterdir()
    data = bytearray(file.read_bytes())
    place = data.index(rewards.query_vectors[3].tobytes())
    data[place] ^= 1
    file.write_bytes(data)

    with pytest.raises(DataError, match="expected whole Parquet files"):
        Rewards.from_parquet(tmp_path / "r")


def test_files_of_several_engines_are_read_together(tmp_path):
    """One wrote ids as numbers and rewards as floats, another as texts and doubles."""
    made().to_parquet(tmp_path / "r", shards=2)
    for folder in ("documents", "queries"):
        file = min((tmp_path / "r" / folder).iterdir())
        table = pq.read_table(file)
        for name, kind in {
            "doc_id": pa.large_string(),
            "task": pa.large_string(),
            "rewards": pa.list_(pa.float32()),
        }.items():
            if name in table.column_names:
                place = table.column_names.index(name)
                table = table.set_column(place, name, table.column(name).cast(kind))
        pq.write_table(table, file)

    assert Rewards.from_parquet(tmp_path / "r").doc_ids.tolist() == made().doc_ids.tolist()


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    """Nothing is overwritten or mixed; an empty folder is fine."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected no such folder yet, or an empty one"):
        made().to_parquet(tmp_path / "full")
    with pytest.raises(InputError, match="shards: expected at least 1, got 0"):
        made().to_parquet(tmp_path / "new", shards=0)
    made().to_parquet(tmp_path / "empty")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_behind(tmp_path):
    """A folder is there whole, or not at all."""
    code = (
        "import resource, sys, numpy as np\n"
        "from tttembed_rag import Rewards\n"
        "rng = np.random.default_rng(0)\n"
        "r = Rewards.from_arrays(rng.normal(size=(200, 64)), rng.normal(size=(200, 5, 64)), rng.random((200, 5)))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "r.to_parquet(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "set"], capture_output=True, check=False)

    assert b"File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    """The line says what to install; nothing is written."""
    for module in ("pyarrow", "pyarrow.parquet", "pyarrow.compute"):
        monkeypatch.setitem(sys.modules, module, None)
    for call in (made().to_parquet, Rewards.from_parquet):
        with pytest.raises(ImportError, match=r"pip install 'tttembed-store\[parquet\]'"):
            call(tmp_path / "set")

    assert list(tmp_path.iterdir()) == []


# The command


def tttembed(*arguments):
    """The command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="tttembed")


@pytest.fixture
def filled(sqlite_url):
    """A store with rewards of two judges and of one tenant."""
    rng = np.random.default_rng(0)
    with open_store(sqlite_url) as store:
        for judge, tenant, n in (("old", "", 3), ("new", "", 5), ("new", "acme", 2)):
            store.observe(
                [
                    Served(
                        f"{judge}{q}",
                        rng.normal(size=4),
                        [Candidate(f"d{k}", rng.normal(size=4), f"document {k}", reward=0.1 * k) for k in range(3)],
                        query=f"query {judge} {q}",
                        embedder="m",
                        tenant=tenant,
                    )
                    for q in range(n)
                ],
                judge=judge,
            )
    return sqlite_url


def test_the_rewards_of_a_store_are_exported(filled, tmp_path):
    """Of the newest judge, of another by its name, and of a tenant."""
    results = [
        tttembed("store", "export-rewards", tmp_path / name, "--store", filled, *options)
        for name, options in (
            ("a", ("--shards", "2")),
            ("b", ("--judge", "old")),
            ("c", ("--tenant", "acme")),
        )
    ]
    read = [Rewards.from_parquet(tmp_path / name) for name in "abc"]

    assert [result.exit_code for result in results] == [0, 0, 0], [result.output for result in results]
    assert results[0].stdout == f"{tmp_path / 'a'}: 5 queries, 15 rewards of new\n"
    assert [len(rewards) for rewards in read] == [5, 3, 2]
    assert [rewards.judge for rewards in read] == ["new", "old", "new"]
