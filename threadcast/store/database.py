"""The connection to a store's database: brings its schema up to date and runs transactions.

All differences between SQLite and other databases are here and in `sqlite_file`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from sqlalchemy import URL, Connection, Engine, column, create_engine, event, inspect, make_url, select, table
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError

from threadcast.core.errors import InvalidInput, NoStore, StoreError
from threadcast.core.user_directories import user_data_dir
from threadcast.store import sqlite_file
from threadcast.store.schema import REVISIONS, VERSION_TABLE
from threadcast.store.waits import WAIT_S, engine_options, hint, let_take_long, limit_session

T = TypeVar("T")

SCRIPTS = "threadcast.store:migrations"
"""Where alembic finds the scripts that migrate a store."""
_RETRIES = 20
"""Retries of a transaction that failed because another one inserted an equal row; each failure means that one
succeeded."""
_WRITERS = 0x7468726561646361
"""The number of the advisory lock of PostgreSQL that writers wait for: the bytes of "threadca"."""
_DRIVER = "postgresql+psycopg"
"""The driver that threadcast installs, and whose placeholders `bulk` writes."""


class Database:
    """The database of one store, with the current schema. Safe to use from several threads, but not after a fork."""

    def __init__(self, url: str | Path | None, *, create: bool, wait_s: float = WAIT_S) -> None:
        """Open `url` (a path or a SQLAlchemy URL) and migrate an older schema; `wait_s` as for `Store.open`.

        StoreError, with nothing changed, where it is not a store, is damaged, has a newer schema, or does not exist and
        `create` is False.
        """
        parsed, path = locate(url)
        self.url = parsed
        if path is not None:
            if not os.path.lexists(path):
                if not create:
                    raise NoStore(f"there is no store at {path}; profile a network or import a file to start one")
                sqlite_file.create(path, _make_sqlite)
            sqlite_file.require_store(path, version_table=VERSION_TABLE)
        self._wait_s = wait_s
        self._writing = threading.Lock()
        self._engine: Engine | None = _connect(parsed, wait_s)
        try:
            self._bring_up_to_date(create=create)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The URL without its password."""
        if self.url.get_backend_name() == "sqlite":
            return f"sqlite:///{quote(os.fsencode(str(self.url.database)), safe=' +/')}"
        return self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close all connections; closing again does nothing."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @contextmanager
    def read(self, *, long: bool = False) -> Iterator[Connection]:
        """A context manager with a connection in a transaction for reading, whose statements may take `long`.

        StoreError when the database cannot be read.
        """
        with self._errors(), self._connection() as connection, connection.begin():
            if long:
                let_take_long(connection)
            yield connection

    def last_measurement(self) -> int:
        """The id of the measurement stored last, 0 in an empty store; ids are in the order of commits (`write`)."""
        with self.read() as connection:
            return int(connection.exec_driver_sql("SELECT max(id) FROM measurements").scalar() or 0)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction and return its result once it is on disk; StoreError where that fails.

        Writers of all processes wait for one another, so ids are in the order of commits. If a concurrent transaction
        has inserted an equal row nevertheless, `work` is run again. InvalidInput for values that the database cannot
        store.
        """
        for _ in range(_RETRIES):
            with self._errors(), suppress(IntegrityError):
                return self._write_once(work)
        with self._errors():
            return self._write_once(work)

    def revision(self) -> str | None:
        """The schema revision of the database; None where it holds no store."""
        with self._errors(), self._connection() as connection, connection.begin():
            return _revision(connection)

    def damage(self) -> list[str]:
        """The damage that SQLite finds in its file, as lines of text.

        Empty where there is none, and for other databases.
        """
        if self.url.get_backend_name() != "sqlite":
            return []
        with self.read() as connection:
            found = [str(line) for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars()]
            found += [
                f"dangling reference in {row[0]} row {row[1]}"
                for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
            ]
        return [line for line in found if line != "ok"]

    def _write_once(self, work: Callable[[Connection], T]) -> T:
        with self._turn(), self._connection() as connection:
            connection = connection.execution_options(threadcast_writes=True)
            with connection.begin():
                if self.url.get_backend_name() == "postgresql":
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")
                return work(connection)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """A writing thread's turn among those of this process: SQLite lets them wait by chance, some for seconds."""
        if self.url.get_backend_name() != "sqlite":
            yield
            return
        if not self._writing.acquire(timeout=self._wait_s):
            raise StoreError(f"{self.name}: other threads of this process stored for {self._wait_s:g} s; try again")
        try:
            yield
        finally:
            self._writing.release()

    def _connection(self) -> Connection:
        if self._engine is None:
            raise StoreError(f"the store {self.name} is closed; open it again")
        return self._engine.connect()

    def _bring_up_to_date(self, *, create: bool) -> None:
        found = self.revision()
        if found == REVISIONS[-1]:
            return
        if found is None and not create:
            raise NoStore(f"{self.name} holds no measurement store; profile a network or import a file to start one")
        if found is not None and found not in REVISIONS:
            raise StoreError(
                f"{self.name} has schema {found!r}, written by a newer threadcast (this one knows up to "
                f"{REVISIONS[-1]}); upgrade threadcast, or name another store"
            )
        try:
            self.write(_upgrade_slowly)
        except StoreError:
            if self.revision() != REVISIONS[-1]:  # else another process has done it first
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the store cannot keep or look for {error.object!r}: it is not UTF-8") from error
        except DataError as error:  # PostgreSQL's error for text with a NUL, and numbers that are too large
            raise InvalidInput(f"the store cannot keep or look for this: {_reason(error, self._wait_s)}") from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.name}: {_reason(error, self._wait_s)}") from error


def sqlite_path(url: str | Path | None) -> Path | None:
    """The file of a store in SQLite, by default the user's own; None for a store in another database."""
    return locate(url)[1]


def locate(url: str | Path | None) -> tuple[URL, Path | None]:
    """The URL of a store, by default the user's own, and its path if it is a SQLite file."""
    if url is None or isinstance(url, Path) or "://" not in url:
        path = Path(os.path.expanduser(url)) if url else user_data_dir() / "threadcast.db"
        return URL.create("sqlite", database=str(path)), path
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"{url!r} is not a database URL; give a path, or dialect://user@host/database") from error
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername=_DRIVER), None
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(f"no store is kept in {parsed.drivername}; give a path, or postgresql://user@host/database")
    if "?" in url or parsed.database in (None, "", ":memory:"):
        raise StoreError(f"{url!r}: a SQLite store needs a file and no options; give its path")
    path = Path(unquote(url.partition(":///")[2], errors="surrogateescape"))  # which SQLAlchemy does from 2.1 on
    return parsed.set(database=str(path)), path


def _connect(url: URL, wait_s: float) -> Engine:
    try:
        engine = create_engine(url, **engine_options(url, wait_s))
    except (ModuleNotFoundError, ArgumentError) as error:
        raise StoreError(f"no driver for {url.drivername}: {error}; install the database's Python driver") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", lambda connection, _record: limit_session(connection, wait_s))
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # else Python's module runs schema changes outside of transactions
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # committed data survive a crash of the machine, too


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once when another wrote in between; one that
    # takes the write lock at its start waits for its turn.
    writes = connection.get_execution_options().get("threadcast_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _make_sqlite(path: Path) -> None:
    engine = _connect(URL.create("sqlite", database=str(path)), WAIT_S)
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # kept in the file; not allowed inside a transaction
        with engine.begin() as transaction:
            _upgrade(transaction)
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(f"{path.name} cannot be made: {_reason(error, WAIT_S)}") from error
    finally:
        engine.dispose()


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    versions = table(VERSION_TABLE, column("version_num"))
    return connection.execute(select(versions.c.version_num)).scalar()


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _upgrade_slowly(connection: Connection) -> None:
    let_take_long(connection)
    _upgrade(connection)


def _reason(error: Exception, wait_s: float) -> str:
    found = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(found, sqlite3.Error):
        said = sqlite_file.cause(found)
        if said != str(found):
            return f"{said}; nothing of this transaction was stored and what was there is intact"
    return (said := str(found).strip()) + hint(said, wait_s)
