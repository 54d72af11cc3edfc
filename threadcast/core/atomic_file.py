"""Writing a file so that readers see the old or the new one, never a part."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a draft to write to; it replaces `path` at the end of the block, unless an exception ends the block.

    The draft has the same name in a directory of its own beside `path`, so that its suffix, its permissions and its
    file system are those of the final file. A pipe or a device, which cannot be replaced, is its own draft. An OSError
    about the draft, or about no file by name, names `path`.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(target.parent))
    prefix = f".{target.name}."
    try:
        with naming(path), tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as directory:
            draft = Path(directory, target.name)
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, target)
    except OSError as error:
        if str(error.filename).startswith(str(target.parent / prefix)):
            error.filename, error.filename2 = str(path), None  # the caller does not know the draft's name
        raise


def put_new(draft: Path, path: Path) -> None:
    """Put `draft` at `path` too, unless something is there: FileExistsError, at the same moment in all processes.

    A hard link, which unlike a rename never replaces a file; an OSError says so where the file system has none.
    """
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            why = f"its file system makes no hard links ({error.strerror}), which are needed there"
            raise OSError(error.errno, why, str(path)) from error
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError of the system that names no file, as that of writing to a full disk, names `path` behind the block."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:  # ThreadcastErrors that are OSErrors have no number
            error.filename = str(path)
        raise
