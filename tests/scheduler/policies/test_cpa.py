"""The allotments of CPA and MCPA, and what they do with them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from tests.scheduler.random_problems import problem_of, problems
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.policies.cpa import Cpa, Mcpa
from threadcast.scheduler.problem.levels import levels, precedence_levels
from threadcast.scheduler.simulation.simulator import simulate


def widths(policy: Cpa) -> list[int]:
    return [policy.problem.times.counts[at] for at in policy.allotment.tolist()]


def test_a_precedence_level_gets_no_more_cores_than_there_are() -> None:
    """Three ops side by side on four cores: CPA allots 5 cores, MCPA stops at 4."""
    problem = problem_of([{1: 4.0, 2: 3.0, 4: 2.5}] * 3)
    assert widths(Mcpa(problem)) == [2, 1, 1]
    assert simulate(Mcpa(problem)).makespan_s == 4.0
    assert simulate(Cpa(problem)).makespan_s == 6.0


def test_an_op_that_waits_for_cores_is_not_overtaken() -> None:
    """a (one core, bottom level 5) runs; b (two cores, 4) waits for it, and c (one core, 3) for b."""
    policy = Cpa(problem_of([{1: 5.0}, {2: 4.0}, {1: 3.0}], cores=2))
    assert {op.id: op.start_s for op in simulate(policy).ops} == {"a": 0, "b": 5, "c": 9}


def test_a_precedence_level_is_the_most_ops_before() -> None:
    assert precedence_levels(problem_of([{1: 1.0}] * 5, [(0, 1), (1, 2), (0, 2), (3, 2), (3, 4)]).graph).tolist() == [
        0,
        1,
        2,
        0,
        1,
    ]


def one_step_at_a_time(problem: Problem, *, by_level: bool) -> list[int]:
    """CPA as its paper has it, on one critical path for as long as that is one."""
    graph, times, cores = problem.graph, problem.times, len(problem.machine)
    counts, level = times.counts, precedence_levels(graph).tolist()
    at = times.within(0).tolist()
    path: list[int] = []
    while True:
        seconds = times.at(np.array(at))
        bottom = levels(graph, seconds)
        if sum(seconds[op] for op in path) < bottom.max() * (1 - 1e-12) or not path:
            starts = [op for op in range(len(graph)) if not graph.predecessors[op]]
            path = [max(starts, key=lambda op: (bottom[op], -op))]
            while graph.successors[path[-1]]:
                path.append(max(graph.successors[path[-1]], key=lambda op: bottom[op]))
        if bottom.max() <= sum(s * counts[p] for s, p in zip(seconds, at)) / cores:
            return at
        steps = []
        for op in path:
            faster = [p for p in range(at[op] + 1, len(counts)) if times.seconds[op, p] < seconds[op]]
            if not faster:
                continue
            to = faster[0]
            used = sum(counts[at[other]] for other in range(len(graph)) if level[other] == level[op])
            if not by_level or used + counts[to] - counts[at[op]] <= cores:
                steps.append((times.seconds[op, to] / counts[to] - seconds[op] / counts[at[op]], op, to))
        if not steps:
            return at
        _, op, to = min(steps)
        at[op] = to


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_steps_are_those_of_the_paper(problem: Problem) -> None:
    assert Cpa(problem).allotment.tolist() == one_step_at_a_time(problem, by_level=False)
    assert Mcpa(problem).allotment.tolist() == one_step_at_a_time(problem, by_level=True)
