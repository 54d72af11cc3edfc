"""A background thread that renews old curves, so that no caller waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence

from threadcast.core import Op
from threadcast.prediction.fork_lock import ForkLock


class Refresher:
    """Calls `work` with the ops passed to `want`, in a background thread.

    There is at most one such thread; it starts when there is work and ends when there is none. Ops that are wanted
    while `work` runs are passed to its next call. A forked child starts a thread of its own when needed. The thread is
    a daemon, so it does not keep the process from ending.
    """

    def __init__(self, work: Callable[[Sequence[Op]], None]) -> None:
        self._work = work
        self._lock = ForkLock()
        self._wanted: Mapping[Hashable, Op] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def want(self, ops: Sequence[Op]) -> None:
        """Schedule a call of `work` with these ops."""
        with self._lock:
            if self._closed:
                return
            self._wanted = {**self._wanted, **{op.forecast_key: op for op in ops}}
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(target=self._run, name="threadcast-refresh", daemon=True)
            with contextlib.suppress(RuntimeError):  # the process is ending, or has no thread left: stale ones do
                thread.start()
                self._thread = thread

    def close(self, *, timeout_s: float) -> None:
        """Start no further call of `work`, and wait at most `timeout_s` seconds for the current one."""
        with self._lock:
            self._closed, self._wanted, thread = True, {}, self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                ops, self._wanted = self._wanted, {}
                if not ops:
                    self._thread = None
                    return
            self._work(list(ops.values()))
