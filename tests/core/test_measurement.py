from __future__ import annotations

import pytest

from threadcast.core import Affinity, Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import InvalidInput

OP, MACHINE = Op("relu"), Machine.uniform("m", 2)


def measured(*samples: Sample) -> Measurement:
    return Measurement(OP, MACHINE, Case(1), samples, {"cache": "warm"})


def test_seconds_are_the_median_of_the_samples():
    assert measured(Sample(1.0), Sample(9.0), Sample(2.0)).seconds == 2.0
    assert measured(Sample(1.0), Sample(2.0)).seconds == 1.5


def test_a_counter_is_the_median_of_where_it_was_read():
    one = measured(Sample(1.0, {"c": 4.0, "d": None}), Sample(1.0, {"c": None}), Sample(1.0, {"c": 8.0}))
    assert one.counter("c") == 6.0
    assert one.counter("d") is None
    assert one.counter("e") is None


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_sample_is_finite_and_positive(seconds):
    with pytest.raises(InvalidInput, match="a sample must be finite"):
        Sample(seconds)


@pytest.mark.parametrize("count", [-1.0, float("nan"), float("inf")])
def test_a_count_is_none_or_finite_and_positive(count):
    with pytest.raises(InvalidInput, match="counter cycles="):
        Sample(1.0, {"cycles": count})


@pytest.mark.parametrize("case", [Case(3), Case(2, Affinity.SPREAD)])
def test_a_measurement_is_of_a_case_that_the_machine_has(case):
    with pytest.raises(InvalidInput, match=r"exceeds the . (usable cores|cache groups) of m"):
        Measurement(OP, MACHINE, case, (Sample(1.0),))
