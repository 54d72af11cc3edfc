"""What follows the cores that a process is given: where its threads may run, and how many its libraries use."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from threadcast.threads.process_cores import ProcessCores


class ThreadMasks:
    """Sets where all threads of a process may run: this one, or another with the kernel's number `process`.

    A thread that the program has pinned keeps to those of its own CPUs that are allowed, and has all of them back once
    they are; where none is, it runs where the others do. `unpinned` is the mask of threads that nobody has pinned
    (None: the calling thread's). `cores` knows which threads of this process an engine has pinned for a while.
    """

    def __init__(
        self, process: int | None = None, *, unpinned: Collection[int] | None = None, cores: ProcessCores | None = None
    ) -> None:
        self._tasks, self._cores = f"/proc/{process or 'self'}/task", cores
        self._unpinned = os.sched_getaffinity(0) if unpinned is None else set(unpinned)
        self._own: dict[int, set[int]] = {}
        self._set: dict[int, set[int]] = {}

    def restrict(self, cpus: Iterable[int]) -> None:
        """Let all threads run on `cpus` only, including those that start meanwhile."""
        wanted, done = set(cpus), set[int]()
        while new := set(map(int, os.listdir(self._tasks))) - done:
            for thread in new:
                with suppress(OSError):  # it has ended; or the cpuset has just changed, which the next look sees
                    self._place(thread, wanted)
            done |= new
        self._unpinned = wanted
        self._own = {thread: mask for thread, mask in self._own.items() if thread in done}
        self._set = {thread: mask for thread, mask in self._set.items() if thread in done}

    def mask_of(self, thread: int) -> frozenset[int]:
        """Where `restrict` has put a thread."""
        return frozenset(self._set.get(thread, self._unpinned))

    def _place(self, thread: int, wanted: set[int]) -> None:
        if self._cores is not None and self._cores.release_pin(thread):
            self._own.pop(thread, None)
            self._set[thread] = wanted
            if not os.sched_getaffinity(thread) & wanted:
                os.sched_setaffinity(thread, wanted)
            return
        now = os.sched_getaffinity(thread)
        if now not in (self._set.get(thread, self._unpinned), wanted):  # which new threads inherit meanwhile
            self._own[thread] = now
        mask = self._own.get(thread, wanted) & wanted or wanted
        if mask != now:
            os.sched_setaffinity(thread, mask)
        self._set[thread] = mask


def steered_libraries() -> frozenset[str]:
    """Those that `set_library_threads` would reach at this moment: imported, and not just being imported."""
    found = {name: sys.modules.get(name) for name in ("torch", "numpy", "scipy")}
    return frozenset(
        name for name, module in found.items()
        if module is not None and not getattr(module.__spec__, "_initializing", False)
    )  # fmt: skip


def set_library_threads(count: int) -> None:
    """Let torch, and what threadpoolctl steers, use `count` threads for what the calling thread runs."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(count)
    if "numpy" in sys.modules or "scipy" in sys.modules:
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            return  # an extra; torch has been told
        threadpool_limits(limits=count)


class MainThread:
    """Calls functions in the process's main thread, between two of its bytecodes.

    Thread counts of OpenMP belong to the thread that calls it, and that one mostly runs the network. A call waits for
    the operator that the thread is in; the newest one counts, earlier ones that have not run are dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Any]] = deque(maxlen=1)
        self._called = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._run)  # kept: the interpreter has no hold

    def call(self, function: Callable[[], Any]) -> None:
        """Have `function` called there, soon."""
        self._waiting.append(function)
        ctypes.pythonapi.Py_AddPendingCall(self._called, None)  # full (32 waiting): one of those will run this

    def _run(self, _: object) -> int:
        while self._waiting:
            self._waiting.popleft()()
        return 0
