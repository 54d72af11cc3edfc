"""Sets torch's thread count in Python threads other than the main one: it holds only for the thread that sets it."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

SPAN_S = 10.0
"""Seconds after which the hook is removed: it costs a microsecond in every call of every module in every thread."""


class OtherThreads:
    """Sets the thread count of each existing Python thread when that thread next calls a module.

    It reaches threads that call a module (`torch.nn.Module.__call__`) within `SPAN_S` of the change; new threads have
    the newest count anyway. For one thread at a time.
    """

    only_counts = True
    """Tells `runtime.watching` that an optimised step need not call this hook."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: set[int] = set()
        self._until_s = 0.0
        self._hook: Any = None

    def set(self, count: int) -> None:
        """Let the other threads use `count` threads from now on."""
        register = getattr(sys.modules.get("torch.nn.modules.module"), "register_module_forward_pre_hook", None)
        others = {one.ident for one in threading.enumerate() if not _has_own_count(one)}
        self._count, self._waiting = count, {ident for ident in others if ident is not None}
        self._until_s = time.monotonic() + SPAN_S
        if self._waiting and self._hook is None and register is not None:
            self._hook = register(self)
        self.remove_when_done()

    def remove_when_done(self) -> None:
        """Remove the hook once it has reached all threads, or after `SPAN_S`. Call this now and then."""
        if self._hook is not None and (not self._waiting or time.monotonic() >= self._until_s):
            self._hook.remove()
            self._hook = None

    def __call__(self, *_: object) -> None:
        ident = threading.get_ident()
        if ident in self._waiting:
            self._waiting.discard(ident)
            sys.modules["torch"].set_num_threads(self._count)


def _has_own_count(thread: threading.Thread) -> bool:
    """Whether the thread's count is set elsewhere: that of the main thread, and those of threadcast's own threads."""
    return thread is threading.main_thread() or thread.name.startswith("threadcast")
