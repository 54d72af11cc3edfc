"""The four strategies of Liu et al. 2018, III-D, each on its own and together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.scheduler.random_problems import hybrid_problem, problem_of
from threadcast.core import Affinity, CurveTable, Machine, Op, OpGraph, Source, Trace
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.policies import Launch, Problem, Running, State, create
from threadcast.scheduler.policies.strategies import Strategies
from threadcast.scheduler.simulation.simulator import simulate


def threads(trace: Trace) -> dict[str, int]:
    return {op.id: op.threads for op in trace.ops}


def starts(trace: Trace) -> dict[str, float]:
    return {op.id: op.start_s for op in trace.ops}


def knl_problem(best: dict[int, float]) -> Problem:
    """One op without cache sharing (SPREAD) beside one running; seconds 5 but for `best`."""
    machine = Machine.uniform("knl", 68, group_size=2, threads_per_core=4)
    cases = machine.cases()
    slow = [5.0 + case.threads / 100 for case in cases]
    fast = [
        best.get(case.threads, seconds) if case.affinity is Affinity.SPREAD else seconds + 1
        for case, seconds in zip(cases, slow)
    ]
    seconds = np.array([slow, fast])
    source = np.full(seconds.shape, list(Source).index(Source.MEASURED), dtype=np.int8)
    graph = OpGraph(("ongoing", "ready"), (Op("conv"), Op("matmul")))
    return Problem(graph, CurveTable(cases, seconds, seconds, seconds, source), machine)


def beside_48_cores(left_s: float) -> State:
    """The paper's situation: an op runs on 48 cores, 20 cores idle, here one on each of 20 tiles."""
    idle = tuple(range(0, 40, 2))
    busy = tuple(core for core in range(68) if core not in idle)
    return State(10.0, (1,), idle, (Running(0, busy, 48, 3.0, 10.0 + left_s),))


def test_the_papers_example_takes_18_of_20_idle_cores() -> None:
    """18 threads take 1.5 s, 20 take 1.3 s, 16 take 2.1 s; the op that runs needs 1.9 s more."""
    policy = Strategies(knl_problem({16: 2.1, 18: 1.5, 20: 1.3}), strategies={1, 2, 3})
    (launch,) = policy.decide(beside_48_cores(1.9))
    assert (launch.op, launch.threads) == (1, 18)
    assert set(launch.cores) <= set(range(0, 40, 2))


def test_the_papers_example_without_strategy_2_and_with_more_time_takes_16() -> None:
    problem = knl_problem({16: 2.1, 18: 1.5, 20: 1.3})
    (launch,) = Strategies(problem, strategies={1, 3}).decide(beside_48_cores(2.2))
    assert launch.threads == 16
    (launch,) = Strategies(problem, strategies={1, 3}).decide(beside_48_cores(1.9))
    assert launch.threads == 18, "16 would outlast the op that runs"
    (launch,) = Strategies(problem, strategies={1, 2, 3}).decide(beside_48_cores(2.2))
    assert launch.threads == 18, "16 is more than two threads away from the 20 of strategy 2"


def test_a_candidate_too_far_from_strategy_2_gives_way_to_it() -> None:
    """18 of 20 stays, 17 does not."""
    for fewer, launched in ((18, 18), (17, 20), (9, 20)):
        problem = knl_problem({fewer: 1.4, 20: 1.3})
        (launch,) = Strategies(problem, strategies={1, 2, 3}).decide(beside_48_cores(1.9))
        assert launch.threads == launched


def test_nothing_that_outlasts_the_running_op_co_runs_unless_no_op_can() -> None:
    """No candidate ends within 1.2 s, so the most time-consuming ready op starts with its own count, 20."""
    policy = Strategies(knl_problem({16: 2.1, 18: 1.5, 20: 1.3}), strategies={1, 2, 3})
    (launch,) = policy.decide(beside_48_cores(1.2))
    assert launch.threads == 20


def test_the_most_time_consuming_op_is_waited_for_where_it_does_not_fit() -> None:
    problem = problem_of([{2: 1.0}, {4: 3.0}, {3: 2.0}], cores=4)
    state = State(0.0, (1, 2), (2, 3), (Running(0, (0, 1), 2, 0.0, 1.0),))
    assert Strategies(problem, strategies={1, 2, 3}).decide(state) == []


def test_only_three_candidates_are_tried() -> None:
    """One thread is the fourth best count and would fit, the three best do not."""
    problem = problem_of([{3: 9.0}, {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}], cores=4)
    state = State(0.0, (1,), (3,), (Running(0, (0, 1, 2), 3, 0.0, 9.0),))
    assert Strategies(problem, strategies={1, 3}).decide(state) == []
    idle_two = State(0.0, (1,), (2, 3), (Running(0, (0, 1), 2, 0.0, 9.0),))
    assert [launch.threads for launch in Strategies(problem, strategies={1, 3}).decide(idle_two)] == [2]


def test_strategy_1_gives_each_op_its_own_fastest_count() -> None:
    problem = problem_of([{1: 3.0, 2: 2.0, 4: 2.5}, {1: 1.0, 4: 1.5}, {1: 4.0, 4: 1.0}], kinds="xxy")
    trace = simulate(create("strategies_1", problem))
    assert threads(trace) == {"a": 2, "b": 1, "c": 4}
    assert starts(trace) == {"a": 0.0, "b": 2.0, "c": 3.0}, "one op at a time, in order"


def test_strategy_2_gives_a_kind_the_count_of_its_most_time_consuming_op() -> None:
    """Of kind x, b takes longest at its best (1.5 s at 4 threads)."""
    problem = problem_of([{1: 1.0, 4: 1.2}, {1: 2.0, 4: 1.5}, {1: 4.0, 2: 1.0}], kinds="xxy")
    assert threads(simulate(create("strategies_1_2", problem))) == {"a": 4, "b": 4, "c": 2}


def test_an_op_that_does_not_offer_the_count_of_its_kind_takes_the_next_smaller() -> None:
    problem = problem_of([{1: 1.0, 2: 0.9}, {1: 9.0, 4: 1.5}], kinds="xx")
    assert threads(simulate(create("strategies_1_2", problem))) == {"a": 2, "b": 4}


def test_without_any_strategy_each_op_runs_alone_on_all_cores() -> None:
    problem = problem_of([{1: 1.0, 4: 2.0}, {1: 1.0, 4: 3.0}])
    trace = simulate(Strategies(problem, strategies=()))
    assert threads(trace) == {"a": 4, "b": 4}
    assert trace.makespan_s == 5.0


def test_strategy_3_starts_the_longest_op_and_fills_up_beside_it() -> None:
    """b is longest and takes 2 cores; a and c end before it on one core each; d has to wait."""
    problem = problem_of([{1: 1.0}, {2: 3.0}, {1: 2.0}, {1: 0.5}], cores=4)
    trace = simulate(create("strategies_1_2_3", problem))
    assert starts(trace) == {"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0}


def test_strategy_4_runs_the_smallest_ops_beside_one_that_holds_all_cores() -> None:
    """b and c are the shortest on one thread and fit side by side, d then does not."""
    curves = [{4: 4.0}, {1: 2.0, 2: 1.5}, {1: 3.0, 2: 2.0}, {1: 20.0, 4: 5.0}]
    problem = problem_of(curves, [], cores=4, threads_per_core=2)
    policy = Strategies(problem, strategies={1, 2, 3, 4})
    state = State(0.0, (1, 2, 3), (), (Running(0, (0, 1, 2, 3), 4, 0.0, 4.0),))
    assert policy.decide(state) == [Launch(1, (0, 1), 2, 1), Launch(2, (2, 3), 2, 1)]
    assert Strategies(problem, strategies={1, 2, 3}).decide(state) == []


def test_strategy_4_starts_nothing_that_outlasts_the_op_beside_it() -> None:
    problem = problem_of([{4: 4.0}, {1: 20.0, 4: 4.5}, {4: 3.0}], cores=4, threads_per_core=2)
    holder = Running(0, (0, 1, 2, 3), 4, 0.0, 4.0)
    assert Strategies(problem).decide(State(0.0, (1,), (), (holder,))) == []
    assert [launch.op for launch in Strategies(problem).decide(State(0.0, (1, 2), (), (holder,)))] == [2]


def test_strategy_4_needs_a_second_hardware_thread() -> None:
    problem = problem_of([{4: 4.0}, {1: 2.0}], cores=4, threads_per_core=1)
    state = State(0.0, (1,), (), (Running(0, (0, 1, 2, 3), 4, 0.0, 4.0),))
    assert Strategies(problem).decide(state) == []


def test_strategy_4_leaves_cores_with_one_hardware_thread_alone() -> None:
    """Of a hybrid machine's four cores two have a second hardware thread: c, of three threads, does not fit there."""
    problem = hybrid_problem([{4: 4.0}, {1: 2.0, 2: 1.5}, {3: 3.0}, {1: 1.9}])
    state = State(0.0, (1, 2, 3), (), (Running(0, (0, 1, 2, 3), 4, 0.0, 4.0),))
    assert Strategies(problem).decide(state) == [Launch(3, (0,), 1, 1)]
    assert Strategies(problem).decide(replace(state, ready=(1, 2))) == [Launch(1, (0, 1), 2, 1)]


def test_strategy_4_leaves_ops_alone_that_do_not_hold_all_cores() -> None:
    problem = problem_of([{3: 4.0}, {2: 2.0}], cores=4, threads_per_core=2)
    state = State(0.0, (1,), (3,), (Running(0, (0, 1, 2), 3, 0.0, 4.0),))
    assert Strategies(problem).decide(state) == []


def test_an_op_on_second_hardware_threads_keeps_no_first_one_busy() -> None:
    problem = problem_of([{1: 9.0}, {4: 2.0}], cores=4, threads_per_core=2)
    state = State(0.0, (1,), (1, 2, 3), (Running(0, (0,), 1, 0.0, 1.0, hardware_thread=1),))
    assert Strategies(problem).decide(state) == [Launch(1, (0, 1, 2, 3), 4)]


def test_each_strategy_can_be_switched_and_names_the_plan() -> None:
    problem = problem_of([{1: 1.0}])
    assert create("strategies_1_2", problem).name == "strategies_1_2"
    assert create("strategies", problem).name == "strategies"
    assert create("strategies", problem, strategies=(3, 1)).name == "strategies_1_3"
    with pytest.raises(InvalidInput, match=r"strategies=\[5\]"):
        create("strategies", problem, strategies=[5])
