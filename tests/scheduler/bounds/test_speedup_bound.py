"""What scheduling can gain at most: by hand, against brute force, and against what capture makes without the split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.scheduler.random_problems import problem_of, problems
from threadcast.core import Edge, Machine, Op, OpGraph
from threadcast.scheduler.bounds.ceiling import Limit, Reach
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.bounds.speedup_bound import LISTED, ceiling
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.engine_costs import EngineCosts
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.problem.levels import levels, path_without
from threadcast.scheduler.problem.merged_backward import without_split

FLAT, LINEAR = {1: 1.0, 4: 1.0}, {1: 4.0, 2: 2.0, 4: 1.0}


def test_a_chain_of_ops_that_scale_is_held_by_its_path() -> None:
    report = ceiling(problem_of([LINEAR] * 3, [(0, 1), (1, 2)]))
    assert report.limit is Limit.CRITICAL_PATH
    assert not report.helps
    assert report.reach.parallelism == report.reach.fastest_parallelism == 1.0
    assert report.reach.at_most == pytest.approx(1.0)
    assert [holder.falls_s for holder in report.holders] == [1.0] * 3


def test_a_chain_of_ops_that_do_not_scale_is_told_apart() -> None:
    report = ceiling(problem_of([FLAT, FLAT, LINEAR], [(0, 1), (1, 2)]))
    assert report.limit is Limit.UNSCALED
    assert report.path_unscaled_share == report.reach.unscaled_share == pytest.approx(2 / 3)
    assert not report.helps


def test_ops_that_scale_to_all_cores_gain_nothing_side_by_side() -> None:
    report = ceiling(problem_of([LINEAR] * 4))
    assert report.limit is Limit.CORES
    assert not report.helps
    assert report.reach.parallelism == 4.0
    assert report.reach.at_most == pytest.approx(1.0)


def test_ops_beside_each_other_that_do_not_scale_gain_what_there_are_cores() -> None:
    report = ceiling(problem_of([FLAT] * 8))
    assert report.helps
    assert report.side_by_side_helps
    assert report.reach.at_most == pytest.approx(4.0)
    assert report.reach.unscaled_share == 1.0
    assert report.limit is Limit.CORES


def test_own_thread_counts_are_told_from_running_side_by_side() -> None:
    """A chain of one op that wants one thread and one that wants four: 2.5 s at the best single count, 2 s at both."""
    report = ceiling(problem_of([{1: 1.0, 4: 1.5}, {1: 4.0, 4: 1.0}], [(0, 1)]))
    assert report.helps
    assert not report.side_by_side_helps
    assert (report.reach.uniform_width, report.reach.uniform_s) == (4, 2.5)
    assert report.reach.at_most == pytest.approx(1.25)
    assert report.reach.side_by_side_at_most == pytest.approx(1.0)


def test_ops_shorter_than_their_hand_over_are_too_small() -> None:
    problem = problem_of([{1: 1e-6, 4: 1e-6}] * 8)
    report = ceiling(problem, costs=EngineCosts(op_s=6e-6, team_s=1e-4))
    assert report.limit is Limit.TOO_SMALL
    assert not report.helps
    assert ceiling(problem, costs=EngineCosts(0.0, 0.0)).helps


def test_a_graph_without_time_gains_nothing() -> None:
    report = ceiling(problem_of([{1: 0.0}] * 3, [(0, 1)]))
    assert not report.helps
    assert report.reach.at_most == report.reach.parallelism == 1.0
    assert report.holders == ()


def test_the_holders_are_those_without_which_the_bound_falls_most() -> None:
    """a - b - d is the path, 1 + 5 + 1 s; c beside b takes 3 s, so that without b the path falls by 2 s alone."""
    curves = [{1: 1.0}, {1: 5.0}, {1: 3.0}, {1: 1.0}]
    report = ceiling(problem_of(curves, [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert [(holder.id, holder.falls_s) for holder in report.holders] == [("b", 2.0), ("a", 1.0), ("d", 1.0), ("c", 0)]
    assert [holder.on_path for holder in report.holders] == [True, True, True, False]


def test_where_cores_are_short_the_largest_ops_hold_the_makespan() -> None:
    report = ceiling(problem_of([{1: float(i)} for i in range(1, 21)], cores=2))
    assert len(report.holders) == LISTED
    assert [holder.narrow_s for holder in report.holders] == list(range(20, 10, -1))
    assert report.holders[0].falls_s == 10.0


@settings(max_examples=150)
@given(problem=problems())
def test_the_path_without_an_op_is_that_of_the_graph_in_which_it_takes_no_time(problem: Problem) -> None:
    seconds = problem.times.seconds.min(axis=1)
    found = path_without(problem.graph, seconds)
    for op in range(len(seconds)):
        without = np.where(np.arange(len(seconds)) == op, 0.0, seconds)
        assert found[op] == pytest.approx(levels(problem.graph, without).max())


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_no_plan_on_cores_of_its_own_gains_more_than_the_ceiling(problem: Problem) -> None:
    reach, bound_s = ceiling(problem).reach, lower_bounds(problem).best_s
    assert reach.bound_s == bound_s
    assert reach.fastest_work_s <= reach.uniform_s * (1 + 1e-9)
    assert reach.side_by_side_at_most * (1 + 1e-9) >= 1
    assert reach.side_by_side_at_most <= reach.fastest_parallelism * (1 + 1e-9)
    for name in ("sequential", "cpa", "lp_rounding"):
        assert reach.uniform_s <= reach.at_most * plan(problem, policy=name).makespan_s * (1 + 1e-9)
    assert plan(problem, policy="sequential").makespan_s >= reach.uniform_s * (1 - 1e-9)


SPLIT = (
    ("loss", "mse_loss", {1: 1.0}),
    ("conv2.input", "convolution_backward_input", {1: 4.0, 2: 2.0}),
    ("conv2.weight", "convolution_backward_weight", {1: 6.0, 4: 2.0}),
    ("conv1.weight", "convolution_backward_weight", {1: 3.0}),
    ("update2", "sgd_update", {1: 1.0}),
    ("update1", "sgd_update", {1: 1.0}),
)
SPLIT_EDGES = ((0, 1), (0, 2), (1, 3), (2, 4), (3, 5))


def split_problem(*more: tuple[int, int], rows: tuple[tuple[str, str, dict[int, float]], ...] = SPLIT) -> Problem:
    ids, kinds, curves = zip(*rows)
    edges = tuple(Edge(*pair) for pair in (*SPLIT_EDGES, *more))
    graph = OpGraph(ids, tuple(map(Op, kinds)), edges, dict(zip(ids, curves)))
    machine = Machine.uniform("test", 4)
    return Problem(graph, curves_of(graph, machine), machine)


def test_parts_become_one_op_that_takes_as_long_as_they_do_in_turn() -> None:
    whole = without_split(split_problem())
    assert whole is not None
    assert whole.graph.ids == ("loss", "conv2", "conv1", "update2", "update1")
    assert whole.graph.ops[1].kind == "convolution_backward"
    assert [(e.source, e.target) for e in whole.graph.edges] == [(0, 1), (1, 2), (1, 3), (2, 4)]
    at = dict(zip(whole.times.counts, whole.times.seconds[1]))
    assert (at[1], at[4]) == (10.0, 4.0)  # at 4 threads, the input's gradient stays at its 2


def test_the_split_is_what_lets_the_weights_gradient_run_beside() -> None:
    problem = split_problem()
    report = ceiling(problem, unsplit=without_split(problem))
    assert report.without_split is not None
    assert report.reach.path_s == 1 + 4 + 3 + 1
    assert report.without_split.path_s == 1 + 10 + 3 + 1
    assert report.without_split.work_s == report.reach.work_s == 16


def test_a_bound_of_the_split_step_is_one_of_the_whole_step() -> None:
    problem = split_problem()
    report = ceiling(problem, unsplit=without_split(problem), bound_s=15.5)
    assert report.without_split is not None
    assert (report.reach.bound_s, report.without_split.bound_s) == (15.5, 15.5)


def test_without_parts_nothing_is_known_of_the_split() -> None:
    assert without_split(problem_of([FLAT] * 3)) is None
    assert ceiling(problem_of([FLAT])).to_json()["without_split"] is None


@pytest.mark.parametrize(
    "rows",
    [
        (("conv2", "relu", {1: 1.0}), *SPLIT[1:]),
        (*SPLIT[:-1], ("conv2", "relu", {1: 1.0})),
        (*SPLIT[:2], ("conv2.weight", "layer_norm_backward_weight", {1: 1.0}), *SPLIT[3:]),
    ],
    ids=["name taken before", "name taken behind", "parts of two kinds"],
)
def test_parts_that_no_capture_names_so_are_left_alone(rows: tuple[tuple[str, str, dict[int, float]], ...]) -> None:
    assert without_split(split_problem(rows=rows)) is None


def test_parts_with_an_op_between_them_are_left_alone() -> None:
    assert without_split(split_problem((3, 2))) is None


def test_a_reach_is_json() -> None:
    reach = Reach(1, 2.0, 1.0, 2.0, 1.0, 1, 3.0, 1.5, 0.0)
    assert reach.to_json()["at_most"] == 2.0
    assert reach.to_json()["parallelism"] == 2.0


def test_merging_the_parts_gives_the_graph_that_capture_makes_without_the_split() -> None:
    torch = pytest.importorskip("torch")
    from threadcast.capture.graph.capture import capture_training

    def graph(*, split: bool) -> OpGraph:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.ConvTranspose2d(4, 2, 3), torch.nn.LayerNorm(8)
        )
        x, y = torch.randn(2, 3, 8, 8), torch.randn(2, 2, 8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return capture_training(model, torch.nn.functional.mse_loss, optimizer, [x], y, split=split).graph

    def named(of: OpGraph, *, ordering: bool) -> set[tuple[str, str]]:
        return {(of.ids[edge.source], of.ids[edge.target]) for edge in of.edges if edge.ordering is ordering}

    parts, expected = graph(split=True), graph(split=False)
    machine = Machine.uniform("test", 2)
    with_curves = OpGraph(parts.ids, parts.ops, parts.edges, {op_id: {1: 1.0} for op_id in parts.ids})
    merged = without_split(Problem(with_curves, curves_of(with_curves, machine), machine))
    assert merged is not None
    assert len(parts) > len(expected) == len(merged.graph)
    assert set(merged.graph.ids) == set(expected.ids)
    assert named(merged.graph, ordering=False) == named(expected, ordering=False)
    # capture orders the updates of what one operator returned, which it does not for the parts'
    assert named(merged.graph, ordering=True) <= named(expected, ordering=True)
