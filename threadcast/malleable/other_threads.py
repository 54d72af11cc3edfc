"""Thread counts of Python threads other than the main one: torch's count belongs to the thread that calls it."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

SPAN_S = 10.0
"""How long threads are waited for: a hook costs every module of every thread a microsecond."""


class OtherThreads:
    """Lets each thread that exists use another number of threads from the next module on that it calls.

    Reaches threads that call a module (`torch.nn.Module.__call__`) within `SPAN_S` of the change; new threads use the
    newest number by themselves. One thread at a time may use it.
    """

    only_counts = True
    """For `runtime.watch`: an optimised step need not call it."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: set[int] = set()
        self._until_s = 0.0
        self._hook: Any = None

    def set(self, count: int) -> None:
        """Have them use `count` threads from now on."""
        register = getattr(sys.modules.get("torch.nn.modules.module"), "register_module_forward_pre_hook", None)
        others = {one.ident for one in threading.enumerate() if not _has_own_count(one)}
        self._count, self._waiting = count, {ident for ident in others if ident is not None}
        self._until_s = time.monotonic() + SPAN_S
        if self._waiting and self._hook is None and register is not None:
            self._hook = register(self)
        self.remove_when_done()

    def remove_when_done(self) -> None:
        """Remove the hook once no thread is waited for any more; to be called now and then."""
        if self._hook is not None and (not self._waiting or time.monotonic() >= self._until_s):
            self._hook.remove()
            self._hook = None

    def __call__(self, *_: object) -> None:
        ident = threading.get_ident()
        if ident in self._waiting:
            self._waiting.discard(ident)
            sys.modules["torch"].set_num_threads(self._count)


def _has_own_count(thread: threading.Thread) -> bool:
    """The main thread's is set at once; threads of threadcast lead teams of a size of their own."""
    return thread is threading.main_thread() or thread.name.startswith("threadcast")
