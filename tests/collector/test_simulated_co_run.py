"""Slow-down beside other ops: the two co-run rows that it is calibrated on, and the scheduler's contract."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.xeon_phi_tables import table_op
from threadcast.collector.simulated.co_run import XeonPhiCoRun
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import Case, Op, OpGraph, TensorSpec

MODEL = XeonPhi()
PAIR = [table_op(name, "32x8x8x2048") for name in ("Conv2DBackpropFilter", "Conv2DBackpropInput")]
SMALL = Op("add", (TensorSpec((8,)), TensorSpec((8,))), outputs=(TensorSpec((8,)),))
GRAPH = OpGraph(("weight", "input", "small"), (*PAIR, SMALL))
ALL, LEFT, RIGHT = tuple(range(68)), tuple(range(34)), tuple(range(34, 68))


@dataclass(frozen=True)
class At:
    op: int
    cores: tuple[int, ...]
    threads: int


def slowdowns(*running: At) -> list[float]:
    return XeonPhiCoRun(MODEL, GRAPH).slowdowns(running)


def test_an_op_alone_is_not_slowed():
    assert slowdowns(At(0, ALL, 68)) == [1.0]
    assert slowdowns(At(2, (5,), 1)) == [1.0]


def test_the_pair_on_half_of_the_cores_each_gains_what_table_iii_says():
    factors = slowdowns(At(0, LEFT, 34), At(1, RIGHT, 34))
    together = max(f * MODEL.seconds(op, Case(34)) for f, op in zip(factors, PAIR))
    in_turn = sum(MODEL.seconds(op, Case(68)) for op in PAIR)
    assert in_turn / together == pytest.approx(1.38, abs=0.01)


def test_the_pair_on_the_same_cores_gains_what_hyper_threading_does():
    factors = slowdowns(At(0, ALL, 68), At(1, ALL, 68))
    assert factors == pytest.approx([2 / 1.03] * 2, rel=1e-3)
    four, five = (slowdowns(*[At(0, ALL, 68)] * n)[0] for n in (4, 5))
    assert four == pytest.approx(4 / 1.03, rel=1e-3)
    assert five == pytest.approx(5.0), "more threads than the hardware has share time"


def test_a_small_eigen_op_hardly_slows_the_op_beside_it_though_it_holds_all_cores():
    host, small = slowdowns(At(0, ALL, 68), At(2, ALL, 68))
    assert host == pytest.approx(1.0, abs=0.03)
    assert small > 1.5


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 68), st.integers(0, 67), st.integers(1, 4)), max_size=6))
def test_factors_keep_the_schedulers_contract(drawn: list[tuple[int, int, int, int]]):
    running = [
        At(op, tuple(sorted((start + i) % 68 for i in range(width))), width * depth)
        for op, width, start, depth in drawn
    ]
    co_run = XeonPhiCoRun(MODEL, GRAPH)
    factors = co_run.slowdowns(running)
    assert all(1 / co_run.core_throughput <= factor < 1e6 for factor in factors)
    assert co_run.slowdowns(running[::-1]) == pytest.approx(factors[::-1])
