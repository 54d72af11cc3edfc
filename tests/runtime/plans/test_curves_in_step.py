"""Curves from traces: whose times they are, and what running beside others adds."""

from __future__ import annotations

import pytest

from threadcast.core import Case, Machine, Op, OpGraph, Placement, TensorSpec, Trace
from threadcast.core.errors import InvalidInput
from threadcast.runtime.plans.curves_in_step import (
    LOOK_CALLS,
    WARM_UP,
    LookSchedule,
    curves_in_step,
)

GRAPH = OpGraph(("a", "b", "c"), tuple(Op(kind, (TensorSpec((2,), "float32"),)) for kind in ("mul", "add", "mul")))


def trace(cores: int, *seconds: float, threads: tuple[int, ...] | None = None) -> Trace:
    """Ops one after the other, the last first: the trace's order is not the graph's."""
    widths = threads or (cores,) * 3
    placed, start = [], 0.0
    for i in (2, 1, 0):
        placed.append(Placement(GRAPH.ids[i], tuple(range(widths[i])), widths[i], start, start + seconds[i]))
        start += seconds[i]
    return Trace(cores, "test", tuple(placed))


def test_every_op_gets_the_median_of_its_own_times() -> None:
    one = [trace(1, 1.0, 2.0, 4.0), trace(1, 3.0, 2.0, 8.0), trace(1, 2.0, 9.0, 6.0)]
    curves = curves_in_step(GRAPH, {Case(1): one, Case(2): [trace(2, 1.0, 1.0, 1.0)]})
    assert curves.seconds[:, 0].tolist() == pytest.approx([2.0, 2.0, 6.0])
    assert curves.seconds[:, 1].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert (curves.low <= curves.seconds).all()
    assert (curves.seconds <= curves.high).all()


def test_a_case_without_traces_is_refused() -> None:
    with pytest.raises(InvalidInput, match="trace"):
        curves_in_step(GRAPH, {Case(1): []})


@pytest.mark.parametrize(
    ("cores", "counts", "most", "steps"),
    [(1, [1], 1, 5), (2, [2, 1], 2, 5), (3, [3, 2, 1], 3, 3), (4, [4, 3, 2, 1], 4, 2), (16, [16], 4, 2),
     (256, [256], 4, 2)],
)  # fmt: skip
def test_looks_begin_with_all_cores_and_take_few_calls(cores: int, counts: list[int], most: int, steps: int) -> None:
    looks = LookSchedule.of(Machine.uniform("m", cores))
    assert [case.threads for case in looks.cases] == counts
    assert (looks.most, looks.steps) == (most, steps)
    assert looks.most * (WARM_UP + looks.steps) <= LOOK_CALLS
    assert [looks.slowdown(i) for i in range(looks.uniform)] == [cores / count for count in counts]
    assert looks.slowdown(looks.uniform) == 1.0
