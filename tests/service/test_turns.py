"""Turns: one at a time, in the order of asking, and nobody waits longer than he says."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from threadcast.service.turns import Turns

LONG_S = 60.0


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def waiting(turns: Turns, count: int) -> None:
    """Until so many threads wait."""
    while len(turns._waiting) != count:
        pass


def test_turns_come_in_the_order_of_asking() -> None:
    turns, order = Turns(), []

    def have(number: int) -> None:
        with turns.turn(LONG_S) as has_turn:
            order.append((number, has_turn))

    with turns.turn(LONG_S):
        threads = []
        for number in range(5):
            threads.append(started(lambda number=number: have(number)))
            waiting(turns, number + 1)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [(number, True) for number in range(5)]


def test_who_has_waited_long_enough_goes_on_without_a_turn() -> None:
    turns = Turns()
    with turns.turn(LONG_S), turns.turn(0.001) as has_turn:
        assert not has_turn
    with turns.turn(0.001) as has_turn:
        assert has_turn


def test_the_next_one_has_its_turn_though_one_before_it_gave_up() -> None:
    turns, found = Turns(), []

    def have() -> None:
        with turns.turn(LONG_S) as has_turn:
            found.append(has_turn)

    with turns.turn(LONG_S):
        with turns.turn(0.001):
            pass
        thread = started(have)
        waiting(turns, 1)
    thread.join()
    assert found == [True]


def test_a_turn_ends_with_an_error_too() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.turn(LONG_S):
        1 / 0  # noqa: B018
    with turns.turn(0.001) as has_turn:
        assert has_turn


def test_one_at_a_time_has_a_turn() -> None:
    turns, at_once, most = Turns(), [], []

    def have() -> None:
        for _ in range(200):
            with turns.turn(LONG_S):
                at_once.append(None)
                most.append(len(at_once))
                at_once.pop()

    threads = [started(have) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 800
