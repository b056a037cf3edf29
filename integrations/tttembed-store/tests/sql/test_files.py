"""What is found where a store should be, and what is left in its file."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import SQLAlchemyError
from tttembed_store import StoreLog, follow
from tttembed_store.sql import Candidate, Served, Store, open_store, schema
from tttembed_store.sql.database import Database

from tests.traffic import JUDGE, learned, traffic
from tttembed_rag import Offsets
from tttembed_rag.errors import StoreError, StoreReplaced, StoreUnavailable
from tttembed_rag.testing import eventually


def path_of(url):
    """The file of a SQLite store."""
    return Path(make_url(url).database or "")


def everything(url):
    """All bytes of a SQLite store: its file, its log and its index of the log."""
    path = path_of(url)
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


def test_no_byte_of_the_forgotten_is_left(sqlite_url):
    """Neither its texts, nor its ids, nor its vectors, nor what was learned; what was kept still is."""
    vector = np.arange(1, 385, dtype=np.float32)
    secret = Served(
        "id-of-the-forgotten",
        -vector,
        [Candidate(f"shown-{i}", vector + i, f"passage {i} for the forgotten", i / 30) for i in range(30)],
        "question of the forgotten",
        task="chess",
        embedder="wide",
    )
    kept = Served("kept", vector[::-1].copy(), secret.candidates[:1], "question that stays", embedder="wide")
    traces = [
        b"id-of-the-forgotten",
        b"question of the forgotten",
        b"passage 29 for",
        b"shown-29",
        b"task:chess, for",
        (-vector).tobytes(),
        (vector + 29).tobytes(),
    ]
    with open_store(sqlite_url) as store:
        store.observe([secret, kept], judge=JUDGE)
        store.registry.publish(learned(store), by="me", note="task:chess, for nobody to know")
        # A page of the file may end within the vector, but not within all of its parts.
        parts = store.serving().version.offsets["task:chess"].vector.astype(np.float32).reshape(-1, 16)
        before = everything(sqlite_url)

        store.forget(tenant="", query_id="id-of-the-forgotten", by="me")
        after = everything(sqlite_url)

    assert [trace in before for trace in traces] == [True] * 7
    assert [trace in after for trace in traces] == [False] * 7
    assert any(part.tobytes() in before for part in parts)
    assert not any(part.tobytes() in after for part in parts)
    assert b"question that stays" in after
    assert vector.tobytes() in after


def test_tables_of_others_are_left_alone(postgres_url):
    """In a database that is shared, only the store's own tables are vacuumed."""
    vacuumed = text("SELECT relname, vacuum_count FROM pg_stat_user_tables WHERE schemaname = current_schema()")
    with open_store(postgres_url) as store, store._database.engine.connect() as connection:
        connection.execute(text("CREATE TABLE orders (number int)"))
        connection.commit()
        store.forget(tenant="", by="me")

        def seen():
            connection.commit()
            return {row.relname for row in connection.execute(vacuumed) if row.vacuum_count}

        eventually(lambda: len(seen()) >= len(schema.metadata.tables))

        assert seen() == set(schema.metadata.tables)


def test_what_expired_is_overwritten(sqlite_url):
    """Where it lay are zeros, without the file being written anew."""
    with open_store(sqlite_url) as store:
        store.observe(traffic(30), judge=JUDGE)
        store.expire(25.0, by="me")

    assert b"question 7 of" not in everything(sqlite_url)
    assert b"question 27 of" in everything(sqlite_url)


@pytest.mark.parametrize(("source", "left", "trace"), [(None, 0, b"question 2"), ("annabel", 3, b"annabel")])
def test_a_reader_that_holds_the_log_is_told(sqlite_url, source, left, trace):
    """The rows are deleted, and the caller learns that bytes of them are still there; a second call overwrites them."""
    with Store(Database(sqlite_url, busy_seconds=0.1)) as store:
        store.observe([replace(served, source=source or "") for served in traffic(3)], judge=JUDGE)
        reader = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM queries").fetchall()

        with pytest.raises(StoreUnavailable, match="try again"):
            store.forget(tenant="", source=source, by="me")
        reader.close()

        assert store.counts().queries == left
        assert trace in everything(sqlite_url)
        store.forget(tenant="", source=source, by="me")
    assert trace not in everything(sqlite_url)


def test_a_file_that_is_read_only_is_read(sqlite_url):
    """And writing to it is refused in one line."""
    with open_store(sqlite_url) as store:
        store.observe(traffic(4), judge=JUDGE)
        store.registry.publish(learned(store), by="me")

    with open_store(f"sqlite:///file:{path_of(sqlite_url)}?mode=ro&uri=true") as store:
        assert len(store.rewards(JUDGE)) == 4
        assert store.serving().version.number == 1
        with pytest.raises(StoreError, match="readonly"):
            store.observe(traffic(1, first=5), judge=JUDGE)


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_another_file_is_refused(sqlite_url, content):
    """In one line, and left as it is."""
    path_of(sqlite_url).write_bytes(content)

    with pytest.raises(StoreError, match=r"store\.db: .*database"):
        open_store(sqlite_url)
    assert path_of(sqlite_url).read_bytes() == content


@pytest.mark.parametrize("door", [open_store, follow, StoreLog])
@pytest.mark.parametrize("url", ["sqlite://t.db", "sqlite:///:memory:", "mysql://host/name", "ttt.db"])
def test_a_url_that_can_never_be_that_of_a_store_is_refused(door, url):
    """Where it is written, not once something is to be read or written."""
    with pytest.raises(StoreError, match=r"^url: expected sqlite:///FILE"):
        door(url)


def test_a_foreign_database_is_refused(new_sqlite_url):
    """One that has a table by the name of ours."""
    with sqlite3.connect(path_of(new_sqlite_url)) as other:
        other.execute("CREATE TABLE queries (id INTEGER)")
    other.close()

    with pytest.raises(StoreError, match="foreign table 'queries'"):
        open_store(new_sqlite_url)


def test_a_new_file_is_opened_by_many_at_once(tmp_path):
    """Its journal is changed by one of them; the others are not told that it is locked."""
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(60) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(looked_at, urls))


def looked_at(url):
    """Have a new connection read a database."""
    database = Database(url)
    with database.read() as connection:
        connection.execute(text("SELECT 1"))
    database.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://somebody:secret@127.0.0.1:9/database",
        "postgresql+psycopg://somebody@127.0.0.1:9/database?password=secret",
    ],
)
def test_passwords_are_not_shown(url):
    """Neither by errors nor by the store's name, wherever in its URL they are."""
    with pytest.raises(StoreUnavailable, match="somebody") as refused:
        open_store(url)

    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_errors_hold_no_value_of_a_statement(store_url):
    """A traceback goes to logs and to trackers of errors, where no `forget` reaches texts, ids and vectors."""
    asked, database = text("SELECT id FROM nothing WHERE text = :text"), Database(store_url)
    with pytest.raises(SQLAlchemyError, match="nothing") as caught, database.engine.connect() as connection:
        connection.execute(asked, {"text": "a question"})
    database.close()

    assert "a question" not in str(caught.value)


def test_a_store_with_texts_does_not_become_one_without(sqlite_url):
    """What it holds would have to be forgotten first."""
    with open_store(sqlite_url) as store:
        store.observe(traffic(1), judge=JUDGE)

    with pytest.raises(StoreError, match="without texts"):
        open_store(sqlite_url, texts=False)


@pytest.mark.parametrize("how", ["made anew", "removed", "another"])
def test_a_store_that_is_not_the_one_that_was_opened_is_noticed(sqlite_url, tmp_path, how):
    """Whoever reads or writes is told; a service that knows the URL goes on with the store that is there now."""
    other, path = f"sqlite:///{tmp_path}/other.db", path_of(sqlite_url)
    open_store(other).close()
    with StoreLog(sqlite_url, JUDGE) as log, open_store(sqlite_url) as store:
        store.registry.publish(Offsets([], width=8), by="me")
        live = follow(sqlite_url, every=0.05)
        log.observe("before", ["a"])
        assert log.flush(20)
        for part in ("", "-wal", "-shm"):
            Path(f"{path}{part}").unlink()
        if how == "made anew":
            open_store(sqlite_url).close()
        elif how == "another":
            path_of(other).replace(path)
        with pytest.raises(StoreReplaced, match="expected the store that was opened, found"):
            store.counts()
        log.observe("after", ["a"])
        written = log.flush(20), log.counts.failed
        version = eventually(lambda: live.status.version is None and live.status.error is None)
        with open_store(sqlite_url) as now:
            kept = [query.query for query in now.judge_queue.waiting("another judge")]
            ids = now.forget(tenant="", query_id="after", by="me").queries
        live.close()

    assert (written, version, kept, ids) == ((True, 0), True, ["after"], 1)


def test_what_waits_for_a_file_that_is_away_is_written_once_it_is_back(sqlite_url, monkeypatch):
    """It is the same store: nothing that was prepared for it is lost."""
    observe, away = Store.observe, [StoreReplaced("found no file")]

    def observed(store, *arguments, **options):
        if away:
            raise away.pop()
        return observe(store, *arguments, **options)

    monkeypatch.setattr(Store, "observe", observed)
    with StoreLog(sqlite_url, JUDGE) as log:
        log.observe("waits", ["a"])
        written = log.flush(20), log.counts.written, log.counts.failed

    assert (away, written) == ([], (True, 1, 0))


def test_a_copy_of_before_is_read_anew(sqlite_url, tmp_path):
    """Restored to before a publication, then published otherwise: the same number stands for other offsets."""
    path, backup = path_of(sqlite_url), tmp_path / "backup.db"
    with open_store(sqlite_url) as store:
        store.observe(traffic(6), judge=JUDGE)
        first, second = learned(store), Offsets([], width=8)
        with sqlite3.connect(path) as source, sqlite3.connect(backup) as copy:
            source.backup(copy)
        source.close()
        copy.close()
        store.registry.publish(first, by="me", embedder="model-a")
        before = follow(sqlite_url, every=0.05)
        assert before.status.embedder == "model-a"
    for part in ("", "-wal", "-shm"):
        Path(f"{path}{part}").unlink(missing_ok=True)
    backup.replace(path)
    with open_store(sqlite_url) as store:
        version = store.registry.publish(second, by="me", embedder="model-b")
    eventually(lambda: before.status.embedder == "model-b")
    before.close()

    assert version.number == 1


def test_a_schema_that_is_no_text_is_told_in_one_line(sqlite_url):
    """SQLite quotes the damaged bytes in its own message, which then cannot be decoded."""
    with sqlite3.connect(path_of(sqlite_url)) as bare:
        bare.execute("PRAGMA writable_schema=ON")
        bare.execute("UPDATE sqlite_master SET name = CAST(x'668283' AS TEXT), sql = 'CREATE' WHERE name = 'facts'")
    bare.close()

    with pytest.raises(StoreError, match=r"expected a store of this package that can be used \("):
        open_store(sqlite_url)


@pytest.mark.slow
def test_the_log_of_a_frozen_reader_is_given_back(sqlite_url):
    """While a process reads one moment for long the log grows; after that it is small again."""
    log = Path(f"{make_url(sqlite_url).database}-wal")

    def write(store, first):
        for number in range(first, first + 20):
            shown = [Candidate(f"d{number}-{i}", np.full(8_000, number + i + 1.0)) for i in range(50)]
            store.observe([Served(f"q{number}", np.ones(8_000), shown)])

    with open_store(sqlite_url) as store, open_store(sqlite_url) as other:
        with other._database.read() as connection:
            connection.execute(text("SELECT count(*) FROM queries")).scalar_one()
            write(store, 0)
            grown = log.stat().st_size
        write(store, 20)
        store.observe([Served("last", None, [])])
        given_back = log.stat().st_size

    assert grown > 30 * 2**20
    assert given_back <= 16 * 2**20
