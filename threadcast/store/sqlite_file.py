"""Checking and creating SQLite files, without ever changing a file that is not a store."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from threadcast.core.atomic_file import put_new
from threadcast.core.errors import StoreError

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100  # https://sqlite.org/fileformat.html, section 1.3, as for the offsets below


_ELSEWHERE = "choose another place, such as a local disk, with --store"


def require_store(path: Path, *, version_table: str) -> None:
    """Raise StoreError unless `path` is a whole SQLite database that has a table named `version_table`.

    This reads without locks and leaves no file behind: a plain read-only connection to a database in WAL mode would
    leave its -wal and -shm files there. The content of the WAL is not checked, which is safe, because a store that
    `create` made has that table from the beginning. The WAL is read only where the file alone is not whole: during a
    checkpoint, and after one that a kill or a full disk interrupted.
    """
    uri = f"file:{quote(bytes(path.absolute()))}?mode=ro"
    try:
        has_wal = _has_wal(path)
        _check_header(path, has_wal=has_wal)
        try:
            found = _has_table(f"{uri}&immutable=1", version_table)
        except sqlite3.DatabaseError:
            if not has_wal:
                raise
            found = _has_table(uri, version_table)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} is damaged ({error}); restore it from a copy, or name another file") from error
    if not found:
        raise StoreError(f"{path} is a SQLite database, but not a measurement store; name another file")


def _has_table(uri: str, name: str) -> bool:
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(connection.execute(query, (name,)).fetchone()[0])


def _has_wal(path: Path) -> bool:
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _check_header(path: Path, *, has_wal: bool) -> None:
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if not header.startswith(_MAGIC[: len(header)]):
        raise StoreError(f"{path} is not a SQLite database; name another file, or none for the default store")
    pages = _number(header, 28, 4)
    page_bytes = _number(header, 16, 2) or 1
    expected = pages * (65536 if page_bytes == 1 else page_bytes)
    pages_valid = _number(header, 24, 4) == _number(header, 92, 4)
    if size < _HEADER_BYTES or (pages_valid and size < expected and not has_wal):  # else they are in the WAL
        lost = f"{size} bytes of {expected}" if size >= _HEADER_BYTES else f"{size} bytes"
        raise StoreError(
            f"{path} is truncated ({lost}); restore it from a copy, or delete it, with {path.name}-wal and "
            f"{path.name}-shm where they are, to start a new store"
        )


def _number(header: bytes, offset: int, length: int) -> int:
    return int.from_bytes(header[offset : offset + length], "big")


def create(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` create a database, and put it at `path` once it is whole; StoreError where that is not possible.

    Where another process was faster, its file stays and the new one is deleted. StoreError also where the disk is full,
    and where a journal of an earlier database of this name is left: SQLite would write what is in it into the new one.
    """
    refuse_journals(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
            draft = Path(directory, path.name)
            fill(draft)
            try:
                _settle(draft)
            except sqlite3.Error as error:
                raise StoreError(f"{path} cannot be created: {cause(error)}, or choose another place") from error
            if not path.exists():
                put_new(draft, path)
    except FileExistsError:
        if not path.exists():  # the error is that the parent is not a directory
            raise StoreError(f"{path} cannot be created: {path.parent} is not a directory") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be created: {error.strerror}; choose another place with --store") from error


def _settle(path: Path) -> None:
    """Move all of a database from its WAL into its file, and that to the disk; sqlite3.Error where that fails.

    Closing the last connection does so too, but says nothing where it fails, as on a full disk.
    """
    with closing(sqlite3.connect(path, timeout=0.0)) as connection:
        if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise sqlite3.OperationalError("another program has the new file open")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < pages * page_bytes:
            raise sqlite3.OperationalError(f"only {size} bytes of {pages * page_bytes} were written")
        os.fsync(file.fileno())


def cause(error: sqlite3.Error) -> str:
    """What an error of SQLite says, and where it comes from the disk, what to do about it."""
    name = getattr(error, "sqlite_errorname", None) or ""
    said = f"{error} ({name})" if name.startswith("SQLITE_IOERR_") else str(error)
    if name in ("SQLITE_IOERR_SHMMAP", "SQLITE_IOERR_SHMOPEN"):
        lacks = "shares no memory between processes (mmap), as SQLite's write-ahead log does"
        return f"{said}: its file system {lacks}; {_ELSEWHERE}"
    if name in ("SQLITE_IOERR_LOCK", "SQLITE_IOERR_RDLOCK", "SQLITE_IOERR_UNLOCK", "SQLITE_IOERR_SHMLOCK"):
        return f"{said}: its file system locks no files; {_ELSEWHERE}"
    if name == "SQLITE_FULL" or "disk" in said or (not name and isinstance(error, sqlite3.OperationalError)):  # of ours
        return f"{said}; free some space"
    return said


def refuse_journals(path: Path) -> None:
    """Raise StoreError where a journal is without its database. What is in it is of no use: it is parts of pages."""
    journals = [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]
    found = [journal for journal in journals if journal.exists() and journal.stat().st_size > 0]
    if found and not path.exists():  # in this order: what another process is making has its database first
        files = " and ".join(map(str, found))
        raise StoreError(
            f"{path} cannot be created: {files} {'is' if len(found) == 1 else 'are'} left of an earlier store of this "
            "name, and would be written into the new one; move or delete what is left"
        )
