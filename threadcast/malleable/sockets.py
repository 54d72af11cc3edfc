"""Unix sockets between processes, the arbiter and the command line."""

from __future__ import annotations

import fcntl
import grp
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from threadcast.core.errors import InvalidInput, NotFound, ServiceUnavailable
from threadcast.core.user_directories import user_runtime_dir
from threadcast.malleable.family import process_status
from threadcast.malleable.lines import LONGEST_ANSWER, Lines, line

ANSWER_S = 2.0
"""Longest wait in seconds for an answer."""
_LONGEST_PATH = 107
"""Most bytes of a socket's path (unix(7))."""


def socket_of(process: int) -> Path:
    """Return the path at which the process with this number listens once it is attached."""
    return user_runtime_dir() / f"{process}.sock"


def listen(path: Path, *, group: str | None = None) -> socket.socket:
    """Return a non-blocking socket that listens at `path`; this user and members of `group` may connect.

    A socket file on which nobody listens any more is replaced. Members of `group` may also enter the folder if it is
    the default one or is created here; any other folder keeps its permissions. InvalidInput where another process
    listens already, where the path is another kind of file, where the folder belongs to another user or is writable by
    all or holds no sockets, for an unknown group, and for a path that is too long.
    """
    ours = path.parent == user_runtime_dir() or not path.parent.exists()
    _own_folder(path.parent)
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    if len(os.fsencode(draft)) > _LONGEST_PATH:
        raise InvalidInput(f"{path} is too long for a socket; choose a shorter path")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        _bind(listening, draft)
        os.chmod(draft, 0o660 if group else 0o600)
        if group:
            try:
                number = grp.getgrnam(group).gr_gid
            except KeyError:
                raise InvalidInput(f"there is no group {group!r}") from None
            os.chown(draft, -1, number)
            if ours:
                os.chown(path.parent, -1, number)
                os.chmod(path.parent, 0o750)
        listening.listen(128)
        with _locked(path.parent):
            _refuse_used(path)
            draft.rename(path)  # appears only when it is ready, in place of one that was left behind
    except BaseException:
        listening.close()
        draft.unlink(missing_ok=True)
        raise
    return listening


def file_id(path: Path) -> tuple[int, int]:
    """Return what tells the file at `path` from all others: the numbers of its device and of its inode."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def remove(path: Path, own: tuple[int, int]) -> None:
    """Remove a socket's file, unless it is no more the one with the `file_id` `own`: then it is another process's."""
    with suppress(FileNotFoundError), _locked(path.parent):
        if file_id(path) == own:
            path.unlink()


def remove_left_behind() -> None:
    """Remove the socket files of processes that were killed: the process is gone, and nobody listens."""
    with suppress(OSError), _locked(user_runtime_dir()):
        for path in user_runtime_dir().glob("*.sock"):
            if path.stem.isdecimal() and process_status(int(path.stem)) is None and not is_alive(path):
                path.unlink(missing_ok=True)


def connect(path: Path, timeout_s: float = ANSWER_S) -> socket.socket:
    """Return a connection to the process that listens at `path`.

    NotFound where there is no socket, ServiceUnavailable where it cannot be reached within `timeout_s`.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:  # too many files are open
        raise ServiceUnavailable(f"{path} cannot be reached: {error.strerror}") from error
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
    except FileNotFoundError:
        connection.close()
        raise NotFound(f"nobody listens at {path}") from None
    except OSError as error:
        connection.close()
        raise ServiceUnavailable(f"{path} cannot be reached: {error.strerror or error}") from error
    return connection


def ask(path: Path, message: dict[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Send one message and return the answer; NotFound or ServiceUnavailable where there is none within `timeout_s`."""
    lines = Lines(LONGEST_ANSWER)
    with connect(path, timeout_s) as connection:
        try:
            connection.sendall(line(message))
            while data := connection.recv(1 << 16):
                for answer in lines.feed(data):
                    return answer
        except OSError as error:
            raise ServiceUnavailable(f"{path} gave no answer: {error.strerror or error}") from error
    raise ServiceUnavailable(f"{path} closed the connection without an answer")


def peer(connection: socket.socket) -> int:
    """Return the number of the process at the other end, which the kernel vouches for."""
    process, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(process)


def is_alive(path: Path) -> bool:
    """Return whether a process listens at `path`."""
    return listener(path) is not None


def listener(path: Path) -> int | None:
    """Return the number of the process that listens at `path`, 0 where it is stopped; None where nobody listens."""
    try:
        with connect(path, 0.2) as connection:
            return peer(connection)
    except NotFound:
        return None
    except ServiceUnavailable as error:  # one that is stopped has no room for more, and listens nevertheless
        return None if isinstance(error.__cause__, ConnectionRefusedError) else 0


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from replacing sockets in this folder during the block; waits for at most `ANSWER_S`."""
    opened, until_s = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), time.monotonic() + ANSWER_S
    try:
        while time.monotonic() < until_s:  # a process that was stopped while it held the lock must not stop all others
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # some file systems have no locks
                break
        yield
    finally:
        os.close(opened)


def _bind(listening: socket.socket, draft: Path) -> None:
    try:
        draft.unlink(missing_ok=True)  # of a process of the same number that was killed
        listening.bind(str(draft))
    except OSError as error:  # it names no file
        raise InvalidInput(f"no socket can be made in {draft.parent}: {error.strerror or error}") from error


def _refuse_used(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInput(f"{path} is no socket; choose another path")
        if is_alive(path):
            raise InvalidInput(f"{path} is in use by another process")


def _own_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidInput(f"{path} cannot be a folder: there is a file of this name; choose another path") from error
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o002:
        raise InvalidInput(f"{path} is another user's, or open to all; set XDG_RUNTIME_DIR to a folder of your own")
