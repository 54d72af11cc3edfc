"""The checker finds each kind of broken schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scheduler.random_problems import graph_of
from threadcast.core import Machine, Placement, Trace
from threadcast.core.errors import PlanError
from threadcast.scheduler.simulation.checker import check_schedule

GRAPH = graph_of([{1: 1.0}] * 3, [(0, 1), (0, 2)])
MACHINE = Machine.uniform("test", 2, threads_per_core=2)
GOOD = (
    Placement("a", (0, 1), 2, 0.0, 1.0),
    Placement("b", (0,), 1, 1.0, 3.0),
    Placement("c", (1, 0), 2, 1.0, 2.0, hardware_thread=1),
)


def check(*ops: Placement, oversubscribed: bool = False) -> None:
    check_schedule(GRAPH, Trace(2, "test", ops), machine=MACHINE, oversubscribed=oversubscribed)


def test_a_legal_schedule_passes() -> None:
    check(*GOOD)


def test_hardware_threads_that_the_machine_lacks_need_oversubscription() -> None:
    beyond = replace(GOOD[2], hardware_thread=5)
    check(GOOD[0], GOOD[1], beyond, oversubscribed=True)
    with pytest.raises(PlanError, match="hardware thread 5 of core 1"):
        check(GOOD[0], GOOD[1], beyond)
    with pytest.raises(PlanError, match="hardware thread 2 of core 0"):
        check(GOOD[0], replace(GOOD[1], threads=3), GOOD[2])


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (replace(GOOD[1], start_s=0.5), "'b' starts at 0.5 s, before 'a'"),
        (replace(GOOD[2], hardware_thread=0), "'c' and 'b' both use hardware thread 0 of core 0"),
        (replace(GOOD[1], threads=2), "'c' and 'b' both use hardware thread 1 of core 0"),
        (replace(GOOD[2], threads=1), "'c' has 1 threads on 2 cores"),
        (replace(GOOD[1], id="z"), "not in the graph, such as 'z'"),
    ],
)
def test_what_is_wrong_is_named(changed: Placement, complaint: str) -> None:
    ops = [changed if op.id == changed.id or (changed.id == "z" and op.id == "b") else op for op in GOOD]
    with pytest.raises(PlanError, match=complaint):
        check(*ops)


def test_all_ops_run() -> None:
    with pytest.raises(PlanError, match="1 ops are never run, such as 'c'"):
        check(*GOOD[:2])


def test_cores_are_the_machines() -> None:
    elsewhere = [replace(op, cores=tuple(core + 6 for core in op.cores)) for op in GOOD]
    with pytest.raises(PlanError, match="'a' runs on core 6, which the machine has not"):
        check(*elsewhere)


def test_a_core_that_is_used_again_within_a_long_op_is_found() -> None:
    graph = graph_of([{1: 1.0}] * 3)
    ops = (Placement("a", (0,), 1, 0, 9), Placement("b", (1,), 1, 1, 2), Placement("c", (0,), 1, 5, 6))
    with pytest.raises(PlanError, match="'a' and 'c'"):
        check_schedule(graph, Trace(2, "test", ops))


def test_an_op_of_no_time_may_stand_at_the_edge_of_another_but_not_within() -> None:
    graph = graph_of([{1: 0.0}, {1: 1.0}])
    at = Placement("a", (0,), 1, 0.0, 0.0)
    long = Placement("b", (0,), 1, 0.0, 1.0)
    check_schedule(graph, Trace(1, "test", (at, long)))
    with pytest.raises(PlanError, match="both use"):
        check_schedule(graph, Trace(1, "test", (replace(at, start_s=0.5, finish_s=0.5), long)))
