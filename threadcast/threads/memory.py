"""Keeping freed memory in the process, so that ops do not wait for the system to give the same memory again."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Literal

from threadcast.core.sysfs import read_text

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""Parameters of `mallopt(3)`, from glibc's malloc.h."""
_HEAP_BYTES = 64 << 20
"""Size of the heaps of which all of glibc's arenas but the first are made."""

KEEPING = {"MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(_HEAP_BYTES)}
"""Environment variables that have the effect of `keep_freed_memory` on a program that is started with them."""

Regime = Literal["kept", "returned"]

_regime: Regime = "returned"


def keep_freed_memory(*, one_heap: bool = False) -> bool:
    """Let the C library keep all freed memory for this process's later use; False if it has no such setting.

    By default glibc gives large freed blocks back to the system and faults them in again: some 20,000 page faults
    in each training step of ResNet-18 at 64 pixels and batch 8, a third of the step's time. An op that runs alone has a
    different number of them. With kept memory a timing is that of the op itself. Call this first in a program. It holds
    for the whole process until its end, as the C library does not say what was set before. The process keeps its peak
    memory.

    In threads other than the first one blocks of 64 MiB and more still go back, unless all share `one_heap`, for whose
    lock they then wait (decision 8). That has to be asked for before a second thread allocates.
    """
    global _regime
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # The heaps of threads but the first one's go back to the system whole, unless that would leave less than the pad.
    heaps = (_ARENA_MAX, 1) if one_heap else (_TOP_PAD, _HEAP_BYTES)
    settings = (heaps, (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
    if all(mallopt(parameter, value) for parameter, value in settings):
        _regime = "kept"
    return _regime == "kept"


def limit_arenas(most: int) -> None:
    """Let threads share so many of the C library's heaps from now on; do nothing where it has no such setting.

    By default glibc makes up to 8 a core, one for each thread that allocates, and each keeps free blocks that the
    others cannot use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, most)


def memory_regime() -> Regime:
    """Whether freed memory is "kept" in this process or "returned" to the system: a condition of every timing."""
    return _regime


def return_freed_memory() -> None:
    """Give the memory that is free now back to the system, once; do nothing where the C library cannot.

    What is free at the end of the heap of a thread other than the first one, 64 MiB at most, stays.

    Call this before memory is used in a different way: freed blocks of the old sizes would be kept without use between
    the new ones. Memory that is used again is faulted in again.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def free_bytes() -> int | None:
    """The bytes of memory that are available without swapping; None where the system does not say."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", read_text("/proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) << 10 if found else None


def peak_bytes() -> int:
    """The most physical memory that this process has had at any time, in bytes.

    It is not `ru_maxrss`, which also counts the peak of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
