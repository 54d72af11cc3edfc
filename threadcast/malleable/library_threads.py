"""Sets how many threads the libraries of this process use: torch, and the thread pools that threadpoolctl knows."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from typing import Any


def steerable_libraries() -> frozenset[str]:
    """Return the libraries whose thread counts `set_library_threads` can set now: those that are fully imported."""
    modules = {name: sys.modules.get(name) for name in ("torch", "numpy", "scipy")}
    return frozenset(
        name for name, module in modules.items()
        if module is not None and not getattr(module.__spec__, "_initializing", False)
    )  # fmt: skip


def set_library_threads(count: int) -> None:
    """Let torch, OpenBLAS, MKL and OpenMP use `count` threads for operators that the calling thread runs."""
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

    An OpenMP thread count holds only for the thread that sets it, and usually the main thread runs the network. A call
    happens once the operator that the main thread is running has ended; of several waiting calls only the newest is
    made.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Any]] = deque(maxlen=1)
        self._called = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._run)  # the interpreter keeps no reference

    def call(self, function: Callable[[], Any]) -> None:
        """Let the main thread call `function` soon; does not wait for it."""
        self._waiting.append(function)
        ctypes.pythonapi.Py_AddPendingCall(self._called, None)  # full (32 waiting): one of those will run this

    def _run(self, _: object) -> int:
        while self._waiting:
            self._waiting.popleft()()
        return 0
