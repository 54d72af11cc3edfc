"""Classes of ops follow from the roofline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import ops
from threadcast.core import Op, TensorSpec
from threadcast.core.errors import InvalidInput
from threadcast.core.op_class import TINY_CALLS, ClassLimits, OpClass

LIMITS = ClassLimits(core_flops_per_s=1e10, core_bytes_per_s=1e9, call_s=1e-6)


def op(flops: float, moved: float) -> Op:
    return Op("some", cost=(flops, moved))


def test_the_ridge_parts_arithmetic_from_memory() -> None:
    assert LIMITS.ridge == 10.0
    assert LIMITS.class_of(op(1e9, 0.99e8)) is OpClass.COMPUTE
    assert LIMITS.class_of(op(1e9, 1.01e8)) is OpClass.MEMORY


def test_an_op_of_little_more_time_than_a_call_is_tiny() -> None:
    least_s = TINY_CALLS * LIMITS.call_s
    assert LIMITS.class_of(op(0.99 * least_s * 1e10, 0)) is OpClass.TINY
    assert LIMITS.class_of(op(1.01 * least_s * 1e10, 0)) is OpClass.COMPUTE
    assert LIMITS.class_of(op(0, 1.01 * least_s * 1e9)) is OpClass.MEMORY


def test_a_view_is_tiny_even_where_calls_cost_nothing() -> None:
    free = ClassLimits(1e10, 1e9, 0.0)
    assert free.class_of(Op("view", (TensorSpec((1 << 20,)),))) is OpClass.TINY
    assert free.class_of(op(1, 1)) is OpClass.MEMORY


@given(ops, st.floats(1.1, 100.0))
def test_less_bandwidth_never_makes_a_memory_bound_op_anything_else(some: Op, times: float) -> None:
    narrower = ClassLimits(LIMITS.core_flops_per_s, LIMITS.core_bytes_per_s / times, LIMITS.call_s)
    if LIMITS.class_of(some) is OpClass.MEMORY:
        assert narrower.class_of(some) is OpClass.MEMORY


@pytest.mark.parametrize(
    "wrong", [(0.0, 1.0, 0.0), (1.0, float("nan"), 0.0), (1.0, 1.0, -1.0), (1.0, 1.0, float("inf"))]
)
def test_impossible_limits_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidInput, match="must be finite"):
        ClassLimits(*wrong)
