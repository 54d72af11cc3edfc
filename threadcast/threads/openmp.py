"""What can be done about idle OpenMP workers from inside a running process.

After a parallel region OpenMP's workers spin before they sleep, so that the next region finds them awake: in libgomp,
which PyTorch's Linux builds use, 300,000 rounds, about 3 ms. They hold their cores while other ops want
them. As soon as libgomp manages more threads than there are cpus, in all pools together, every wait in the process
is cut to 100 rounds, about a microsecond (GCC 12, libgomp/env.c and config/linux/wait.h). From then on each region
waits for its workers to wake, which took an addition from 7 to 61 us and a step of a small LSTM from 68 to 178 ms
on 2 cores: the idle pool of one thread slows all others down. Neither number of rounds can be changed once libgomp is
loaded; OMP_WAIT_POLICY and GOMP_SPINCOUNT are read before that. But a thread can end its own workers, and its next
parallel region makes new ones (about 0.1 ms).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from threadcast.core.openmp_places import VARIABLES, before_binding, openmp_places
from threadcast.core.sysfs import format_cpus

_PF_FORKNOEXEC = 0x40
"""Flag of a process that is a fork and has not called exec since (Linux, include/linux/sched.h)."""

_logger = logging.getLogger("threadcast")

_undone: set[str] = set()
"""Paths of the OpenMP libraries whose binding was undone."""

_SOFT = 1  # omp_pause_soft, OpenMP 5.0, 3.2.44: thread-private values survive


stand_ins_rest: list[Callable[[], object]] = []
"""Lets threads sleep that run regions of the calling thread in place of OpenMP's workers."""


def end_idle_workers(*, stand_ins: bool = True) -> bool:
    """End the OpenMP workers that wait for the calling thread's next region; False where OpenMP cannot do that.

    With `stand_ins` the threads that run regions in their place sleep until the next one.

    It cannot in the thread with which a forked process began: its workers stayed in the parent, and libgomp would
    wait for them for ever.
    """
    if stand_ins:
        for rest in stand_ins_rest:
            rest()
    if threading.get_native_id() == os.getpid() and _is_fork(os.getpid()):
        return False
    pause = _pause()
    return pause is not None and pause(_SOFT) == 0


def _before_fork() -> None:
    """End the forking thread's workers, for which the fork would wait for ever at its first operator."""
    if "torch" in sys.modules:
        end_idle_workers()


os.register_at_fork(before=_before_fork)


def undo_binding() -> frozenset[int] | None:
    """Let threads that OpenMP has bound as it was loaded run again wherever it found CPUs, and log a WARNING.

    Return the main thread's mask where that was one of them. What a library has bound is undone once: whoever then
    gives a thread fewer CPUs is somebody else, and is respected. OpenMP's workers stay on their cores.
    """
    new = {path: places for path, places in openmp_places().items() if path not in _undone}
    _undone.update(new)
    process, undone = os.getpid(), dict[int, tuple[frozenset[int], frozenset[int]]]()
    for thread in map(int, os.listdir("/proc/self/task")) if new else ():
        with suppress(OSError):  # it has ended, or the CPUs were taken away meanwhile
            bound = frozenset(os.sched_getaffinity(thread))
            if (found := before_binding(bound, new.values())) != bound:
                os.sched_setaffinity(thread, found)
                undone[thread] = bound, frozenset(os.sched_getaffinity(thread))
    if not undone:
        return None
    bound, now = undone.get(process) or next(iter(undone.values()))
    asked = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    _logger.warning(
        "OpenMP has bound threads to CPU %s as it was loaded (%s); threadcast lets them run on CPUs %s again, as "
        "the process was started. OpenMP's own workers stay bound: unset it",
        format_cpus(bound), ", ".join(asked) or "by its environment", format_cpus(now),
    )  # fmt: skip
    return undone[process][1] if process in undone else None


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment, with `more`, of a process that serves this one.

    It imports what this process can, and its OpenMP binds no threads: it is given the CPUs to run on.
    """
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def set_own_threads(number: int) -> None:
    """Have parallel regions of the calling thread use this many threads; nothing changes where torch has no OpenMP.

    `torch.set_num_threads` would also set what all threads use that come to torch for the first time later.
    """
    import torch

    torch.get_num_threads()  # at its first use of torch a thread gets torch's number
    library = _torch_library()
    if library is not None and hasattr(library, "omp_set_num_threads"):
        library.omp_set_num_threads(number)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Within the context PyTorch runs operators with this many threads, unless something else changes that."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        if torch.get_num_threads() == number:
            torch.set_num_threads(before)


@cache
def _is_fork(process: int) -> bool:
    """Whether the calling process, which is `process`, is a fork; False where the kernel does not say."""
    try:
        flags = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6]
    except OSError:
        return False
    return bool(int(flags) & _PF_FORKNOEXEC)


@cache
def _pause() -> Callable[[int], int] | None:
    library = _torch_library()
    if library is None or hasattr(library, "kmp_set_blocktime"):
        return None  # LLVM's and Intel's runtime pauses the whole process
    pause: Callable[[int], int] | None = getattr(library, "omp_pause_resource_all", None)
    return pause


@cache
def _torch_library() -> ctypes.CDLL | None:
    """The library that gives the functions of the OpenMP that torch calls: a process may have loaded several."""
    import torch

    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
