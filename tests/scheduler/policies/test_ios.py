"""IOS's stages: the best there are on small graphs, by hand and against brute force; and what wide graphs get."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings

from tests.scheduler.random_problems import graph_of, problem_of, problems
from threadcast.core import Affinity, Case, CurveTable, Machine
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.policies.ios import Ios
from threadcast.scheduler.policies.stage_search import cuts
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.scheduler.simulation.simulator import simulate


def test_a_stage_has_at_most_so_many_groups() -> None:
    problem = problem_of([{1: 2.0, 2: 2.0, 3: 2.0, 4: 1.5}] * 4)
    assert Ios(problem).predicted_s == 2.0
    assert Ios(problem, groups=2).predicted_s == 4.0
    assert Ios(problem, groups=1).predicted_s == 6.0


def test_no_op_of_a_stage_starts_before_the_one_before_has_ended() -> None:
    """b could start after 1 s, but its stage waits for c."""
    problem = problem_of([{1: 1.0}, {1: 2.0}, {1: 2.0}, {1: 2.0}], [(0, 1), (2, 3)], cores=2)
    policy = Ios(problem, group_ops=1)
    at = simulate(policy).by_id()
    for before, after in zip(policy.stages, policy.stages[1:]):
        ended_s = max(at[problem.graph.ids[op]].finish_s for group in before for op in group)
        assert all(at[problem.graph.ids[op]].start_s >= ended_s for group in after for op in group)
    assert policy.predicted_s == simulate(policy).makespan_s == 4.0


def test_a_stage_of_one_group_has_all_cores_to_spread_on() -> None:
    cases = (Case(2, Affinity.COMPACT), Case(2, Affinity.SPREAD))
    seconds = np.array([[3.0, 2.0]])
    table = CurveTable(cases, seconds, seconds, seconds, np.zeros((1, 2), dtype=np.int8))
    policy = Ios(Problem(graph_of([{1: 1.0}]), table, Machine.uniform("tiles", 4, group_size=2)))
    assert simulate(policy).makespan_s == 2.0


def test_what_is_too_wide_to_search_goes_level_by_level() -> None:
    """12 ops side by side on four cores: three stages of four beat one op at a time (18 s) and pairs."""
    policy = Ios(problem_of([{1: 2.0, 2: 1.8, 4: 1.5}] * 12))
    assert [len(stage) for stage in policy.stages] == [4, 4, 4]
    assert policy.predicted_s == simulate(policy).makespan_s == 6.0
    scaling = Ios(problem_of([{1: 4.0, 2: 2.1, 4: 0.9}] * 12))
    assert [len(stage) for stage in scaling.stages] == [1] * 12


def test_limits_below_one_are_refused() -> None:
    for wrong in ("group_ops", "groups", "candidates"):
        with pytest.raises(InvalidInput, match=f"{wrong}=0: at least 1"):
            Ios(problem_of([{1: 1.0}]), **{wrong: 0})


def closure(problem: Problem) -> list[set[int]]:
    """Of each op all that come after it."""
    behind: list[set[int]] = [set() for _ in problem.graph.ops]
    for op in reversed(problem.graph.topological_order):
        behind[op] = set(problem.graph.successors[op]).union(*(behind[s] for s in problem.graph.successors[op]))
    return behind


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_a_cut_is_an_op_that_all_others_come_before_or_after(problem: Problem) -> None:
    behind, every = closure(problem), set(range(len(problem.graph)))
    expected = {op for op in every if all(other in behind[op] or op in behind[other] for other in every - {op})}
    assert cuts(problem.graph, problem.graph.topological_order) == expected


def groups_in(problem: Problem, stage: frozenset[int]) -> list[frozenset[int]]:
    found: list[frozenset[int]] = []
    for op in stage:
        near = {op, *problem.graph.predecessors[op], *problem.graph.successors[op]} & stage
        touching = [group for group in found if group & near]
        found = [group for group in found if not group & near] + [frozenset(near).union(*touching)]
    return found


def stage_s(problem: Problem, groups: list[frozenset[int]]) -> float:
    """The least time over all ways to deal the cores to the groups."""
    times, best_s = problem.times, math.inf
    for shares in product(range(1, len(problem.machine) + 1), repeat=len(groups)):
        if sum(shares) <= len(problem.machine):
            fits = [[i for i, count in enumerate(times.counts) if count <= share] for share in shares]
            if all(fits):
                ends = [sum(times.seconds[op, fit].min() for op in group) for group, fit in zip(groups, fits)]
                best_s = min(best_s, max(ends))
    return best_s


def least_s(problem: Problem, left: frozenset[int]) -> float:
    """By trying every stage that what is left can start with."""
    if not left:
        return 0.0

    def beginnings() -> Iterator[frozenset[int]]:
        for size in range(1, len(left) + 1):
            for chosen in map(frozenset, combinations(sorted(left), size)):
                if all(
                    before in chosen or before not in left for op in chosen for before in problem.graph.predecessors[op]
                ):
                    yield chosen

    best_s = math.inf
    for stage in beginnings():
        groups = groups_in(problem, stage)
        if max(map(len, groups)) <= 3 and len(groups) <= len(problem.machine):
            best_s = min(best_s, stage_s(problem, groups) + least_s(problem, left - stage))
    return best_s


@settings(max_examples=40, deadline=None)
@given(problem=problems(max_cores=3))
def test_no_stages_are_shorter(problem: Problem) -> None:
    assume(len(problem.graph) <= 6)
    found_s = least_s(problem, frozenset(range(len(problem.graph))))
    policy = Ios(problem)
    assert math.isclose(policy.predicted_s, found_s, abs_tol=1e-12)
    level_by_level = Ios(problem, candidates=1)
    assert policy.predicted_s <= level_by_level.predicted_s + 1e-12
    for made in (policy, level_by_level):
        trace = simulate(made)
        check_schedule(problem.graph, trace, machine=problem.machine)
        assert math.isclose(trace.makespan_s, made.predicted_s, abs_tol=1e-12)
