"""A thread that lasts as long as the process, for what ends with the thread that has begun it.

So do processes that have the kernel end them with their parent (`core.parent_process`): to `PR_SET_PDEATHSIG` the
parent is the thread that has started the process (prctl(2)). A thread of a server may end after one request.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Jobs = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
"""What a thread is to call, with the future of the result; None: it is to end."""

_starting = threading.Lock()
_jobs: Jobs | None = None
"""None: there is no thread yet."""


def in_lasting_thread(function: Callable[[], T]) -> T:
    """Call `function` in a thread that lasts as long as the process; return what it returns or raise what it raises.

    The main thread, which lasts, calls it itself. All others share a daemon thread, which begins with their first call.
    """
    if threading.current_thread() is threading.main_thread():
        return function()
    answer: Future[T] = Future()
    _begun().put((answer, function))
    return answer.result()


def _begun() -> Jobs:
    global _jobs
    with _starting:
        if _jobs is None:
            jobs: Jobs = SimpleQueue()
            threading.Thread(target=serve, args=(jobs,), name="threadcast-lasting", daemon=True).start()
            _jobs = jobs
        return _jobs


def serve(jobs: Jobs, after: Callable[[], object] = lambda: None) -> None:
    """Make the calls that are asked for, until None is; call `after` behind each, before its result is known."""
    while (job := jobs.get()) is not None:
        answer, function = job
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - passed on to who asked for it
            after()
            answer.set_exception(error)
        else:
            after()
            answer.set_result(result)
            del result
        del job, answer, function  # they would stay alive until the next job


def _renew() -> None:
    """In a forked child, which does not have the thread."""
    global _starting, _jobs
    _starting, _jobs = threading.Lock(), None


os.register_at_fork(after_in_child=_renew)
