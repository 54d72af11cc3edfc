"""The allotments of CPA and MCPA, and what they do with them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from tests.scheduler.policy_contract import PolicyContract
from tests.scheduler.random_problems import problem_of, problems
from threadcast.scheduler.policies import Policy, Problem
from threadcast.scheduler.policies.cpa import Cpa, Mcpa
from threadcast.scheduler.problem.levels import levels, precedence_levels
from threadcast.scheduler.simulation.simulator import simulate


class TestCpa(PolicyContract):
    @classmethod
    def make_policy(cls, problem: Problem) -> Policy:
        return Cpa(problem)


class TestMcpa(PolicyContract):
    @classmethod
    def make_policy(cls, problem: Problem) -> Policy:
        return Mcpa(problem)


def widths(policy: Cpa) -> list[int]:
    return [policy.problem.times.counts[at] for at in policy.allotment.tolist()]


def test_the_critical_path_grows_until_it_is_as_short_as_the_area() -> None:
    """Gains a 8 - 4/2 = 6, b 8 - 6/2 = 5: a first, and so on until the path takes 7 s and the area 28/4 s."""
    policy = Cpa(problem_of([{1: 8.0, 2: 4.0, 4: 2.0}, {1: 8.0, 2: 6.0, 4: 5.0}], [(0, 1)]))
    assert widths(policy) == [4, 4]
    assert simulate(policy).makespan_s == 7.0


def test_it_stops_where_the_path_equals_the_area() -> None:
    """4 s against 8/2, at once; and 4 s against (6 + 6 + 4)/4 after two steps, of the first ops among equals."""
    assert widths(Cpa(problem_of([{1: 4.0, 2: 2.0}] * 2, cores=2))) == [1, 1]
    assert widths(Cpa(problem_of([{1: 4.0, 2: 3.0, 4: 2.5}] * 3))) == [2, 2, 1]


def test_the_largest_gain_in_time_over_width_goes_first() -> None:
    """a saves more seconds, 4 against 2, but b's time over its width falls more: 9 - 7/2 against 10/2 - 6/4."""
    policy = Cpa(problem_of([{2: 10.0, 4: 6.0}, {1: 9.0, 2: 7.0}, {1: 40.0}], [(0, 1)], cores=4))
    assert widths(policy) == [2, 1, 1], "the path is c, which cannot grow"
    policy = Cpa(problem_of([{2: 10.0, 4: 6.0}, {1: 9.0, 2: 7.0}, {1: 26.0}, {1: 18.0}], [(0, 1)], cores=4))
    assert widths(policy) == [2, 1, 1, 1], "26 s against 73/4"
    policy = Cpa(problem_of([{2: 10.0, 4: 6.0}, {1: 9.0, 2: 7.0}, {1: 17.0}, {1: 17.0}], [(0, 1)], cores=4))
    assert widths(policy) == [2, 2, 1, 1], "b's step makes it 17 s against 68/4"


def test_a_step_passes_over_counts_that_are_slower_or_not_offered() -> None:
    assert widths(Cpa(problem_of([{1: 4.0, 2: 5.0, 4: 1.0}]))) == [4]
    assert widths(Cpa(problem_of([{1: 4.0, 2: 4.0, 4: 4.0}]))) == [1]


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


def test_where_the_best_op_has_no_room_another_of_the_path_grows() -> None:
    """a, b and c share level 0 of 3 cores; only d, behind a, may grow."""
    wide = {1: 9.0, 3: 1.0}
    policy = Mcpa(problem_of([wide, {1: 1.0}, {1: 1.0}, {1: 4.0, 2: 3.0}], [(0, 3)], cores=3))
    assert widths(policy) == [1, 1, 1, 2]


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
