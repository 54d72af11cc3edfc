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
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from threadcast.runtime.backends import search_guard
from threadcast.runtime.backends.program_file import ProgramFile
from threadcast.runtime.backends.ways import BEGIN, DONE, Options
from threadcast.threads.openmp import child_environment

NICE = 3
"""Priority of the process that builds backends (nice(2)). Beside calls that keep both of two cores busy, and six other
busy programs, it got 0.10 of a core; at 0 it got 0.16, at 10 0.025, at 19 0.006: a search of 8 CPU seconds would never
end."""
LOCK = "learner"
"""Name of the file beside the history by which one search of all processes of a machine is at work at a time."""
_COMMAND = (
    "import gc, sys; gc.disable(); from threadcast.runtime.backends.search_worker import main; main(*sys.argv[1:])"
)
"""What the process runs. Without looks for garbage, imports and exporting a program take 0.8 of the CPU time."""
_PIECE_BYTES = 16 * 2**20
"""Bytes of weights that are handed over before a look whether the search was closed."""
_READ_BYTES = 65536
_END_S = 2.0
"""Longest wait in seconds for the end of a kept process, which takes some hundredths."""


class SearchProcess:
    """A process that builds backends under these conditions; OSError where it cannot be started.

    `works`: it works from its start on, until it is told to rest.
    """

    def __init__(self, options: Options, *, works: bool = False) -> None:
        self._conditions, self.of = _conditions(options), os.getpid()
        self._file, self._state = os.memfd_create("threadcast-program"), os.memfd_create("threadcast-turns")
        os.pwrite(self._state, bytes([works]), 0)
        lock = "" if options.history is None else str(Path(options.history).with_name(LOCK))
        numbers = map(str, (os.getpid(), NICE, self._file, self._state))
        guard = [sys.executable, "-I", search_guard.__file__, *numbers, lock]
        command = [sys.executable, "-P", "-c", _COMMAND, str(self._file)]
        try:
            self._process = subprocess.Popen(
                [*guard, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                pass_fds=[self._file, self._state], bufsize=0, env=child_environment(),
                # Ctrl-C is for the caller. The session is the caller's: Linux weighs priorities within one.
                process_group=0,
            )  # fmt: skip
        except OSError:
            os.close(self._file)
            os.close(self._state)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._messages = self._process.stdin, self._process.stdout
        os.set_blocking(self._messages.fileno(), False)
        self._writing: threading.Thread | None = None
        self.not_written, self._closed = "", False
        """Why the last program could not be handed over; empty where it could."""
        self._rests, self._told_s = not works, 0.0
        """Whether it was told to rest, and when, by `time.monotonic`."""
        self.heard = False
        """Whether it has told anything, so that it understands signals."""

    def fits(self, options: Options) -> bool:
        """Return whether it runs, and can be used under these conditions."""
        return self._conditions == _conditions(options) and self.read() != b""

    def begin(self, content: ProgramFile, options: Options) -> None:
        """Hand a program over, in a thread: BERT-base's 434 MB take 0.3 s."""
        self.not_written = ""
        self._writing = threading.Thread(target=self._write, args=(content, options), daemon=True)
        self._writing.start()

    def _write(self, content: ProgramFile, options: Options) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
            os.ftruncate(self._file, 0)
            for offset, part in content.parts():
                while part and not self._closed:
                    written = os.pwrite(self._file, part[:_PIECE_BYTES], offset)
                    part, offset = part[written:], offset + written
            self._tell(bytes([BEGIN]) + json.dumps(asdict(options)).encode() + b"\n")
        except (OSError, MemoryError, RuntimeError) as error:  # memory ran out
            self.not_written = f"the program cannot be handed over: {getattr(error, 'strerror', None) or error}"

    def _tell(self, text: bytes) -> None:
        with suppress(OSError, ValueError):  # the process has ended
            self._questions.write(text)

    def read(self) -> bytes | None:
        """Return what it has told; None where that is nothing, and no bytes where it has ended, or got no program."""
        if self.not_written:
            return b""
        try:
            found = os.read(self._messages.fileno(), _READ_BYTES)
        except BlockingIOError:
            return None
        self.heard |= bool(found)
        self._told_s = 0.0  # a kept process that has begun anew works until it is told to rest
        return found

    def wait(self, timeout_s: float) -> None:
        """Return when it tells something, or after `timeout_s` seconds."""
        answered = select.poll()
        answered.register(self._messages, select.POLLIN)
        answered.poll(timeout_s * 1e3)

    def rest(self, rests: bool) -> None:
        """Stop it, or let it work. Where it rests it works all the same while this process computes nothing.

        It is told to rest again after a time in which it may have found that.
        """
        now_s, before_s = time.monotonic(), self._told_s
        self._told_s = now_s
        if self.heard and (rests != self._rests or (rests and now_s - before_s > search_guard.QUIET_S / 2)):
            self._rests = rests
            os.pwrite(self._state, bytes([not rests]), 0)
            self._process.send_signal(search_guard.LOOK)

    @property
    def has_turn(self) -> bool:
        """Whether it works where it may, and not another process's."""
        return self.heard and os.pread(self._state, 1, 1) == b"\1"

    def idle(self) -> None:
        """Give back a program's memory, and end after a while, unless another program comes."""
        if self._writing is not None:
            self._writing.join()
        os.ftruncate(self._file, 0)
        self._tell(bytes([DONE]))

    def close(self, *, waits: bool = False) -> None:
        """End it, and delete its files."""
        self._closed = True
        if self._writing is not None:
            self._writing.join()
        os.close(self._file)
        os.close(self._state)
        for pipe in (self._questions, self._messages):
            pipe.close()  # on which the guard ends everything, and deletes the files
        if waits:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        else:
            threading.Thread(target=self._process.wait, daemon=True).start()


_KEPT: list[SearchProcess] = []
"""The process that no search uses; what threads put here side by side ends later."""


def _taken() -> SearchProcess | None:
    """The process that no search uses, which is the caller's from now on; None in a fork, whose parent has it."""
    with suppress(IndexError):
        while (kept := _KEPT.pop()).of != os.getpid():
            pass
        return kept
    return None


def lent(options: Options, *, works: bool = False) -> SearchProcess:
    """Return a process for a search under these conditions: the kept one, or a new one; OSError where there is none.

    A new one `works` from its start on, or rests.
    """
    if (kept := _taken()) is not None:
        if kept.fits(options):
            return kept
        kept.close()
    return SearchProcess(options, works=works)


def keep(process: SearchProcess) -> None:
    """Keep a process for the next search."""
    end_kept(waits=False)
    _KEPT.append(process)


@atexit.register
def end_kept(*, waits: bool = True) -> None:
    """End the process that no search uses, if there is one, and wait for its end."""
    while (kept := _taken()) is not None:
        kept.close(waits=waits)


def _conditions(options: Options) -> tuple[object, ...]:
    """All that a process cannot change once it has begun."""
    environment = sorted(child_environment().items())
    folder = None if options.history is None else Path(options.history).parent
    return options.cores, options.cpus, options.keeps_memory, folder, environment
