"""Ops wait for those before them on their cores, and share a core only as the plan has it."""

from __future__ import annotations

from threadcast.core import Placement
from threadcast.core.core_order import CoreOrder


def test_an_op_waits_for_the_last_one_on_each_of_its_hardware_threads() -> None:
    order = CoreOrder()
    assert order.next(0, Placement("a", (0,), 1, 0.0, 1.0), [0]) == set()
    assert order.next(1, Placement("b", (1,), 1, 0.0, 2.0), [0]) == set()
    assert order.next(2, Placement("c", (0,), 1, 1.0, 2.0), [0]) == {0}
    assert order.next(3, Placement("d", (0, 1), 2, 2.0, 3.0), [0]) == {1, 2}


def test_an_op_waits_on_other_hardware_threads_for_what_the_plan_finishes_before_it_starts() -> None:
    order = CoreOrder()
    order.next(0, Placement("first", (0,), 1, 0.0, 1.0), [0])
    order.next(1, Placement("host", (0,), 1, 1.0, 9.0), [0])
    assert order.next(2, Placement("beside", (0,), 1, 2.0, 3.0, 1), [1]) == {0}
    assert order.next(3, Placement("later", (0,), 1, 9.0, 10.0), [0]) == {1, 2}


def test_an_op_of_two_threads_a_core_waits_for_both_hardware_threads() -> None:
    order = CoreOrder()
    order.next(0, Placement("host", (0,), 1, 0.0, 9.0), [0])
    order.next(1, Placement("beside", (0,), 1, 0.0, 3.0, 1), [1])
    assert order.next(2, Placement("both", (0,), 2, 9.0, 10.0), [0, 1]) == {0, 1}
