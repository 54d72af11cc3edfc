"""Interference by classes and bad pairs keeps the protocol's promises, and plans made with it avoid what is bad."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadcast.core import Machine, Op, OpGraph, Plan
from threadcast.core.corun import Classes, CoRunTable, Slowdown, SlowdownForecast
from threadcast.core.op_class import ClassLimits, OpClass
from threadcast.scheduler.interference.class_slowdown import LARGEST, ClassInterference
from threadcast.scheduler.interference.core_sharing import CoreSharing
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem, Running
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.checker import check_schedule

M, C, T = OpClass.MEMORY, OpClass.COMPUTE, OpClass.TINY
LIMITS = ClassLimits(1e10, 1e9, 1e-6)
COST = {M: (1e6, 1e7), C: (1e9, 1e6), T: (1.0, 1.0)}
MACHINE = Machine.uniform("eight", 8, group_size=2, threads_per_core=2)


def op_of(of: OpClass, number: int) -> Op:
    return Op(of.value, attributes={"n": number}, cost=COST[of])


def problem_of_classes(*classes: OpClass, machine: Machine = MACHINE, same: bool = False) -> Problem:
    """Independent ops of these classes, a second each on a core and 0.7 on two; `same`: ops of a class are equal."""
    ids = tuple(f"op{i}" for i in range(len(classes)))
    ops = tuple(op_of(of, 0 if same else i) for i, of in enumerate(classes))
    graph = OpGraph(ids, ops, (), {op_id: {1: 1.0, 2: 0.7} for op_id in ids})
    return Problem(graph, curves_of(graph, machine), machine)


def slowed(by: float) -> Slowdown:
    return Slowdown(by, by, by, 1)


def table_of(slowdowns: dict[Classes, float], *, machine: Machine = MACHINE, cores: int = 4) -> CoRunTable:
    return CoRunTable(machine, cores, LIMITS, {pair: slowed(by) for pair, by in slowdowns.items()})


def at(op: int, *cores: int, threads: int | None = None) -> Running:
    return Running(op, cores, threads or len(cores), 0.0, 1.0)


def test_two_halves_beside_each_other_take_what_was_measured() -> None:
    interference = ClassInterference(problem_of_classes(M, C), table_of({(M, C): 1.25, (C, M): 1.1}))
    assert interference.slowdowns([at(0, 0, 1, 2, 3), at(1, 4, 5, 6, 7)]) == pytest.approx([1.25, 1.1])


def test_narrow_neighbours_count_by_their_cores_and_add_up() -> None:
    interference = ClassInterference(problem_of_classes(M, M, M), table_of({(M, M): 1.8}))
    assert interference.slowdowns([at(0, 0), at(1, 1)]) == pytest.approx([1.2, 1.2])
    assert interference.slowdowns([at(0, 0), at(1, 1), at(2, 2, 3)]) == pytest.approx([1.6, 1.6, 1.4])


def test_a_bad_pair_counts_before_its_classes_and_in_full() -> None:
    problem = problem_of_classes(M, M, M)
    keys = [op.key for op in problem.graph.ops]
    table = replace(table_of({(M, M): 1.8}), bad_pairs={(keys[0], keys[1]): 3.0})
    assert ClassInterference(problem, table).slowdowns([at(0, 0), at(1, 1), at(2, 2)]) == pytest.approx([3.2, 1.4, 1.4])


def test_bad_pairs_alone_need_no_classes() -> None:
    problem = problem_of_classes(M, C)
    keys = [op.key for op in problem.graph.ops]
    table = CoRunTable(MACHINE, bad_pairs={(keys[0], keys[1]): 2.0})
    assert ClassInterference(problem, table).slowdowns([at(0, 0), at(1, 1)]) == [2.0, 1.0]


def test_ops_of_one_key_have_the_classes_of_their_own_counts() -> None:
    """Other programs describe ops by kind and counts alone."""
    ops = tuple(Op("gemm", cost=COST[of]) for of in (M, C))
    assert ops[0].key == ops[1].key
    ids = ("small", "large")
    graph = OpGraph(ids, ops, (), {op_id: {1: 1.0, 4: 0.5} for op_id in ids})
    problem = Problem(graph, curves_of(graph, MACHINE), MACHINE)
    table, halves = table_of({(M, C): 1.8}), [at(0, 0, 1, 2, 3), at(1, 4, 5, 6, 7)]
    assert ClassInterference(problem, table).slowdowns(halves) == pytest.approx([1.8, 1.0])
    pair = replace(table, bad_pairs={(ops[0].key, ops[0].key): 3.0})
    assert ClassInterference(problem, pair).slowdowns(halves) == pytest.approx([3.0, 3.0])


def test_ops_on_shared_cores_only_share_them() -> None:
    problem = problem_of_classes(M, M)
    pair = [at(0, 0, 1), at(1, 0, 1)]
    assert ClassInterference(problem, table_of({(M, M): 1.8})).slowdowns(pair) == CoreSharing(MACHINE).slowdowns(pair)


def test_views_and_unmeasured_classes_disturb_nobody() -> None:
    graph = OpGraph(("v", "m", "c"), (Op("view"), op_of(M, 0), op_of(C, 0)), (), {i: {1: 1.0} for i in "vmc"})
    problem = Problem(graph, curves_of(graph, MACHINE), MACHINE)
    interference = ClassInterference(problem, table_of({(M, T): 2.0, (T, M): 2.0}))
    assert interference.slowdowns([at(0, 0), at(1, 1), at(2, 2)]) == [1.0, 1.0, 1.0]


def test_what_timing_cannot_tell_from_nothing_counts_as_nothing() -> None:
    interference = ClassInterference(problem_of_classes(M, C), table_of({(M, C): 1.019, (C, M): 0.9}))
    assert interference.slowdowns([at(0, 0, 1, 2, 3), at(1, 4, 5, 6, 7)]) == [1.0, 1.0]


def test_a_forecast_counts_by_its_median_where_it_is_surely_a_slowdown_and_nothing_was_measured() -> None:
    table = replace(
        table_of({(M, M): 1.5}),
        forecasts={
            (M, C): SlowdownForecast(1.3, 1.1, 1.6),
            (C, M): SlowdownForecast(1.3, 0.9, 1.9),
            (C, C): SlowdownForecast(1.3, 1.019, 1.9),
        },
    )
    interference = ClassInterference(problem_of_classes(M, C, C), table)
    assert interference.slowdowns([at(0, 0, 1, 2, 3), at(1, 4, 5, 6, 7)]) == pytest.approx([1.3, 1.0])
    assert interference.slowdowns([at(1, 0, 1, 2, 3), at(2, 4, 5, 6, 7)]) == [1.0, 1.0]


def test_a_forecast_goes_before_the_few_pairs_that_were_measured_of_a_class() -> None:
    table = replace(
        table_of({(M, C): 1.0, (C, M): 1.4}),
        forecasts={(M, C): SlowdownForecast(1.2, 1.1, 1.3), (C, M): SlowdownForecast(1.2, 0.9, 1.5)},
    )
    interference = ClassInterference(problem_of_classes(M, C), table)
    assert interference.slowdowns([at(0, 0, 1, 2, 3), at(1, 4, 5, 6, 7)]) == pytest.approx([1.2, 1.0])


def test_only_a_sure_forecast_takes_ops_apart() -> None:
    """Three times as long beside each other is worse than one after the other; whether it is so decides."""
    machine = Machine.uniform("two", 2)
    problem = problem_of_classes(C, C, machine=machine)

    def makespan_s(low: float) -> float:
        table = CoRunTable(machine, 1, LIMITS, forecasts={(C, C): SlowdownForecast(3.0, low, 9.0)})
        return plan(problem, interference=ClassInterference(problem, table)).makespan_s

    assert makespan_s(1.0) == pytest.approx(1.0)  # side by side
    assert makespan_s(1.5) == pytest.approx(1.4)  # one after the other, on both cores


def test_the_sum_is_capped() -> None:
    interference = ClassInterference(problem_of_classes(M, M, M), table_of({(M, M): 15.0}, cores=1))
    assert interference.slowdowns([at(0, 0), at(1, 1), at(2, 2)]) == [LARGEST] * 3


classes = st.sampled_from(OpClass)
tables = st.builds(
    lambda slowdowns, cores: table_of(slowdowns, cores=cores),
    st.dictionaries(st.tuples(classes, classes), st.floats(0.7, 30.0)),
    st.integers(1, 8),
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Problem, CoRunTable, list[Running]]:
    problem = problem_of_classes(*draw(st.lists(classes, min_size=1, max_size=6)), same=draw(st.booleans()))
    keys = [op.key for op in problem.graph.ops]
    pairs = st.dictionaries(st.tuples(st.sampled_from(keys), st.sampled_from(keys)), st.floats(1.0, 30.0), max_size=4)
    table = replace(draw(tables), bad_pairs=draw(pairs))
    running = []
    for op in range(len(keys)):
        cores = tuple(sorted(draw(st.sets(st.integers(0, 7), min_size=1, max_size=4))))
        running.append(at(op, *cores, threads=len(cores) * draw(st.sampled_from([1, 1, 2]))))
    return problem, table, running


@given(situations(), st.randoms(use_true_random=False))
def test_the_protocols_promises_hold(
    situation: tuple[Problem, CoRunTable, list[Running]], shuffling: random.Random
) -> None:
    problem, table, running = situation
    interference = ClassInterference(problem, table)
    factors = list(interference.slowdowns(running))
    assert all(math.isfinite(by) and by >= 1 / interference.core_throughput for by in factors)
    assert all(by >= core for by, core in zip(factors, CoreSharing(MACHINE).slowdowns(running)))
    assert list(interference.slowdowns(running)) == factors
    order = list(range(len(running)))
    shuffling.shuffle(order)
    assert list(ClassInterference(problem, table).slowdowns([running[i] for i in order])) == [factors[i] for i in order]
    later = [replace(one, start_s=5.0, finish_s=9.0) for one in running]
    assert list(interference.slowdowns(later)) == factors
    for one in running:
        if one.threads == len(one.cores):
            assert list(interference.slowdowns([one])) == [1.0]


def overlap_s(made: Plan, first: str, second: str) -> float:
    by_id = made.by_id()
    a, b = by_id[first], by_id[second]
    return float(min(a.finish_s, b.finish_s) - max(a.start_s, b.start_s))


def test_a_plan_keeps_a_bad_pair_apart() -> None:
    problem = problem_of_classes(M, C, machine=Machine.uniform("two", 2))
    keys = [op.key for op in problem.graph.ops]
    assert overlap_s(plan(problem), "op0", "op1") > 0
    table = CoRunTable(problem.machine, bad_pairs={(keys[0], keys[1]): 3.0, (keys[1], keys[0]): 3.0})
    apart = plan(problem, interference=ClassInterference(problem, table))
    check_schedule(problem.graph, apart, machine=problem.machine)
    assert overlap_s(apart, "op0", "op1") <= 0
    assert apart.makespan_s == pytest.approx(1.4)


@settings(max_examples=15, deadline=None)
@given(st.lists(classes, min_size=2, max_size=8), tables)
def test_plans_under_interference_are_legal(of: list[OpClass], table: CoRunTable) -> None:
    problem = problem_of_classes(*of)
    made = plan(problem, interference=ClassInterference(problem, table), budget_s=0.2)
    check_schedule(problem.graph, made, machine=problem.machine, oversubscribed=True)
