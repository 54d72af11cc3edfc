"""Backups of stores in SQLite: files that are stores themselves. Those of PostgreSQL are for its own `pg_dump`."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from threadcast.core.errors import StoreError
from threadcast.store import schema, sqlite_file
from threadcast.store.database import Database, sqlite_path
from threadcast.store.schema import VERSION_TABLE


def back_up(url: str | Path | None, target: Path) -> None:
    """Write the store at `url` to the new file `target`, as it was at one moment, while others go on writing to it.

    `target` appears once it is whole and on the disk. StoreError where there is no store in a file, and where `target`
    exists.
    """
    if target.exists():
        raise StoreError(f"{target} exists; a backup is a new file: name another one")
    path = _file_of(url, "pg_dump")
    if not path.exists():
        raise StoreError(f"there is no store at {path}; name another one with --store")
    sqlite_file.require_store(path, version_table=VERSION_TABLE)
    sqlite_file.create(target, lambda draft: _copy_file(path, draft))


def restore(backup: Path, url: str | Path | None, *, replace: bool) -> None:
    """Make the store at `url` hold what `backup` holds, with the current schema, all or nothing.

    A store that holds something is only overwritten with `replace`. The backup is not changed. StoreError, with
    nothing changed, for a file that is no store or is damaged, and for a store that is not in a file.
    """
    if not backup.is_file():
        raise StoreError(f"there is no backup {backup}; name a file that `threadcast db backup` made")
    sqlite_file.require_store(backup, version_table=VERSION_TABLE)
    path = _file_of(url, "pg_restore")
    if not path.exists():
        sqlite_file.create(path, lambda draft: _checked_copy(backup, draft))
        return
    with tempfile.TemporaryDirectory(prefix=".restore.", dir=path.parent) as directory:
        draft = Path(directory, "draft.db")
        _checked_copy(backup, draft)
        with closing(Database(path, create=False)) as target:
            if not replace and _holds_something(target):
                raise StoreError(f"{target.name} holds measurements already; --replace replaces all that it holds")
            _copy_file(draft, path)


def _file_of(url: str | Path | None, program: str) -> Path:
    path = sqlite_path(url)
    if path is None:
        raise StoreError(f"the store is no file of SQLite; {program} does this for PostgreSQL")
    return path


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


def _holds_something(database: Database) -> bool:
    with database.read() as connection:
        tables = (schema.measurements, schema.graphs, schema.runs)
        return any(connection.execute(select(table.c.id).limit(1)).first() for table in tables)
