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

_Jobs = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]

_starting = threading.Lock()
_jobs: _Jobs | None = None
"""What the thread is to call, with the future of the result; None: there is no thread yet."""


def in_lasting_thread(function: Callable[[], T]) -> T:
    """Call `function` in a thread that lasts as long as the process; return what it returns or raise what it raises.

    The main thread, which lasts, calls it itself. All others share a daemon thread, which begins with their first call.
    """
    if threading.current_thread() is threading.main_thread():
        return function()
    answer: Future[T] = Future()
    _begun().put((answer, function))
    return answer.result()


def _begun() -> _Jobs:
    global _jobs
    with _starting:
        if _jobs is None:
            jobs: _Jobs = SimpleQueue()
            threading.Thread(target=_serve, args=(jobs,), name="threadcast-lasting", daemon=True).start()
            _jobs = jobs
        return _jobs


def _serve(jobs: _Jobs) -> None:
    while True:
        answer, function = jobs.get()
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - passed on to who asked for it
            answer.set_exception(error)
        else:
            answer.set_result(result)
            del result
        del answer, function  # they would stay alive until the next job


def _renew() -> None:
    """In a forked child, which does not have the thread."""
    global _starting, _jobs
    _starting, _jobs = threading.Lock(), None


os.register_at_fork(after_in_child=_renew)
