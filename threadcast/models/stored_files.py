"""Files that appear whole or not at all, and reading them without following links."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from threadcast.core.atomic_file import naming
from threadcast.core.errors import ArtefactError

ABANDONED_S = 24 * 3600
"""Age in seconds above which files that killed writers left behind are removed."""


LOCK_S = 10.0
"""Longest wait for a lock, in seconds. It is held for some milliseconds, unless its process is stopped."""


@contextmanager
def staged(root: Path) -> Iterator[Path]:
    """A new private directory on the file system of `root`, whose files can be renamed or linked to their final names;
    the rest is removed at the end of the block."""
    staging = root / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(staging)
    directory = Path(tempfile.mkdtemp(dir=staging))  # 0700
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # after a rename there is nothing left


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Within the block no other thread or process is in a block of the same file, which is made in a directory that is
    there, and stays; the end of a process ends its block.

    ArtefactError where others keep it for `LOCK_S` seconds, or where the file cannot be made.
    """
    try:
        # NFS locks only files that are open for writing
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise ArtefactError(f"{path} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise ArtefactError(f"{path} has been locked by another process for {LOCK_S:g} s; try again") from None
            time.sleep(0.005)


def _remove_abandoned(staging: Path) -> None:
    for entry in staging.iterdir():
        try:
            abandoned = time.time() - entry.lstat().st_mtime > ABANDONED_S
        except OSError:  # somebody else was faster
            continue
        if abandoned:
            shutil.rmtree(entry, ignore_errors=True)


def write(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, and wait until it is on the disk; an OSError names it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with naming(path), os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_readable(directory: Path) -> None:
    """Let everybody who can reach a staged directory of files read it; called last, before the directory gets its final
    name."""
    for entry in directory.iterdir():
        entry.chmod(0o644)
    directory.chmod(0o755)


def read(path: Path, *, limit: int) -> bytes:
    """The content of a plain file of at most `limit` bytes; ArtefactError where it is longer, missing, a link or no
    plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ArtefactError(f"{path} is no plain file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ArtefactError(f"{path} is longer than the {limit} bytes that it may have")
    return data


def sync(directory: Path) -> None:
    """Wait until the names in a directory are on the disk; an OSError names it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(directory):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
