"""Keeping freed memory in the process, so that ops do not wait for the system to give the same memory again."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Literal

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Parameters of `mallopt(3)`, from glibc's malloc.h."""

KEEPING = {"MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1"}
"""Variables that do the same for a program that is started with them."""

Regime = Literal["kept", "returned"]

_regime: Regime = "returned"


def keep_freed_memory() -> bool:
    """Let the C library keep all freed memory for this process's later use; False if it has no such setting.

    By default glibc gives large freed blocks back to the system and faults them in again: some 20,000 page faults
    in each training step of ResNet-18 at 64 pixels and batch 8, a third of the step's time, and another number of
    them in an op run alone. Timings with kept memory are those of the op itself. Call it first thing in a program:
    it holds for the whole process and until its end, as the C library does not say what was set before. The
    process keeps its peak memory.
    """
    global _regime
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # One arena: the others are made of 64 MiB heaps, which go back to the system whole.
    if all(mallopt(parameter, value) for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))):
        _regime = "kept"
    return _regime == "kept"


def memory_regime() -> Regime:
    """Whether freed memory is "kept" in this process or "returned" to the system: a condition of every timing."""
    return _regime


def return_freed_memory() -> None:
    """Give what is free now back to the system, once; nothing where the C library cannot.

    For when another pattern of use begins: blocks that the last one left would be kept in vain, between those of the
    next. What is used again is faulted in again.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_bytes() -> int:
    """The most memory that this process has had; ru_maxrss counts that of the one which started it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
