"""Runs the process that builds backends, ends it with the caller, and deletes the files that it leaves.

Run as a script, `python -I search_guard.py PARENT NICE FILE COMMAND...`: it runs the command with the name of a new
folder as its last argument, at the priority NICE, with the file descriptor FILE open. When the standard input is
closed or the process PARENT ends, in whatever way, the command and what it started end, and the folder is deleted. The
signal `PAUSE` stops the command and what it started until `RESUME`, or for `MOST_PAUSE_S`. It imports nothing but the
standard library.
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
_LOOK_S = 0.5
"""Seconds between two looks at whether the caller lives. Its end closes the standard input at once, unless a process
that it forked keeps that open."""
_NEW_S = 60.0
"""Seconds for which a folder without an owner may still be about to get one."""


def main(parent: int, nice: int, file: int, command: list[str]) -> None:
    """Run the command until it and the caller have ended."""
    os.nice(nice)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _delete_ownerless()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _lock(folder)
    environment = {**os.environ, "TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    running: subprocess.Popen[bytes] | None = None
    paused_s = math.inf

    def pause(number: int, _: object) -> None:
        nonlocal paused_s
        paused_s = time.monotonic() if number == PAUSE else math.inf
        if running is not None and running.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGSTOP if number == PAUSE else signal.SIGCONT)

    signal.signal(PAUSE, pause)
    signal.signal(RESUME, pause)
    try:
        running = subprocess.Popen([*command, str(folder)], process_group=0, pass_fds=[file], env=environment)
        os.close(file)
        os.write(1, b"{}\n")  # from now on it can be paused
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the caller sees the end of the command's output
        closed = select.poll()
        closed.register(0, 0)  # reports that the other end was closed, and reads nothing
        while os.getppid() == parent and not closed.poll(_LOOK_S * 1e3):
            running.poll()
            if time.monotonic() - paused_s > MOST_PAUSE_S:
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
    main(_parent, _nice, _file, sys.argv[4:])
