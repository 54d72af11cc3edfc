"""Runs a program whose calls of the kernel fail, as on file systems that lack what they ask for (seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

CALLS = {
    "hard links": [(86, errno.EPERM, None), (265, errno.EPERM, None)],  # link, linkat
    "shared mmap": [(9, errno.ENODEV, 3)],  # with MAP_SHARED, bit 0 of argument 3
    "locks": [(73, errno.ENOSYS, None)],  # flock
}
POSSIBLE = platform.machine() == "x86_64"
"""Whether calls have the numbers above."""


def command(refused: str) -> list[str]:
    """What to put before a program for which the calls of this name fail."""
    return [sys.executable, __file__, refused]


def _refuse(call: int, error: int, flags: int | None) -> None:
    load, equal, has, give = 0x20, 0x15, 0x45, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 1 if flags is None else 3, call)]
    steps += [] if flags is None else [(load, 0, 0, 16 + 8 * flags), (has, 0, 1, 1)]
    steps += [(give, 0, 0, 0x50000 | error), (give, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, header, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP


if __name__ == "__main__":
    for refusal in CALLS[sys.argv[1]]:
        _refuse(*refusal)
    os.execvp(sys.argv[2], sys.argv[2:])
