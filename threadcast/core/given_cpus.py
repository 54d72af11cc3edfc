"""The CPUs that this process was asked to keep to, by an arbiter or by hand, for whoever runs or pins threads."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Protocol

_logger = logging.getLogger("threadcast")
_lock = Lock()
_given: frozenset[int] | None = None
_followers: list[Callable[[], Callable[[frozenset[int]], None] | None]] = []


class Pinner(Protocol):
    """Who pins threads for a while, and puts them back."""

    def send_home(self, thread: int) -> bool:
        """Whether the thread is pinned; it is put where the process may run then, not where it was before."""

    def is_pinned(self, thread: int) -> tuple[bool, int]:
        """Whether the thread is pinned, and how often any was."""


_pinners: list[Pinner] = []


def set_given(cpus: Iterable[int]) -> None:
    """From now on the process keeps to these; all followers are told, one after the other, in this thread."""
    global _given
    with _lock:
        _given = now = frozenset(cpus)
        _followers[:] = [follower for follower in _followers if follower() is not None]
        told = list(_followers)
    for follower in told:
        if (callback := follower()) is not None:
            try:
                callback(now)
            except Exception:
                _logger.exception("cores have changed, and something did not follow")


def given() -> frozenset[int] | None:
    """What it keeps to; None where nobody ever asked for any back."""
    return _given


def follow(callback: Callable[[frozenset[int]], None]) -> None:
    """Have `callback` called with the CPUs whenever they are set; bound methods as long as their object lives."""
    weak = weakref.WeakMethod(callback) if hasattr(callback, "__self__") else (lambda: callback)
    with _lock:
        _followers.append(weak)


def know_pinned(pinner: Pinner) -> None:
    """Have `pinner` asked before the mask of a thread is taken for its own, or changed."""
    with _lock:
        _pinners.append(pinner)


def send_home(thread: int) -> bool:
    """Whether the thread with this id of the kernel's is pinned for a while; it comes to what was given afterwards."""
    return sum(pinner.send_home(thread) for pinner in list(_pinners)) > 0


def mask_of(thread: int) -> frozenset[int] | None:
    """Where a thread of this process may run; None while it is pinned, or was meanwhile."""
    before = [pinner.is_pinned(thread) for pinner in list(_pinners)]
    mask = frozenset(os.sched_getaffinity(thread))
    after = [pinner.is_pinned(thread) for pinner in list(_pinners)]
    return mask if before == after and not any(pinned for pinned, _ in before) else None
