"""How many threads the libraries of this process use: torch, and the pools that threadpoolctl knows."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from typing import Any


def steerable_libraries() -> frozenset[str]:
    """The libraries that `set_library_threads` reaches now: imported, and not in the midst of being imported."""
    modules = {name: sys.modules.get(name) for name in ("torch", "numpy", "scipy")}
    return frozenset(
        name for name, module in modules.items()
        if module is not None and not getattr(module.__spec__, "_initializing", False)
    )  # fmt: skip


def set_library_threads(count: int) -> None:
    """Let torch, OpenBLAS, MKL and OpenMP use `count` threads for what the calling thread runs."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(count)
    if "numpy" in sys.modules or "scipy" in sys.modules:
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:  # an extra
            return
        threadpool_limits(limits=count)


class MainThread:
    """Calls functions in the process's main thread, between two of its bytecodes.

    Thread counts of OpenMP belong to the thread that calls it, and the main thread mostly runs the network. A call
    waits until the operator that the thread is in has ended; of several that wait only the newest is made.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Any]] = deque(maxlen=1)
        self._called = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._run)  # the interpreter keeps no reference

    def call(self, function: Callable[[], Any]) -> None:
        """Have `function` called in the main thread, soon."""
        self._waiting.append(function)
        ctypes.pythonapi.Py_AddPendingCall(self._called, None)  # full (32 waiting): one of those will run this

    def _run(self, _: object) -> int:
        while self._waiting:
            self._waiting.popleft()()
        return 0
