"""Processes that end when the process that started them ends, in whatever way it ends.

Run as a script, `python parent_process.py PARENT COMMAND...`, it runs a command that ends in the same way: it and what
it starts in its process group end with the process PARENT. It then imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent(parent: int | None = None, *, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal `by` when the thread that started it ends, even by `kill -9`.

    `parent` is the id of the process that started this one. If it is given and that process has ended already, this
    process exits at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if parent is not None and os.getppid() != parent:
        sys.exit("the process that started this one has ended")


def _end_group(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)


def _run_in_group(parent: int, command: list[str]) -> int:
    """Run `command` and return 0, or 1 if it fails; the whole process group ends when `parent` does."""
    signal.signal(signal.SIGTERM, _end_group)  # a handler is not inherited
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    end_with_parent(parent, by=signal.SIGTERM)
    try:
        running = subprocess.Popen(command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    return int(running.wait() != 0)


if __name__ == "__main__":
    sys.exit(_run_in_group(int(sys.argv[1]), sys.argv[2:]))
