"""The analytic model: its cases, the directions it must move in, and its libraries' rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.xeon_phi_tables import table_op
from threadcast.collector.simulated.constants import PEAK_FLOPS_PER_S
from threadcast.collector.simulated.demand import Library, demand
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import Affinity, Case, Op, TensorSpec
from threadcast.core.errors import InvalidInput

MODEL = XeonPhi()
ALL = np.arange(1, 69)


def convolution(channels: int, side: int, *, batch: int = 32, filters: int = 384) -> Op:
    image, weight = TensorSpec((batch, channels, side, side)), TensorSpec((filters, channels, 3, 3))
    return Op("convolution", (image, weight), outputs=(TensorSpec((batch, filters, side, side)),))


def elementwise(numel: int, kind: str = "add") -> Op:
    return Op(kind, (TensorSpec((numel,)), TensorSpec((numel,))), outputs=(TensorSpec((numel,)),))


def product(rows: int, inner: int, columns: int) -> Op:
    left, right = TensorSpec((rows, inner)), TensorSpec((inner, columns))
    return Op("mm", (left, right), outputs=(TensorSpec((rows, columns)),))


def test_the_machine_has_the_68_cases_of_the_paper():
    cases = MODEL.machine.cases()
    assert len(MODEL.machine) == 68
    assert len(cases) == 68
    assert sum(case.affinity is Affinity.SPREAD for case in cases) == 34
    assert {case.threads % 2 for case in cases if case.affinity is Affinity.COMPACT} == {0}


def test_a_place_that_the_machine_lacks_is_refused():
    with pytest.raises(InvalidInput, match="threads=35 spread exceeds the 34"):
        MODEL.seconds(convolution(64, 8), Case(35, Affinity.SPREAD))
    with pytest.raises(InvalidInput, match="threads=69 compact exceeds the 68"):
        MODEL.seconds(convolution(64, 8), Case(69))


@given(st.integers(16, 1024), st.integers(4, 64), st.integers(1, 68))
def test_no_convolution_is_faster_than_the_cores_peak(channels: int, side: int, threads: int):
    op = convolution(channels, side)
    assert MODEL.seconds(op, Case(threads)) >= op.flops / (threads * PEAK_FLOPS_PER_S)


@given(st.integers(16, 2048), st.integers(4, 64))
def test_a_convolutions_curve_falls_once_and_then_rises(channels: int, side: int):
    even = MODEL.curve(convolution(channels, side), ALL[1::2])
    falls = np.diff(even) < 0
    assert not np.any(np.diff(falls.astype(int)) > 0)


def test_sharing_a_tile_helps_ops_that_share_a_filter_and_harms_ops_that_only_stream():
    filtered, streamed = table_op("Conv2D", "32x8x8x384"), elementwise(20_000_000, "relu")
    assert MODEL.seconds(filtered, Case(34)) < MODEL.seconds(filtered, Case(34, Affinity.SPREAD))
    assert MODEL.seconds(streamed, Case(34)) > MODEL.seconds(streamed, Case(34, Affinity.SPREAD))


def test_the_largest_filter_wants_the_most_threads():
    small, large = (MODEL.curve(table_op("Conv2D", shape), ALL) for shape in ("32x8x8x384", "32x8x8x2048"))
    assert np.argmin(small) < np.argmin(large)


def test_short_rows_and_few_channels_leave_vector_units_idle():
    assert demand(convolution(384, 8)).fill == pytest.approx(8 / 12)
    assert demand(convolution(384, 17)).fill == 1.0
    assert demand(convolution(384, 17, filters=4)).fill == pytest.approx(4 / 16)
    image, weight = TensorSpec((32, 64, 4, 4)), TensorSpec((64, 64, 1, 1))
    assert demand(Op("convolution", (image, weight), outputs=(image,))).fill == 1.0, "the image is as one row"


def test_mkl_takes_fewer_threads_where_more_would_be_slower():
    curve = MODEL.curve(product(20, 200, 800), ALL)
    assert np.all(np.diff(curve) <= 0)
    assert curve[-1] == curve[40]


def test_eigen_takes_the_part_of_its_pool_that_it_thinks_the_op_is_worth():
    small, large = elementwise(1000), elementwise(10_000_000)
    assert demand(small).library is Library.EIGEN
    assert MODEL.active_threads(small, 68) == 1
    assert MODEL.active_threads(large, 68) == 68
    assert len(set(MODEL.curve(small, ALL).tolist())) == 1


def test_a_second_thread_a_core_costs_its_start_and_gains_no_more_than_hyper_threading_does():
    op = convolution(384, 17)
    alone, crowded = MODEL.crowded_seconds(op, 68, 68), MODEL.crowded_seconds(op, 136, 68)
    assert alone == MODEL.seconds(op, Case(68))
    assert alone / MODEL.constants.smt_throughput < crowded < alone * 1.5
