"""Turns: one at a time, in the order of asking, and nobody waits for who is slow but once."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from threadcast.service.fair_lock import Turns

LONG_S = 60.0


def in_thread(turns: Turns, order: list[str], name: str) -> threading.Thread:
    """A thread that notes `name` when it has the turn; it asks for it before this returns, or shortly after."""

    def work() -> None:
        with turns.turn(LONG_S):
            order.append(name)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_turns_come_in_the_order_of_asking() -> None:
    turns, order = Turns(), list[str]()
    with turns.turn(LONG_S):
        threads = []
        for name in "abcde":
            threads.append(in_thread(turns, order, name))
            while len(turns._waiting) < len(threads):
                pass
        assert order == []
    for thread in threads:
        thread.join(LONG_S)
    assert order == list("abcde")


def test_one_at_a_time_has_a_turn() -> None:
    turns, there, most = Turns(), list[None](), list[int]()

    def have() -> None:
        for _ in range(200):
            with turns.turn(LONG_S):
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


def test_a_turn_ends_with_an_error_too() -> None:
    turns, order = Turns(), list[str]()
    with pytest.raises(ZeroDivisionError), turns.turn(LONG_S):
        1 / 0  # noqa: B018
    in_thread(turns, order, "next").join(LONG_S / 4)
    assert order == ["next"]


def test_who_has_waited_long_enough_takes_the_turn_over_and_passes_it_on() -> None:
    turns, order = Turns(), list[str]()
    with turns.turn(LONG_S):  # slow: it ends after all others
        with turns.turn(0.0):
            next_one = in_thread(turns, order, "next")
        next_one.join(LONG_S / 4)
        assert order == ["next"]


def test_the_end_of_who_was_slow_ends_nobody_elses_turn() -> None:
    turns, order = Turns(), list[str]()
    with ExitStack() as second:
        with turns.turn(LONG_S):
            second.enter_context(turns.turn(0.0))
        third = in_thread(turns, order, "third")
        order.append("second")
    third.join(LONG_S)
    assert order == ["second", "third"]
