"""Lower bounds: by hand, and never above the best of all schedules."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.random_problems import curves, problem_of
from threadcast.scheduler.bounds import lower_bounds
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem, names


def best_makespan_s(problem: Problem) -> float:
    """The shortest schedule of all: every thread count of every op, every order, each op as early as it can.

    Some order with ops placed as early as possible is optimal, since the makespan never falls when an op
    moves later.
    """
    graph, cores = problem.graph, len(problem.machine)
    offered = [list(problem.curves[i].by_threads().items()) for i in range(len(graph))]
    best = float("inf")
    for chosen in product(*offered):
        for order in permutations(range(len(graph))):
            placed: dict[int, tuple[float, float, int]] = {}
            for op in order:
                if not all(before in placed for before in graph.predecessors[op]):
                    break
                threads, seconds = chosen[op]
                after = max((placed[p][1] for p in graph.predecessors[op]), default=0.0)
                starts = sorted({after, *(end for _, end, _ in placed.values() if end > after)})
                start = next(s for s in starts if fits(placed, s, s + seconds, threads, cores))
                placed[op] = (start, start + seconds, threads)
            else:
                best = min(best, max(end for _, end, _ in placed.values()))
    return best


def fits(placed: dict[int, tuple[float, float, int]], start: float, end: float, threads: int, cores: int) -> bool:
    moments = {start, *(s for s, _, _ in placed.values() if start <= s < end)}
    return all(sum(n for s, e, n in placed.values() if s <= t < e) + threads <= cores for t in moments)


def test_the_critical_path_takes_each_op_at_its_fastest() -> None:
    problem = problem_of([{1: 4.0, 2: 3.0, 4: 3.5}, {1: 2.0}, {1: 1.0}], [(0, 1)])
    assert lower_bounds(problem).critical_path_s == 5.0


def test_the_area_takes_each_op_at_its_most_frugal() -> None:
    """8 + 6 core-seconds (two threads at 3 s, not one at 6.5 s) over four cores."""
    problem = problem_of([{1: 8.0, 4: 2.5}, {1: 6.5, 2: 3.0}])
    bounds = lower_bounds(problem)
    assert bounds.area_s == 3.5
    assert bounds.best_s == 3.5


def test_counts_above_the_cores_do_not_count() -> None:
    problem = problem_of([{1: 8.0, 4: 1.0}], cores=2)
    assert lower_bounds(problem).critical_path_s == pytest.approx(8.0 / 8 ** (1 / 2))  # log-log between 1 and 4


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_bound_is_above_the_best_schedule_and_no_plan_below(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    edges = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    problem = problem_of([data.draw(curves()) for _ in range(count)], sorted(edges), cores=data.draw(st.integers(1, 3)))
    best_s = best_makespan_s(problem)
    assert lower_bounds(problem).best_s <= best_s * (1 + 1e-9)
    for name in set(names()) - {"uniform"}:
        planned = plan(problem, policy=name)
        assert planned.makespan_s >= best_s * (1 - 1e-9)
        assert planned.lower_bound_s <= best_s * (1 + 1e-9)
