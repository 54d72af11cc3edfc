"""HEFT's order, its gaps, and ops that need several cores."""

from __future__ import annotations

import math

from hypothesis import given, settings

from tests.scheduler.policy_contract import PolicyContract
from tests.scheduler.random_problems import problem_of, problems
from threadcast.core import Trace
from threadcast.scheduler.policies import Policy, Problem
from threadcast.scheduler.policies.heft import Heft
from threadcast.scheduler.simulation.simulator import simulate


class TestContract(PolicyContract):
    @classmethod
    def make_policy(cls, problem: Problem) -> Policy:
        return Heft(problem)


def spans(trace: Trace) -> dict[str, tuple[tuple[int, ...], float, float]]:
    return {op.id: (op.cores, op.start_s, op.finish_s) for op in trace.ops}


def test_the_highest_upward_rank_is_placed_first_and_gaps_are_filled() -> None:
    """Ranks: a 2 + 5, b 5, c 4, d 2. d fits before c on core 1, though it is placed after it."""
    problem = problem_of([{1: 2.0}, {1: 5.0}, {1: 4.0}, {1: 2.0}], [(0, 1), (0, 2)], cores=2)
    assert spans(simulate(Heft(problem))) == {
        "a": ((0,), 0, 2),
        "b": ((0,), 2, 7),
        "c": ((1,), 2, 6),
        "d": ((1,), 0, 2),
    }


def test_an_op_that_fits_no_gap_goes_behind() -> None:
    """As above, but d takes 3 s: neither 0 to 2 s on core 1 nor anything before 6 s has room for it."""
    problem = problem_of([{1: 2.0}, {1: 5.0}, {1: 4.0}, {1: 3.0}], [(0, 1), (0, 2)], cores=2)
    assert spans(simulate(Heft(problem)))["d"] == ((1,), 6, 9)


def test_of_two_idle_cores_the_first_is_taken() -> None:
    problem = problem_of([{1: 1.0}, {1: 3.0}], cores=4)
    assert spans(simulate(Heft(problem))) == {"b": ((0,), 0, 3), "a": ((1,), 0, 1)}


def test_every_op_has_its_smallest_offered_count() -> None:
    """b needs two cores: rank 3, so before a. c (rank 2.5) needs three, and they are idle from 3 s on."""
    problem = problem_of([{1: 2.0, 4: 0.1}, {2: 3.0, 4: 0.1}, {3: 2.5, 4: 0.1}], cores=3)
    assert spans(simulate(Heft(problem))) == {"b": ((0, 1), 0, 3), "c": ((0, 1, 2), 3, 5.5), "a": ((2,), 0, 2)}


def test_a_wide_op_waits_until_enough_gaps_overlap() -> None:
    """Ranks: a 7, b 6, c and d 4, e 1. From 2 to 3 s one core alone is idle, so e, of two cores, runs last."""
    problem = problem_of([{1: 3.0}, {1: 2.0}, {1: 4.0}, {1: 4.0}, {2: 1.0}], [(0, 2), (0, 3), (1, 3)], cores=2)
    placed = spans(simulate(Heft(problem)))
    assert placed["a"][1:] == (0, 3)
    assert placed["b"][1:] == (0, 2)
    assert placed["e"] == ((0, 1), 7, 8)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_it_runs_as_placed_and_no_op_fits_earlier_anywhere(problem: Problem) -> None:
    """`problems` offer one thread everywhere, so every op has one core."""
    policy = Heft(problem)
    trace = simulate(policy)
    assert math.isclose(trace.makespan_s, policy.planned_s, abs_tol=1e-12)
    assert {op.threads for op in trace.ops} == {1}
    at, graph = trace.by_id(), problem.graph
    for op, op_id in enumerate(graph.ids):
        if not at[op_id].duration_s:  # it may sit behind an op at whose start it was ready
            continue
        ready_s = max((at[graph.ids[before]].finish_s for before in graph.predecessors[op]), default=0.0)
        for core in range(len(problem.machine)):
            ran = [other for other in trace.ops if other.cores == (core,) and other.id != op_id]
            for begin_s in [ready_s, *(other.finish_s for other in ran if other.finish_s > ready_s)]:
                end_s = begin_s + at[op_id].duration_s
                idle = all(other.finish_s <= begin_s or other.start_s >= end_s for other in ran)
                assert not idle or begin_s >= at[op_id].start_s - 1e-12
