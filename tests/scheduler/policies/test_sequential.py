"""One op at a time at the best single width."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from tests.scheduler.random_problems import graph_of, problem_of, problems
from threadcast.core import Affinity, Case, CurveTable, Machine
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.policies.sequential import Sequential
from threadcast.scheduler.simulation.simulator import simulate


def test_the_width_of_the_least_sum_is_taken() -> None:
    """4 + 4 on one thread, 3 + 2.5 on two, 5 + 1 on four."""
    policy = Sequential(problem_of([{1: 4.0, 2: 3.0, 4: 5.0}, {1: 4.0, 2: 2.5, 4: 1.0}]))
    assert (policy.width, policy.total_s) == (2, 5.5)
    assert [(op.threads, op.start_s, op.finish_s) for op in simulate(policy).ops] == [(2, 0, 3), (2, 3, 5.5)]


def test_an_op_takes_its_largest_offered_count_and_a_view_one_thread() -> None:
    """Slower as its second thread makes b: one global setting cannot know better."""
    policy = Sequential(problem_of([{1: 8.0, 4: 1.0}, {1: 1.0, 2: 1.5}, {1: 0.0, 4: 0.0}], kinds="xyv"))
    assert policy.total_s == 2.5
    assert {op.id: len(op.cores) for op in simulate(policy).ops} == {"a": 4, "b": 2, "c": 1}


def test_an_op_that_prefers_it_gets_one_thread_a_cache_group() -> None:
    cases = (Case(2, Affinity.COMPACT), Case(2, Affinity.SPREAD))
    seconds = np.array([[3.0, 2.0]])
    table = CurveTable(cases, seconds, seconds, seconds, np.zeros((1, 2), dtype=np.int8))
    policy = Sequential(Problem(graph_of([{1: 1.0}]), table, Machine.uniform("tiles", 4, group_size=2)))
    (op,) = simulate(policy).ops
    assert (op.cores, op.finish_s) == ((0, 2), 2.0)


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_the_makespan_is_the_sum_and_ops_never_overlap(problem: Problem) -> None:
    policy = Sequential(problem)
    trace = simulate(policy)
    assert np.isclose(trace.makespan_s, policy.total_s)
    assert all(after.start_s == before.finish_s for before, after in zip(trace.ops, trace.ops[1:]))
