"""The process that builds backends: started for a first search, kept for later ones, ended where none comes for long.

A new one takes 4 s of CPU time to import PyTorch and the exporters. One at most is kept that no search uses.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from threadcast.runtime.backends import search_guard
from threadcast.runtime.backends.program_file import ProgramFile
from threadcast.runtime.backends.search_worker import ABANDONED, BEGIN, DONE, Options
from threadcast.threads.openmp import child_environment

NICE = 3
"""Priority of the process that builds backends (nice(2)). Beside calls that keep both of two cores busy, and six other
busy programs, it got 0.10 of a core; at 0 it got 0.16, at 10 0.025, at 19 0.006: a search of 8 CPU seconds would never
end. What calls may lose is bounded by pauses (`pause`)."""
LOCK = "learner"
"""Name of the file beside the history by which one search of all processes of a machine is at work at a time."""
_PIECE_BYTES = 16 * 2**20
"""Bytes of weights that are handed over before a look whether the search was closed."""
_READ_BYTES = 65536
_END_S = 2.0
"""Longest wait in seconds for the end of a kept process, which takes some hundredths."""


class SearchProcess:
    """A process that builds backends under these conditions; OSError where it cannot be started."""

    def __init__(self, options: Options) -> None:
        self._conditions = _conditions(options)
        self._file = os.memfd_create("threadcast-program")
        lock = "" if options.history is None else str(Path(options.history).with_name(LOCK))
        guard = [sys.executable, "-I", search_guard.__file__, str(os.getpid()), str(NICE), str(self._file), lock]
        command = [sys.executable, "-P", "-m", "threadcast.runtime.backends.search_worker", str(self._file)]
        try:
            self._process = subprocess.Popen(
                [*guard, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                pass_fds=[self._file], bufsize=0, env=child_environment(),
                # Ctrl-C is for the caller. The session is the caller's: Linux weighs priorities within one.
                process_group=0,
            )  # fmt: skip
        except OSError:
            os.close(self._file)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._messages = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._messages, False)
        self._writing: threading.Thread | None = None
        self.heard = False
        """Whether it has told anything, so that it can be paused."""

    def fits(self, options: Options) -> bool:
        """Return whether it runs, and can be used under these conditions."""
        return self._conditions == _conditions(options) and self.read() is None

    def begin(
        self, content: ProgramFile, options: Options, closed: Callable[[], bool], failed: Callable[[str], None]
    ) -> None:
        """Hand a program over, in a thread: BERT-base's 434 MB take 0.3 s. `failed` is told why it cannot be."""
        self._writing = threading.Thread(target=self._write, args=(content, options, closed, failed), daemon=True)
        self._writing.start()

    def _write(
        self, content: ProgramFile, options: Options, closed: Callable[[], bool], failed: Callable[[str], None]
    ) -> None:
        answer = bytes([ABANDONED])  # on which the process ends
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
            os.ftruncate(self._file, 0)
            for offset, part in content.parts():
                while part and not closed():
                    written = os.pwrite(self._file, part[:_PIECE_BYTES], offset)
                    part, offset = part[written:], offset + written
            answer = bytes([BEGIN]) + json.dumps(asdict(options)).encode() + b"\n"
        except (OSError, MemoryError, RuntimeError) as error:  # memory ran out
            failed(f"the program cannot be handed over: {getattr(error, 'strerror', None) or error}")
        self.answer(answer)

    def answer(self, text: bytes) -> None:
        """Tell it something."""
        with suppress(OSError):  # the process has ended
            os.write(self._questions, text)

    def read(self) -> bytes | None:
        """Return what it has told; None where that is nothing, and no bytes where it has ended."""
        try:
            found = os.read(self._messages, _READ_BYTES)
        except BlockingIOError:
            return None
        self.heard |= bool(found)
        return found

    def wait(self, timeout_s: float) -> None:
        """Return when it tells something, or after `timeout_s` seconds."""
        answered = select.poll()
        answered.register(self._messages, select.POLLIN)
        answered.poll(timeout_s * 1e3)

    def pause(self, paused: bool) -> None:
        """Stop it, or let it go on."""
        self._process.send_signal(search_guard.PAUSE if paused else search_guard.RESUME)

    def rest(self) -> None:
        """Give back a program's memory, and end after a while, unless another program comes."""
        if self._writing is not None:
            self._writing.join()
        os.ftruncate(self._file, 0)
        self.answer(bytes([DONE]))

    def close(self, *, waits: bool = False) -> None:
        """End it, and delete its files."""
        if self._writing is not None:
            self._writing.join()
        os.close(self._file)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()  # on which the guard ends everything, and deletes the files
        if waits:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        else:
            threading.Thread(target=self._process.wait, daemon=True).start()


class _Kept:
    """The process that no search uses now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: SearchProcess | None = None
        self._of = os.getpid()

    def exchange(self, process: SearchProcess | None) -> SearchProcess | None:
        """Keep another process, or none, and return the one before; None in a fork, whose parent has it."""
        if self._of != os.getpid():  # the lock may be held by a thread that did not come along
            self._lock, self._process, self._of = threading.Lock(), None, os.getpid()
        with self._lock:
            before, self._process = self._process, process
            return before


_KEPT = _Kept()


def lent(options: Options) -> SearchProcess:
    """Return a process for a search under these conditions: the kept one, or a new one; OSError where there is none."""
    kept = _KEPT.exchange(None)
    if kept is not None:
        if kept.fits(options):
            return kept
        kept.close()
    return SearchProcess(options)


def give_back(process: SearchProcess) -> None:
    """Keep a process whose search has come to its end."""
    process.rest()
    before = _KEPT.exchange(process)
    if before is not None:
        before.close()


@atexit.register
def end_kept() -> None:
    """End the process that no search uses, if there is one, and wait for its end."""
    kept = _KEPT.exchange(None)
    if kept is not None:
        kept.close(waits=True)


def _conditions(options: Options) -> tuple[object, ...]:
    """All that a process cannot change once it has begun."""
    environment = sorted(child_environment().items())
    folder = None if options.history is None else Path(options.history).parent
    return options.cores, options.cpus, options.keeps_memory, folder, environment
