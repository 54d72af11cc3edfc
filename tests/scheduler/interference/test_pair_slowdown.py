"""Interference by bad pairs keeps the protocol's promises, and plans made with it avoid what is bad."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadcast.core import Machine, Op, OpGraph, Plan
from threadcast.core.corun import CoRunTable
from threadcast.scheduler.interference.core_sharing import CoreSharing
from threadcast.scheduler.interference.pair_slowdown import LARGEST, PairInterference
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem, Running
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.checker import check_schedule

MACHINE = Machine.uniform("eight", 8, group_size=2, threads_per_core=2)
OPS = tuple(Op("mm", attributes={"n": number}) for number in range(4))
KEYS = tuple(op.key for op in OPS)


def problem_of(*numbers: int, machine: Machine = MACHINE) -> Problem:
    """Independent ops of `OPS`, a second each on a core and 0.7 on two."""
    ids = tuple(f"op{i}" for i in range(len(numbers)))
    graph = OpGraph(ids, tuple(OPS[n] for n in numbers), (), {op_id: {1: 1.0, 2: 0.7} for op_id in ids})
    return Problem(graph, curves_of(graph, machine), machine)


def table_of(pairs: dict[tuple[int, int], float], machine: Machine = MACHINE) -> CoRunTable:
    return CoRunTable(machine, {(KEYS[a], KEYS[b]): by for (a, b), by in pairs.items()})


def at(op: int, *cores: int, threads: int | None = None) -> Running:
    return Running(op, cores, threads or len(cores), 0.0, 1.0)


def test_losses_add_up_by_pairs_on_cores_of_their_own() -> None:
    problem = problem_of(0, 1, 2, 1)
    interference = PairInterference(problem, table_of({(0, 1): 3.0, (1, 2): 1.5}))
    assert interference.slowdowns([at(0, 0), at(1, 1), at(2, 2)]) == pytest.approx([3.0, 1.5, 1.0])
    assert interference.slowdowns([at(0, 0), at(1, 1), at(3, 2, 3)]) == pytest.approx([5.0, 1.0, 1.0])
    assert interference.slowdowns([at(0, 0), at(2, 1)]) == [1.0, 1.0]


def test_ops_on_shared_cores_only_share_them() -> None:
    problem, pair = problem_of(0, 1), [at(0, 0, 1), at(1, 0, 1)]
    assert PairInterference(problem, table_of({(0, 1): 3.0})).slowdowns(pair) == CoreSharing(MACHINE).slowdowns(pair)


pairs = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.floats(1.0, 50.0), max_size=5)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), pairs, st.data())
def test_the_protocol_holds(of: list[int], bad: dict[tuple[int, int], float], data: st.DataObject) -> None:
    """Factors are finite, do not depend on the order, and an op alone takes its own time."""
    interference = PairInterference(problem_of(*of), table_of(bad))
    cores = st.lists(st.sampled_from(range(8)), min_size=1, max_size=3, unique=True)
    running = [at(op, *data.draw(cores)) for op in range(len(of))]
    factors = interference.slowdowns(running)
    most = LARGEST * max(CoreSharing(MACHINE).slowdowns(running))
    assert all(1 / interference.core_throughput <= by <= most for by in factors)
    shuffled = list(zip(running, factors, strict=True))
    random.Random(0).shuffle(shuffled)
    fresh = PairInterference(problem_of(*of), table_of(bad))
    assert list(fresh.slowdowns([one for one, _ in shuffled])) == [by for _, by in shuffled]
    assert all(list(interference.slowdowns([one])) == [1.0] for one in running)


def overlap_s(made: Plan, first: str, second: str) -> float:
    a, b = made.by_id()[first], made.by_id()[second]
    return float(min(a.finish_s, b.finish_s) - max(a.start_s, b.start_s))


def test_a_plan_keeps_a_bad_pair_apart() -> None:
    problem = problem_of(0, 1, machine=Machine.uniform("two", 2))
    assert overlap_s(plan(problem), "op0", "op1") > 0
    table = table_of({(0, 1): 3.0, (1, 0): 3.0}, problem.machine)
    apart = plan(problem, interference=PairInterference(problem, table))
    check_schedule(problem.graph, apart, machine=problem.machine)
    assert overlap_s(apart, "op0", "op1") <= 0
    assert apart.makespan_s == pytest.approx(1.4)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), pairs)
def test_plans_under_interference_are_legal(of: list[int], bad: dict[tuple[int, int], float]) -> None:
    problem = problem_of(*of)
    made = plan(problem, interference=PairInterference(problem, table_of(bad)), budget_s=0.2)
    check_schedule(problem.graph, made, machine=problem.machine, oversubscribed=True)
