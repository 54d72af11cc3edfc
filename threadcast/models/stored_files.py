"""Files that appear whole or not at all, and reading them without following links."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from threadcast.core.errors import ArtefactError


@contextmanager
def staged(root: Path) -> Iterator[Path]:
    """A private directory on the file system of `root`, from which to rename or link; the rest of it is removed."""
    staging = root / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=staging))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # after a rename there is nothing left


def write(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, *, limit: int) -> bytes:
    """A plain file of at most `limit` bytes; ArtefactError where it is longer, missing, a link or no plain file."""
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
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
