"""Runs the process that builds backends, ends it with the caller, and deletes the files that it leaves.

Run as a script, `python -I search_guard.py PARENT NICE FILE STATE LOCK COMMAND...`: it runs the command with the name
of a new folder as its last argument, at the priority NICE, with the file descriptor FILE open. Of all guards with the
same file LOCK (empty: none), one has a command that runs; the others wait, as does one that has rested for long. When
the standard input is closed or the process PARENT ends, in whatever way, the command and what it started end, and the
folder is deleted.

The command and what it started work while the first byte of the file descriptor STATE is 1, and while PARENT computes
nothing and a core is idle (`Idleness`); else they are stopped. The signal `LOOK` has the byte read anew. The second
byte is 1 while the command may run and none of another guard does. It imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
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
from functools import partial
from pathlib import Path

PREFIX = "threadcast-backends-"
"""Beginning of the folders' names in the directory for temporary files."""
LOOK = signal.SIGUSR1
"""Signal at which it reads again whether the command may work: one alone, as two could come in the wrong order."""
QUIET_S = 0.1
"""Seconds in which the caller has to compute nothing for the command to go on."""
WORK_S = 0.5
"""Seconds after which the command rests once more for `QUIET_S`, to see whether anything else wants the cores."""
LOOK_S = 0.005
"""Seconds between two looks whether the caller computes again; its next optimised call tells that at once."""
BUSY = 0.2
"""Cores that the caller uses from which on it computes."""
GIVE_BACK_S = 3.0
"""Seconds of rest after which other guards' commands may run in its place: longer than comparisons take."""
IDLE = "idle"
"""Name of the file in the folder that the command keeps while it has nothing to do: then it needs no turn."""
NOTHING_TO_DO = 75
"""Exit status of a command that was idle for long: what it has built is needed no more (EX_TEMPFAIL of sysexits.h)."""
_PDEATHSIG = 1
"""Asks for a signal at the parent's end (PR_SET_PDEATHSIG of prctl(2))."""
_LIBC = ctypes.CDLL(None)
_LOOK_S = 0.5
"""Seconds between two looks at whether the caller lives. Its end closes the standard input at once, unless a process
that it forked keeps that open."""
_NEW_S = 60.0
"""Seconds for which a folder without an owner may still be about to get one."""


class Turn:
    """The turn of one guard among all with the same file; every guard has one where that cannot be opened or locked."""

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        self.held = False
        with suppress(OSError):
            if path:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def take(self) -> bool:
        """Have the turn if no other guard has; return whether it is this one's now."""
        try:
            if self._file is not None and not self.held:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            self._file = None
        self.held = True
        return True

    def give_back(self) -> None:
        """Let another guard have it."""
        if self.held and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self.held = False


class Idleness:
    """Whether a command may work because nobody wants the cores: the caller's CPU clock stands, and a core is idle.

    The machine is looked at while the command rests, so that only others count.
    """

    def __init__(self, caller: int) -> None:
        self._caller, self._cpus = caller, {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
        self.found = False
        """Whether it may work until the next look."""
        self.begin()

    @property
    def wait_s(self) -> float:
        """Seconds until the next look."""
        return LOOK_S if self.found else QUIET_S

    def begin(self) -> None:
        """Let the command rest, and watch from now on."""
        self.found = False
        self._began_s, self._idle_s = time.monotonic(), self._machine_s()
        self._since_s, self._used_s = self._began_s, self._caller_s()

    def look(self) -> bool:
        """Look once; return whether that has changed what is `found`."""
        now_s, used_s, found = time.monotonic(), self._caller_s(), self.found
        since_s = now_s - self._since_s
        if since_s < self.wait_s:
            return False
        is_quiet = used_s - self._used_s < BUSY * since_s
        self._since_s, self._used_s = now_s, used_s
        if found and not (is_quiet and now_s - self._began_s < WORK_S):
            self.begin()
        elif not found:
            is_quiet = is_quiet and self._machine_s() - self._idle_s > (1 - BUSY) * since_s
            self.begin()
            self.found = is_quiet
        return found != self.found

    def _caller_s(self) -> float:
        """CPU seconds of the caller."""
        try:
            return time.clock_gettime((~self._caller << 3) | 2)  # as clock_getcpuclockid(3) makes it
        except OSError:  # it has ended
            return 0.0

    def _machine_s(self) -> float:
        """Seconds for which the cores were idle so far; unbounded where Linux does not say."""
        try:
            lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
            return sum(int(one[4]) + int(one[5]) for one in lines if one[0] in self._cpus) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, LookupError):
            return time.monotonic() * len(self._cpus)


def _begin(nice: int) -> None:
    """Set what a command has from its start: its priority, and that it ends with its guard, however that ends."""
    os.nice(nice)
    _LIBC.prctl(_PDEATHSIG, signal.SIGKILL)


class Command:
    """The command that a guard runs, which works or rests."""

    def __init__(self, state: int, turn: Turn, idleness: Idleness, idle: Path) -> None:
        self._state, self._turn, self._idleness, self._idle = state, turn, idleness, idle
        self._process: subprocess.Popen[bytes] | None = None
        self._rests_s = time.monotonic()
        """Since when it rests; unbounded while it works."""

    def begin(self, command: list[str], *, nice: int, file: int, environment: dict[str, str]) -> None:
        """Start it; it rests at first."""
        self._process = subprocess.Popen(
            command, process_group=0, pass_fds=[file], env=environment, preexec_fn=partial(_begin, nice)
        )
        self.apply()

    @property
    def asked(self) -> bool:
        """Whether the caller lets it work."""
        return os.pread(self._state, 1, 0) == b"\1"

    def look(self, *_: object) -> None:
        """Take note that the caller has changed its mind."""
        self._idleness.begin()
        self.apply()

    def apply(self) -> None:
        """Let it work or rest, whichever is right now."""
        works = self.asked or self._idleness.found
        self._rests_s = math.inf if works else min(self._rests_s, time.monotonic())
        if self._process is None or self._process.returncode is not None:
            return
        goes_on = self._idle.exists() or (works and self._turn.take())
        os.pwrite(self._state, bytes([self._turn.held]), 1)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT if goes_on else signal.SIGSTOP)

    def goes_on(self) -> bool:
        """Look whether it has ended, or lets others work; return False where it will never work again."""
        assert self._process is not None
        ended = self._process.poll()
        if ended is not None or self._idle.exists() or time.monotonic() - self._rests_s > GIVE_BACK_S:
            self._turn.give_back()
        self.apply()
        return ended != NOTHING_TO_DO

    def end(self) -> None:
        """End it, and what it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def main(parent: int, nice: int, file: int, state: int, lock: str, command: list[str]) -> None:
    """Run the command until it and the caller have ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _delete_ownerless()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _lock(folder)
    environment = {**os.environ, "TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    turn, idleness, idle = Turn(lock), Idleness(parent), folder / IDLE
    running = Command(state, turn, idleness, idle)
    signal.signal(LOOK, running.look)
    closed = select.poll()
    closed.register(0, 0)  # reports that the other end was closed, and reads nothing
    try:
        while not turn.take():
            if os.getppid() != parent or closed.poll(_LOOK_S * 1e3):
                return
        running.begin([*command, str(folder)], nice=nice, file=file, environment=environment)
        os.close(file)
        os.write(1, b"{}\n")  # from now on it understands the signal
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the caller sees the end of the command's output
        looked_s = time.monotonic()
        while os.getppid() == parent:
            watches = not (running.asked or idle.exists())
            if closed.poll(1e3 * (idleness.wait_s if watches else _LOOK_S)):
                break
            if watches and idleness.look():
                running.apply()
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                if not running.goes_on():
                    break
    finally:
        running.end()
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
    _parent, _nice, _file, _state = map(int, sys.argv[1:5])
    main(_parent, _nice, _file, _state, sys.argv[5], sys.argv[6:])
