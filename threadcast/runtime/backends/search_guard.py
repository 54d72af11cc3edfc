"""Runs the process that builds backends, ends it with the caller, and deletes the files that it leaves.

Run as a script, `python -I search_guard.py PARENT NICE FILE LOCK COMMAND...`: it runs the command with the name of a
new folder as its last argument, at the priority NICE, with the file descriptor FILE open. Of all guards with the same
file LOCK (empty: none), one has a command that runs; the others wait, as does one that was paused for long. When the
standard input is closed or the process PARENT ends, in whatever way, the command and what it started end, and the
folder is deleted. The signal `PAUSE` stops the command and what it started until `RESUME`, or for `MOST_PAUSE_S`. It
imports nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "threadcast-backends-"
"""Beginning of the folders' names in the directory for temporary files."""
PAUSE, RESUME = signal.SIGUSR1, signal.SIGUSR2
MOST_PAUSE_S = 10.0
"""Longest pause in seconds: a caller that has paused the command may make no further call. Comparisons of short calls
take 2 s at most."""
GIVE_BACK_S = 3.0
"""Seconds of a pause after which other guards' commands may run in its place: longer than comparisons take."""
IDLE = "idle"
"""Name of the file in the folder that the command keeps while it has nothing to do: then it needs no turn."""
NOTHING_TO_DO = 75
"""Exit status of a command that was idle for long: what it has built is needed no more (EX_TEMPFAIL of sysexits.h)."""
_LOOK_S = 0.5
"""Seconds between two looks at whether the caller lives. Its end closes the standard input at once, unless a process
that it forked keeps that open."""
_NEW_S = 60.0
"""Seconds for which a folder without an owner may still be about to get one."""


class Turn:
    """The turn of one guard among all with the same file; every guard has one where that cannot be opened."""

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        self.held = False
        with suppress(OSError):
            if path:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def take(self) -> bool:
        """Have the turn if no other guard has; return whether it is this one's now."""
        if not self.held:
            with suppress(BlockingIOError):
                self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.held = True
        return self.held

    def give_back(self) -> None:
        """Let another guard have it."""
        if self.held:
            self._lock(fcntl.LOCK_UN)
            self.held = False

    def _lock(self, how: int) -> None:
        if self._file is not None:
            try:
                fcntl.flock(self._file, how)
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks
                self._file = None


def main(parent: int, nice: int, file: int, lock: str, command: list[str]) -> None:
    """Run the command until it and the caller have ended."""
    os.nice(nice)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _delete_ownerless()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _lock(folder)
    environment = {**os.environ, "TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    running: subprocess.Popen[bytes] | None = None
    paused_s = math.inf
    turn, idle = Turn(lock), folder / IDLE

    def pause(number: int, _: object) -> None:
        nonlocal paused_s
        paused_s = time.monotonic() if number == PAUSE else math.inf
        if running is not None and running.returncode is None and (number == PAUSE or turn.held or idle.exists()):
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGSTOP if number == PAUSE else signal.SIGCONT)

    signal.signal(PAUSE, pause)
    signal.signal(RESUME, pause)
    closed = select.poll()
    closed.register(0, 0)  # reports that the other end was closed, and reads nothing
    try:
        while not turn.take():
            if os.getppid() != parent or closed.poll(_LOOK_S * 1e3):
                return
        running = subprocess.Popen([*command, str(folder)], process_group=0, pass_fds=[file], env=environment)
        os.close(file)
        os.write(1, b"{}\n")  # from now on it can be paused
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the caller sees the end of the command's output
        while os.getppid() == parent and not closed.poll(_LOOK_S * 1e3):
            ended = running.poll()
            if ended == NOTHING_TO_DO:
                break
            if ended is not None or idle.exists() or time.monotonic() - paused_s > GIVE_BACK_S:
                turn.give_back()
            elif not turn.held and not turn.take():
                os.killpg(running.pid, signal.SIGSTOP)
            elif paused_s == math.inf:
                os.killpg(running.pid, signal.SIGCONT)
            if time.monotonic() - paused_s > MOST_PAUSE_S and turn.take():
                pause(RESUME, None)
    finally:
        if running is not None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> bool:
    """Own the folder until this process ends; False where another process owns it, or there are no locks."""
    try:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _delete_ownerless() -> None:
    """Delete the folders whose owners were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or deleted meanwhile
            if time.time() - folder.stat().st_mtime > _NEW_S and _lock(folder):
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _parent, _nice, _file = map(int, sys.argv[1:4])
    main(_parent, _nice, _file, sys.argv[4], sys.argv[5:])
