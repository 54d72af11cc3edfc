"""The lock by which at most one process retrains models from a store."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from threadcast.core.errors import StoreError
from threadcast.store.database import connect_alone, locate

_NUMBER = 0x74637274
"""First number of the advisory lock of PostgreSQL: the bytes of "tcrt". The second one is the schema's."""

SUFFIX = ".retrainer"
"""Suffix of the file beside a store in SQLite that is locked. It stays: two processes could lock a removed and a new
one."""


class RetrainerLock:
    """At most one process of all that share the store at `url` holds it; the end of its process releases it.

    In PostgreSQL it is an advisory lock of a connection of its own, which the server releases when that ends. For
    SQLite it is a lock of a file beside the store (flock(2)): such a store is on one machine. A lease in a table would
    outlive a killed holder until it expires, and needs clocks that agree. StoreError where neither is possible.
    """

    def __init__(self, url: str | Path | None) -> None:
        self._url, self._path = locate(url)
        if self._path is None and self._url.get_backend_name() != "postgresql":
            raise StoreError(f"a store in {self._url.get_backend_name()} cannot be locked for retraining")
        self._file: int | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def take(self) -> bool:
        """Whether this process holds the lock now; takes it where nobody else does. Does not wait."""
        return self._take_file(self._path) if self._path is not None else self._take_on_server()

    def release(self) -> None:
        """Let others have it; releasing it again does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            self._connection.close()
            self._connection.engine.dispose()
            self._connection = None

    def _take_file(self, path: Path) -> bool:
        if self._file is not None:
            return True
        name = path.with_name(path.name + SUFFIX)
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{name} cannot be locked for retraining: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._file = descriptor
        return True

    def _take_on_server(self) -> bool:
        try:
            if self._connection is not None:
                self._connection.exec_driver_sql("SELECT 1")  # the server may have gone, and the lock with it
                return True
            self._connection = connect_alone(self._url)
            query = text("SELECT pg_try_advisory_lock(:number, hashtext(current_schema()))")
            held = bool(self._connection.execute(query, {"number": _NUMBER}).scalar())
        except SQLAlchemyError as error:
            self.release()
            raise StoreError(f"the lock for retraining cannot be asked for: {error}") from error
        if not held:
            self.release()
        return held
