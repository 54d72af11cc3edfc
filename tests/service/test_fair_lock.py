"""The fair lock: one holder at a time, in the order of asking, and a slow holder delays one other only."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from threadcast.service.fair_lock import FairLock

LONG_S = 60.0


def in_thread(lock: FairLock, order: list[str], name: str) -> threading.Thread:
    """A thread that appends `name` to `order` when it has the lock; it asks for it now or shortly after."""

    def work() -> None:
        with lock.held(LONG_S):
            order.append(name)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_threads_get_the_lock_in_the_order_of_asking() -> None:
    lock, order = FairLock(), list[str]()
    with lock.held(LONG_S):
        threads = []
        for name in "abcde":
            threads.append(in_thread(lock, order, name))
            while len(lock._waiting) < len(threads):
                pass
        assert order == []
    for thread in threads:
        thread.join(LONG_S)
    assert order == list("abcde")


def test_one_thread_at_a_time_has_the_lock() -> None:
    lock, there, most = FairLock(), list[None](), list[int]()

    def have() -> None:
        for _ in range(200):
            with lock.held(LONG_S):
                there.append(None)
                most.append(len(there))
                there.pop()

    threads = [threading.Thread(target=have) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 800


def test_the_lock_is_released_after_an_error() -> None:
    lock, order = FairLock(), list[str]()
    with pytest.raises(ZeroDivisionError), lock.held(LONG_S):
        1 / 0  # noqa: B018
    in_thread(lock, order, "next").join(LONG_S / 4)
    assert order == ["next"]


def test_a_thread_that_has_waited_long_enough_takes_the_lock_over_and_passes_it_on() -> None:
    lock, order = FairLock(), list[str]()
    with lock.held(LONG_S):  # slow: it ends after all others
        with lock.held(0.0):
            next_one = in_thread(lock, order, "next")
        next_one.join(LONG_S / 4)
        assert order == ["next"]


def test_a_slow_holder_that_ends_does_not_release_the_lock_of_another() -> None:
    lock, order = FairLock(), list[str]()
    with ExitStack() as second:
        with lock.held(LONG_S):
            second.enter_context(lock.held(0.0))
        third = in_thread(lock, order, "third")
        order.append("second")
    third.join(LONG_S)
    assert order == ["second", "third"]
