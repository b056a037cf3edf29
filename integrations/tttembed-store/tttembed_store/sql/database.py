"""A database, SQLite or PostgreSQL: transactions, and errors in one line."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import create_engine, event, func, select, text
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from tttembed_rag.errors import InputError, StoreError, StoreReplaced, StoreTooSlow, StoreUnavailable
from tttembed_store.extras import require
from tttembed_store.sql.records import Lease
from tttembed_store.sql.rows import check_lease, fact
from tttembed_store.sql.schema import HEAD, metadata

# What a writing transaction does; on PostgreSQL it decides which other transactions it excludes, see `_lock`.
Access = Literal["observing", "spending", "forgetting", "publishing", "making"]

# The facts that tell a store from any other: the key of its hashes, drawn where it was made, and its schema.
SALT, SCHEMA = "salt", "schema"
# KiB of an SQLite file that a connection keeps in memory at most: a batch of observations touches pages all over.
_CACHE_KIB = 8_192
# Bytes that SQLite's log keeps at most once no reader needs more: the log of a time with a frozen reader is given back.
_LOG_BYTES = 16 * 2**20
# Seconds to wait for a connection of PostgreSQL.
_CONNECT_SECONDS = 10
# Keys of PostgreSQL's advisory locks: numbers that no other program uses.
_DATA_LOCK, _VERSION_LOCK, _SCHEMA_LOCK, _MONEY_LOCK = 7_408_301, 7_408_302, 7_408_303, 7_408_304
# Failures that end a connection or a transaction, not the store: SQLSTATE classes of PostgreSQL.
_PASSING_STATES = re.compile(r"08|25P03|40|53|55|57|58|XX000")
# PostgreSQL: a statement was cancelled, by its own limit or by a person who found it slow; a lock was not had in time.
_TOO_SLOW = ("57014", "55P03")
# PostgreSQL: the connection may only read.
_READ_ONLY = "25006"
_PASSING_SQLITE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}


# Connections that a child process inherited: closing them would disturb the parent.
_inherited: list[Any] = []


class Database:
    """Transactions on one database, from any thread; a child process gets connections of its own.

    A transaction waits for another writer of the same SQLite *file*, where that is known, for *busy_seconds*, and
    PostgreSQL lets it be idle for *idle_seconds*: that of a frozen process holds up all others. The *salt* of a store
    that was opened here is the key of its hashes, by which it is told from any other; it is empty before.
    """

    def __init__(self, url: str | URL, *, busy_seconds: float = 30.0, idle_seconds: int = 60) -> None:
        self.url = checked_url(url)
        self.name = self.url.set(query={}).render_as_string(hide_password=True)  # a query part may hold passwords
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        file = self.url.database or ""
        # The driver opens the same file after a change of folder; what stands in a URI it alone knows.
        self.file = Path(file).absolute() if self.is_sqlite and not file.startswith("file:") else None
        self.salt = b""
        if self.is_sqlite:
            waits: dict[str, Any] = {"timeout": busy_seconds, "check_same_thread": False}
            self.engine = create_engine(self.url, hide_parameters=True, connect_args=waits)
            event.listen(self.engine, "connect", self._prepare)
            event.listen(self.engine, "begin", _begin)
            if self.file is not None:
                event.listen(self.engine, "checkout", partial(self._check_file, self.file))
        else:
            require("psycopg", "postgres")
            # Nothing outlasts a transaction: behind a pooler, the next one may be on another's connection.
            waits = {"connect_timeout": _CONNECT_SECONDS, "prepare_threshold": None}
            self.engine = create_engine(self.url, hide_parameters=True, pool_pre_ping=True, connect_args=waits)
            event.listen(self.engine, "begin", partial(_limit, idle_seconds))
        event.listen(self.engine, "handle_error", _reopen)
        _survive_fork(self.engine)

    def check_file(self) -> None:
        """Refuse an SQLite file that is not there: whoever serves or learns from a store has mistyped its name."""
        if self.file is not None and not self.file.exists():  # connecting would make it
            raise StoreError(f"{self.name}: expected a store, found no file (`tttembed store create` makes one)")

    def close(self) -> None:
        """Let every connection go, one that a transaction uses once that ends."""
        pool = self.engine.pool
        self.engine.dispose(close=False)  # what comes later gets another pool
        event.listen(pool, "checkin", lambda _, entry: entry.invalidate())
        pool.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that reads one moment of the database: everything read inside belongs together.

        Raises:
            StoreReplaced: Another store is there than the one that was opened.
        """
        options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self.checked(), self.engine.connect().execution_options(**options) as connection, connection.begin():
            self._check_store(connection)
            yield connection

    @contextmanager
    def write(self, access: Access, lease: Lease | None = None) -> Iterator[Connection]:
        """A transaction that writes: all of it is there once the block is left, or nothing.

        Raises:
            StoreReplaced: As for `read`.
            LeaseLost: The *lease* that the caller works under, if any, is lost.
        """
        with self.checked(), self.engine.connect().execution_options(writes=True) as connection, connection.begin():
            if not self.is_sqlite:  # which has one writer at a time
                _lock(connection, access)
            self._check_store(connection)
            check_lease(connection, lease)
            yield connection

    def recognise(self) -> None:
        """From now on, only the store that is there now is read and written."""
        with self.read() as connection:
            salt = fact(connection, SALT)
        if salt is None:
            raise StoreError(f"{self.name}: expected a store with the salt of its hashes, found none")
        self.salt = bytes.fromhex(salt)

    def _check_store(self, connection: Connection) -> None:
        if self.salt and fact(connection, SALT) != self.salt.hex():
            raise StoreReplaced(f"{self.name}: expected the store that was opened, found another one")

    def _check_file(self, path: Path, _: Any, entry: ConnectionPoolEntry, __: Any) -> None:
        """Use no connection to a file that was removed or replaced: SQLite itself goes on with what nobody finds."""
        try:
            file = path.stat()
        except FileNotFoundError:
            raise StoreReplaced(f"{self.name}: expected the store that was opened, found no file") from None
        if (file.st_dev, file.st_ino) != entry.info.setdefault("file", (file.st_dev, file.st_ino)):
            raise InvalidatePoolError

    def now(self, connection: Connection) -> float:
        """Unix seconds, by the one clock that all users of the database share."""
        if self.is_sqlite:
            return time.time()
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())

    def size(self, connection: Connection) -> int:
        """Bytes of the whole database."""
        if self.is_sqlite:
            pages, of_page = (
                connection.execute(text(f"PRAGMA page_{what}")).scalar_one() for what in ("count", "size")
            )
            return int(pages * of_page)
        return int(connection.execute(select(func.pg_database_size(func.current_database()))).scalar_one())

    def today(self, connection: Connection) -> date:
        """The day by UTC."""
        return datetime.fromtimestamp(self.now(connection), UTC).date()

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Turns a driver's error into one line: `StoreUnavailable` where waiting may help, else `StoreError`."""
        try:
            yield
        except PoolTimeoutError as exc:
            raise StoreUnavailable(f"{self.name}: expected a free connection, got none in time") from exc
        except (OverflowError, UnicodeEncodeError) as exc:
            raise InputError(f"{self.name}: expected text and numbers that a database can hold ({exc})") from exc
        except (SQLAlchemyError, UnicodeDecodeError) as exc:  # the latter where SQLite quotes damaged bytes
            reason = " ".join(str(exc.orig if isinstance(exc, DBAPIError) else exc).split())
            if isinstance(exc, DBAPIError) and getattr(exc.orig, "sqlstate", None) in _TOO_SLOW:
                raise StoreTooSlow(f"{self.name}: not available now ({reason})") from exc
            if isinstance(exc, DBAPIError) and (_passes(exc) or self._was_replaced()):
                raise StoreUnavailable(f"{self.name}: not available now ({reason})") from exc
            raise StoreError(f"{self.name}: expected a store of this package that can be used ({reason})") from exc

    def _was_replaced(self) -> bool:
        """Whether a newer package has brought the tables to a schema of its own since they were opened."""
        try:
            with self.engine.connect() as connection:
                return fact(connection, SCHEMA) not in (None, HEAD)
        except SQLAlchemyError:
            return False

    def scrub(self) -> None:
        """Leave nothing of deleted rows in a SQLite file; in PostgreSQL, free their space to be overwritten."""
        with self.checked(), self.engine.connect() as connection:
            if not self.is_sqlite:
                ours = map(connection.dialect.identifier_preparer.format_table, metadata.sorted_tables)
                vacuum = text(f"VACUUM {', '.join(ours)}")
                connection.execution_options(isolation_level="AUTOCOMMIT").execute(vacuum)
                return
            bare = connection.connection.cursor()
            try:
                # Deleted rows were overwritten with zeros; copies of them may still lie in the log and in free pages.
                for command in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                    row = bare.execute(command).fetchone()
                    if row and row[0]:
                        raise StoreUnavailable(f"{self.name}: deleted, but a reader still holds the log; try again")
            except sqlite3.OperationalError as exc:
                raise StoreUnavailable(f"{self.name}: deleted, but not overwritten yet ({exc}); try again") from exc
            finally:
                bare.close()

    def _prepare(self, bare: sqlite3.Connection, _: Any) -> None:
        """Prepare a new SQLite connection; its transactions begin in `_begin`, not at the first statement."""
        bare.isolation_level = None
        settings = (
            "foreign_keys=ON",
            "synchronous=FULL",  # acknowledged transactions outlive a power cut
            "secure_delete=ON",
            f"cache_size=-{_CACHE_KIB}",
            f"journal_size_limit={_LOG_BYTES}",
        )
        for setting in settings:
            bare.execute(f"PRAGMA {setting}")
        if bare.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                bare.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as exc:
                # Another connection is changing the journal of the new file at this moment.
                if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise


def keyed_digest(salt: bytes, content: bytes) -> bytes:
    """32 bytes that stand for *content*; without the *salt* they cannot be found by guessing."""
    return hashlib.blake2b(content, key=salt, digest_size=32).digest()


# The ids that `TextIds` makes.
TEXT_ID = re.compile(r"\b[0-9a-f]{32}\b")


@dataclass(frozen=True, slots=True)
class TextIds:
    """Makes an id of 32 characters of a text; without the *salt* it cannot be found by guessing texts."""

    salt: bytes = field(repr=False)

    def __call__(self, text: str) -> str:
        """The id of *text*."""
        return keyed_digest(self.salt, text.encode("utf-8", "surrogatepass")).hex()[:32]


def checked_url(url: str | URL) -> URL:
    """*url* with its driver; nothing is opened.

    Raises:
        StoreError: It can never be that of a store.
    """
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError):  # its message would show a password
        raise StoreError("url: expected sqlite:///FILE or postgresql+psycopg://..., got another text") from None
    if "@" in (parsed.host or ""):  # what stands before it is the rest of a password, which errors would show
        raise StoreError("url: expected %40 for each @ in a password, got one as it is (not shown)")
    driver = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}.get(parsed.get_backend_name())
    if driver is None or parsed.drivername not in (driver, parsed.get_backend_name(), "sqlite+pysqlite"):
        raise StoreError(f"url: expected sqlite:///FILE or postgresql+psycopg://..., got {parsed.drivername}://...")
    if driver == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError("url: expected sqlite:///FILE, got a database in memory")
    return parsed.set(drivername=driver)


def _reopen(context: ExceptionContext) -> None:
    """Drop a connection that may only read: it would stay so once the database may be written again."""
    cause = context.original_exception
    of_sqlite = getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY
    if of_sqlite or getattr(cause, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _limit(idle_seconds: int, connection: Connection) -> None:
    """Let PostgreSQL end this transaction where it is idle."""
    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{idle_seconds}s'")


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _lock(connection: Connection, access: Access) -> None:
    """Take PostgreSQL's locks: many transactions observe at once, one at a time spends, forgets, publishes or makes.

    Forgetting also excludes observing and publishing.
    """
    if access in ("observing", "spending"):
        connection.execute(select(func.pg_advisory_xact_lock_shared(_DATA_LOCK)))
    if access == "spending":
        connection.execute(select(func.pg_advisory_xact_lock(_MONEY_LOCK)))
    if access == "making":
        connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
    if access == "forgetting":
        connection.execute(select(func.pg_advisory_xact_lock(_DATA_LOCK)))
    if access in ("forgetting", "publishing"):
        connection.execute(select(func.pg_advisory_xact_lock(_VERSION_LOCK)))


def _passes(error: DBAPIError) -> bool:
    """Whether the same call may succeed later, without any change."""
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _PASSING_SQLITE
    state = getattr(cause, "sqlstate", None)
    if state is None:  # the server was not reached, unless it is the statement that is wrong
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return error.connection_invalidated or bool(_PASSING_STATES.match(state))


def _survive_fork(engine: Engine) -> None:
    """Let a forked child start without connections: those it inherited are the parent's."""
    alive = weakref.ref(engine)

    def renew() -> None:
        if (inherited := alive()) is not None:
            _inherited.append(inherited.pool)
            inherited.dispose(close=False)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
