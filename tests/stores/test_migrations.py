"""The way from every earlier schema to the one this package uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tests.traffic import JUDGE, traffic
from tttembed_rag import stores
from tttembed_rag.errors import StoreError
from tttembed_rag.stores import open_store, schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.migrating import migrate
from tttembed_rag.stores.records import checksum

SCRIPTS = ScriptDirectory(Path(stores.__file__).parent / "migrations")


def test_the_newest_script_is_the_schema_in_use() -> None:
    """There is one, and the package asks for it."""
    assert SCRIPTS.get_heads() == [schema.HEAD]


@pytest.mark.parametrize("revision", sorted(script.revision for script in SCRIPTS.walk_revisions()))
def test_every_earlier_schema_is_brought_up_to_date(store_url: str, revision: str) -> None:
    """Its tables are then those of a new store, column for column, and work."""
    database = Database(store_url)
    migrate(database, to=revision)
    database.close()

    with open_store(store_url, upgrade=True) as store:
        store.observe(traffic(2), judge=JUDGE)

        with store._database.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
        assert len(store.rewards(JUDGE)) == 2


def test_what_was_live_and_who_halted_survive_the_second_schema(store_url: str) -> None:
    """Rollbacks go on where the first schema kept only the order of versions, and halts stay whose they were."""
    database = Database(store_url)
    migrate(database, to="0001")
    with database.write("migrating") as connection:
        for tenant, halted in (("a", "drift"), ("b", None)):
            connection.execute(
                text("INSERT INTO tenants (name, halted) VALUES (:name, :why)"), {"name": tenant, "why": halted}
            )
        for number, lived in ((1, True), (2, False), (3, True), (4, True)):
            connection.execute(
                text(
                    "INSERT INTO versions SELECT :number, id, 0, 'me', '', '', 8, 0, 0, 0, '', :lived, :content, "
                    ":content FROM tenants WHERE name = 'b'"
                ),
                {"number": number, "lived": lived, "content": b""},
            )
        connection.execute(text("INSERT INTO aliases SELECT id, 'live', 4 FROM tenants WHERE name = 'b'"))
        connection.execute(text("INSERT INTO aliases SELECT id, 'previous', 3 FROM tenants WHERE name = 'b'"))
        connection.execute(text("INSERT INTO facts (name, value) VALUES ('halted', 'all')"))
        for whose, by in (("a", "somebody"), ("a", "worker"), (None, "operator")):
            line = {"tenant": whose, "by": by}
            connection.execute(
                text("INSERT INTO audit (at, tenant, \"by\", action, detail) VALUES (0, :tenant, :by, 'halt', '')"),
                line,
            )
    database.close()

    with open_store(store_url, upgrade=True) as store:
        resumed = [store.registry.resume(by="worker", tenant=tenant, yielding=True) for tenant in ("a", None)]

        assert resumed == [True, False]
        assert store.registry.halted(tenant="a") == "all"
        assert store.registry.aliases(tenant="b") == {"live": 4, "previous": 3}
        assert [store.rollback(by="me", tenant="b").number for _ in range(2)] == [3, 1]
        with pytest.raises(StoreError, match="got 2"):
            store.rollback(by="me", tenant="b", to=2)


@pytest.mark.parametrize(
    ("live", "previous", "back"),
    [
        (2, 3, [2, 3, 1]),  # 2 was a candidate that replaced 3
        (1, 3, [1, 3, 2]),  # and 1 before there was any other
        (4, 2, [4, 2, 1]),  # 3 was taken back
        (3, 3, [3, 2, 1]),  # a candidate that was live already was promoted
        (3, None, [3, 2, 1]),
    ],
)
def test_rollbacks_go_on_from_what_the_first_schema_knew(
    store_url: str, live: int, previous: int | None, back: list[int]
) -> None:
    """The version before the live one is the one that it replaced, not the one with the number before its own."""
    database = Database(store_url)
    migrate(database, to="0001")
    with database.write("migrating") as connection:
        for number in (1, 2, 3, 4):
            connection.execute(
                text(
                    "INSERT INTO versions SELECT :number, id, 0, 'me', '', '', 8, 0, 0, 0, '', :lived, :content, "
                    ":content FROM tenants"
                ),
                {"number": number, "lived": number < 4 or live == 4, "content": b""},
            )
        for alias, number in (("live", live), ("previous", previous)):
            if number is not None:
                said = {"alias": alias, "number": number}
                connection.execute(text("INSERT INTO aliases SELECT id, :alias, :number FROM tenants"), said)
    database.close()

    with open_store(store_url, upgrade=True) as store:
        way = [store.registry.aliases()["live"]]
        while "previous" in store.registry.aliases() and len(way) < 5:
            way.append(store.rollback(by="me").number)

    assert back == way


@pytest.mark.parametrize(("shares", "kept"), [(True, ["drift"]), (False, ["drift", "learned", "trial"])])
def test_what_is_remembered_by_old_ids_goes_in_the_second_schema(store_url: str, shares: bool, kept: list[str]) -> None:
    """Ids of sharing tenants changed in the shared scope, and nowhere else."""
    database = Database(store_url)
    migrate(database, to="0001")
    with database.write("migrating") as connection:
        connection.execute(text("INSERT INTO tenants (name, shared_once) VALUES ('a', :shares)"), {"shares": shares})
        for name in ("drift", "learned", "trial"):
            connection.execute(text("INSERT INTO states SELECT id, :name, '[]' FROM tenants"), {"name": name})
    database.close()

    with open_store(store_url, upgrade=True) as store:
        names = ("drift", "learned", "trial")

        assert [name for name in names if store.states.get(name) is not None] == kept
        assert [name for name in names if store.states.get(name, tenant="a") is not None] == list(names)


def test_query_vectors_get_checksums_in_the_second_schema(store_url: str) -> None:
    """More of them than are read at a time, each with its own, and none is lost."""
    database = Database(store_url)
    migrate(database, to="0001")
    with database.write("migrating") as connection:
        connection.execute(text("INSERT INTO tenants (name) VALUES ('a')"))
        connection.execute(text("INSERT INTO embedders (name, width) VALUES ('one', 2), ('two', 2)"))
        connection.execute(
            text(
                "INSERT INTO queries (tenant, task, name, first_at, last_at, seen) "
                "SELECT id, 't', :name, 0, 0, 1 FROM tenants WHERE name = 'a'"
            ),
            [{"name": f"q{number}"} for number in range(600)],
        )
        connection.execute(
            text("INSERT INTO query_vectors SELECT queries.id, embedders.id, :vector FROM queries, embedders"),
            {"vector": b"12345678"},
        )
    database.close()

    with open_store(store_url, upgrade=True) as store, store._database.read() as connection:
        kept = connection.execute(text("SELECT vector, checksum FROM query_vectors")).all()

    assert len(kept) == 1200
    assert {(bytes(vector), bytes(known)) for vector, known in kept} == {(b"12345678", checksum(b"12345678"))}
