"""The CPUs that this process was asked to keep to, by an arbiter or by hand, for whoever runs or pins threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from threading import Lock

_lock = Lock()
_given: frozenset[int] | None = None
_followers: list[Callable[[], Callable[[frozenset[int]], None] | None]] = []
_pinned: list[Callable[[], Iterable[int]]] = []


def set_given(cpus: Iterable[int]) -> None:
    """From now on the process keeps to these; all followers are told, one after the other, in this thread."""
    global _given
    with _lock:
        _given = now = frozenset(cpus)
        _followers[:] = [follower for follower in _followers if follower() is not None]
        told = list(_followers)
    for follower in told:
        if (callback := follower()) is not None:
            callback(now)


def given() -> frozenset[int] | None:
    """What it keeps to; None where nobody ever asked for any back."""
    return _given


def follow(callback: Callable[[frozenset[int]], None]) -> None:
    """Have `callback` called with the CPUs whenever they are set; bound methods as long as their object lives."""
    weak = weakref.WeakMethod(callback) if hasattr(callback, "__self__") else (lambda: callback)
    with _lock:
        _followers.append(weak)


def know_pinned(threads: Callable[[], Iterable[int]]) -> None:
    """`threads()` gives the kernel's ids of threads that are pinned for a while, by who will put them back."""
    with _lock:
        _pinned.append(threads)


def pinned_threads() -> frozenset[int]:
    """The kernel's ids of threads that are pinned only for a while."""
    with _lock:
        return frozenset(thread for threads in _pinned for thread in threads())
