"""Backups of a store: SQLite files that are stores themselves, whatever database the store is in.

So a backup of PostgreSQL can be opened, checked and read without a server, and restored into either database.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, Table, delete, func, insert, select

from threadcast.core.errors import StoreError
from threadcast.store import schema, sqlite_file
from threadcast.store.database import Database, sqlite_path
from threadcast.store.rows import Row
from threadcast.store.schema import VERSION_TABLE
from threadcast.store.waits import let_take_long

ROWS_AT_ONCE = 1000
"""Rows in memory while they are copied; a measurement of 100 samples takes a kilobyte."""


def back_up(url: str | Path | None, target: Path) -> None:
    """Write the store at `url` to the new file `target`, as it was at one moment, while others go on writing to it.

    `target` appears once it is whole and on the disk. StoreError where
    there is no store, and where `target` exists.
    """
    if target.exists():
        raise StoreError(f"{target} exists; a backup is a new file: name another one")
    path = sqlite_path(url)
    if path is None:
        with closing(Database(url, create=False)) as source:
            sqlite_file.create(target, lambda draft: _from_server(source, draft))
        return
    if not path.exists():
        raise StoreError(f"there is no store at {path}; name another one with --store")
    sqlite_file.require_store(path, version_table=VERSION_TABLE)
    sqlite_file.create(target, lambda draft: _copy_file(path, draft))


def restore(backup: Path, url: str | Path | None, *, replace: bool) -> None:
    """Make the store at `url` hold what `backup` holds, with the current schema, in one transaction.

    A store that holds something is only overwritten with `replace`. The backup is not changed. StoreError, with
    nothing changed, for a file that is no store or is damaged.
    """
    if not backup.is_file():
        raise StoreError(f"there is no backup {backup}; name a file that `threadcast db backup` made")
    sqlite_file.require_store(backup, version_table=VERSION_TABLE)
    path = sqlite_path(url)
    if path is not None and not path.exists():
        sqlite_file.create(path, lambda draft: _checked_copy(backup, draft))
        return
    beside = path.parent if path is not None else None
    with tempfile.TemporaryDirectory(prefix=".restore.", dir=beside) as directory:
        draft = Path(directory, "draft.db")
        _checked_copy(backup, draft)
        with closing(Database(url, create=True)) as target:
            if not replace and _holds_something(target):
                raise StoreError(f"{target.name} holds measurements already; --replace replaces all that it holds")
            if path is not None:
                _copy_file(draft, path)
            else:
                with closing(Database(draft, create=False)) as source:
                    target.write(lambda connection: _refill(source, connection))


def _copy_file(source: Path, target: Path) -> None:
    """Copy a SQLite database by its online backup, in one step: readers and writers of either may go on."""
    try:
        with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(target, timeout=60.0)) as there:
            here.backup(there, pages=-1)
    except sqlite3.Error as error:
        raise StoreError(
            f"{source} cannot be copied to {target}: {sqlite_file.cause(error)}; nothing was changed"
        ) from error


def _checked_copy(backup: Path, draft: Path) -> None:
    """Copy a backup and bring its schema up to date; StoreError where it is damaged."""
    _copy_file(backup, draft)
    with closing(Database(draft, create=False)) as copy:
        if damage := copy.damage():
            raise StoreError(f"{backup} is damaged: {damage[0]}; restore another backup")


def _from_server(source: Database, draft: Path) -> None:
    with closing(Database(draft, create=True)) as made:
        made.write(lambda connection: _refill(source, connection))


def _refill(source: Database, target: Connection) -> None:
    """Replace all rows of `target` by those of `source` at one moment."""
    tables = schema.metadata.sorted_tables  # those that others refer to come first
    let_take_long(target)
    for table in reversed(tables):
        target.execute(delete(table))
    with source.read() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for table in tables:
            for rows in _rows_of(connection, table):
                target.execute(insert(table), rows)
    if target.dialect.name == "postgresql":
        for table in tables:
            _go_on_counting(target, table)


def _rows_of(connection: Connection, table: Table) -> Iterator[list[Row]]:
    found = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(select(table))
    for rows in found.partitions():
        yield [dict(row._mapping) for row in rows]


def _go_on_counting(connection: Connection, table: Table) -> None:
    """Let the ids that PostgreSQL gives follow those that were copied."""
    column = table.autoincrement_column
    if column is not None:
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        last = connection.execute(select(func.max(column))).scalar()
        connection.execute(select(func.setval(sequence, last or 1, last is not None)))


def _holds_something(database: Database) -> bool:
    with database.read() as connection:
        tables = (schema.measurements, schema.graphs, schema.runs)
        return any(connection.execute(select(table.c.id).limit(1)).first() for table in tables)
