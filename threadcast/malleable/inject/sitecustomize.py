"""Attaches a Python process that starts with this folder on its path (`threadcast exec`), once the process computes.

Launchers, which only wait for the processes that they start, are not attached. This module runs first in every such
Python, so it imports nothing of threadcast until it attaches. At its end it runs the sitecustomize that it replaces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_HELPERS = (
    "multiprocessing.resource_tracker", "multiprocessing.spawn", "multiprocessing.forkserver",
    "threadcast.runtime", "threadcast.scheduler.planner_process", "threadcast_native",
)  # fmt: skip
_LOOK_S = 0.1
_STEERED = ("torch", "numpy", "scipy")
"""Libraries whose thread counts are set. A process that has imported one of them is attached: it computes, or will."""
_SHARE, _SPAN_S, _SPANS = 0.2, 1.0, 3
"""Any other process is attached once it has used `_SHARE` of a CPU in `_SPANS` successive spans of `_SPAN_S` seconds.
Several spans, because starting takes CPU time too; a low share, because other processes may leave it little."""

_waiting = False


def _is_helper() -> bool:
    """Whether this process is not to be attached: it helps an attached parent and shares its cores, or is `exec`.

    `threadcast exec` becomes another program, which then has a keeper of its own or is attached itself.
    """
    words = sys.orig_argv
    becomes = any("threadcast" in os.path.basename(one) and word == "exec" for one, word in pairwise(words))
    return becomes or any(name in part for part in words for name in _HELPERS)


def _wait() -> None:
    global _waiting
    _waiting = True
    _begin(_look)


def _wait_in_child() -> None:
    if _waiting:  # the parent is not attached, whose cores it would share
        _wait()


def _begin(function: Callable[..., None], *arguments: int) -> None:
    threading.Thread(target=function, args=arguments, name="threadcast-waiting", daemon=True).start()


def _look() -> None:
    since_s, used_s, spans = time.monotonic(), time.process_time(), 0
    while not any(map(_is_there, _STEERED)) and spans < _SPANS:
        time.sleep(_LOOK_S)
        if (took_s := time.monotonic() - since_s) >= _SPAN_S:
            spans = spans + 1 if time.process_time() - used_s >= _SHARE * took_s else 0
            since_s, used_s = time.monotonic(), time.process_time()
    _attached()


def _is_there(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _on_signal(number: int, _: FrameType | None) -> None:
    _begin(_step, 1 if number == signal.SIGUSR2 else -1)  # elsewhere: locks may be held here


def _step(by: int) -> None:
    if (member := _attached()) is not None:
        member.step(by)


def _attached() -> Any:
    global _waiting
    try:
        from threadcast.malleable.attach import attach

        member = attach()
    except Exception as error:  # noqa: BLE001 - whatever it is, the user's program has to run
        if threading.main_thread().is_alive():
            print(f"threadcast: this process is not attached: {error}", file=sys.stderr)  # noqa: T201
        return None
    _waiting = False
    return member


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
if not _is_helper():
    for _number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(_number, _on_signal)
    os.register_at_fork(after_in_child=_wait_in_child)
    _wait()

_own = sys.modules.pop("sitecustomize")
with contextlib.suppress(ModuleNotFoundError):
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
sys.modules.setdefault("sitecustomize", _own)
