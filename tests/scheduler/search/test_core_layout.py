"""Start times and widths become legal plans on cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.random_problems import problem_of, problems
from threadcast.core import Affinity, Case, CurveTable, Machine, Plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.search.core_layout import CoreLayout
from threadcast.scheduler.simulation.checker import check_schedule


def lay_out(problem: Problem, *, start: Sequence[float], position: Sequence[int]) -> Plan:
    layout = CoreLayout(problem)
    placements = layout.placements(layout.sequence(start, np.array(position, dtype=np.int64)))
    return Plan(len(problem.machine), "test", placements)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), data=st.data())
def test_whatever_the_starts_and_widths_the_plan_is_legal(problem: Problem, data: st.DataObject) -> None:
    ops = range(len(problem.graph))
    start = [data.draw(st.integers(0, 5)) for _ in ops]
    offered = [[i for i, s in enumerate(row) if s < float("inf")] for row in problem.times.seconds.tolist()]
    position = [data.draw(st.sampled_from(offered[op])) for op in ops]
    legal = [0.0] * len(ops)  # no op before those that it waits for
    for op in problem.graph.topological_order:
        legal[op] = max([float(start[op]), *(legal[before] for before in problem.graph.predecessors[op])])
    made = lay_out(problem, start=legal, position=position)
    check_schedule(problem.graph, made, machine=problem.machine)
    by_id = made.by_id()
    for op, op_id in enumerate(problem.graph.ids):
        assert by_id[op_id].threads == len(by_id[op_id].cores) == problem.times.counts[position[op]]


def test_a_schedule_is_kept_or_made_shorter() -> None:
    problem = problem_of([{1: 2.0}, {1: 1.0}, {2: 1.0}, {1: 3.0}], [(0, 2), (1, 2)], cores=2)
    made = lay_out(problem, start=[0.0, 0.5, 2.5, 3.5], position=[0, 0, 1, 0]).by_id()
    assert {op_id: op.start_s for op_id, op in made.items()} == {"a": 0.0, "b": 0.0, "c": 2.0, "d": 3.0}


def test_an_op_without_time_waits_for_no_core_and_keeps_none() -> None:
    """`b` behind `a` is over at 1 s on a's core, although its start says 9 s and `d` wants the other core at once."""
    problem = problem_of([{1: 1.0}, {1: 0.0}, {1: 3.0}, {1: 3.0}, {1: 1.0}], [(0, 1), (1, 2)], cores=2)
    made = lay_out(problem, start=[0, 9, 1, 0, 4], position=[0] * 5).by_id()
    assert (made["b"].start_s, made["b"].cores) == (1.0, made["a"].cores)
    assert (made["c"].start_s, made["d"].start_s, made["e"].start_s) == (1.0, 0.0, 3.0)


def test_cores_are_of_one_group_or_of_many_as_the_op_is_faster() -> None:
    machine = Machine.uniform("tiles", 4, group_size=2)
    graph = problem_of([{1: 1.0}] * 2, [(0, 1)]).graph
    cases = (Case(2, Affinity.COMPACT), Case(2, Affinity.SPREAD))
    seconds = problem_of([{1: 1.0}] * 2).curves.seconds[:, :1].repeat(2, axis=1)
    seconds[:] = [[1.0, 2.0], [2.0, 1.0]]
    table = CurveTable(cases, seconds, seconds, seconds, seconds.astype("int8"))
    made = lay_out(Problem(graph, table, machine), start=[0, 1], position=[0, 0])
    group = {core.id: core.group for core in machine.cores}
    assert [len({group[core] for core in op.cores}) for op in made.ops] == [1, 2]
    assert [op.duration_s for op in made.ops] == [1.0, 1.0]
