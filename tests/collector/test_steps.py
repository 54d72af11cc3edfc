"""A step run sequentially, and the sum that is held against it."""

from __future__ import annotations

import os

import torch

from threadcast.collector.steps import lone_sum_s, time_step
from threadcast.collector.timing import Goal
from threadcast.core import Case, Machine, Measurement, Op, OpGraph, Sample
from threadcast.core.topology import read_machine

MACHINE = read_machine()
A, B = Op("a"), Op("b")


def test_a_step_is_timed_on_the_cores_and_threads_of_its_case():
    seen = set()

    def step() -> None:
        seen.add((torch.get_num_threads(), frozenset(os.sched_getaffinity(0))))

    timing = time_step(step, MACHINE, Case(1), goal=Goal(budget_s=0.01))
    assert len(timing.samples) >= 3
    assert seen == {(1, frozenset(MACHINE.cpus(MACHINE.place(Case(1)))))}


def test_the_sum_counts_an_op_as_often_as_it_runs():
    machine = Machine.uniform("two", 2)

    def found(op: Op, threads: int, seconds: float) -> Measurement:
        return Measurement(op, machine, Case(threads), (Sample(seconds),))

    graph = OpGraph(("1", "2", "3"), (A, B, A))
    observed = {A.key: [found(A, 1, 2.0), found(A, 2, 1.0)], B.key: [found(B, 1, 5.0)]}
    assert lone_sum_s(graph, observed, Case(1)) == 2 * 2.0 + 5.0
    assert lone_sum_s(graph, observed, Case(2)) is None
