from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.core.strategies import THREE, curves
from threadcast.core import Curve, Source
from threadcast.core.errors import InvalidInput


@given(curves())
def test_the_best_case_is_nowhere_beaten(curve):
    best = curve.best()
    assert curve.at(best) == curve.seconds.min()
    equals = [case.threads for case in curve.cases if curve.at(case) == curve.at(best)]
    assert best.threads == min(equals)


@pytest.mark.parametrize(
    ("middle", "low", "high", "message"),
    [
        ([1.0, 2.0], [1.0] * 3, [1.0] * 3, r"seconds has shape \(2,\), expected \(3,\)"),
        ([1.0, np.nan, 1.0], [0.0] * 3, [1.0] * 3, "seconds must be finite"),
        ([1.0, -1.0, 1.0], [-1.0] * 3, [1.0] * 3, "seconds must be finite and at least 0"),
        ([1.0] * 3, [0.0] * 3, [np.inf] * 3, "high must be finite"),
        ([1.0] * 3, [1.1] * 3, [2.0] * 3, "enclose"),
        ([1.0] * 3, [0.5] * 3, [0.9] * 3, "enclose"),
    ],
)
def test_a_curve_is_finite_and_inside_its_interval(middle, low, high, message):
    with pytest.raises(InvalidInput, match=message):
        Curve(THREE, np.array(middle), np.array(low), np.array(high), (Source.LEARNED,) * 3)


def test_a_curve_has_cases_and_a_source_for_each():
    empty = np.zeros(0)
    with pytest.raises(InvalidInput, match="at least one case"):
        Curve((), empty, empty, empty, ())
    ones = np.ones(3)
    with pytest.raises(InvalidInput, match="2 sources for 3 cases"):
        Curve(THREE, ones, ones, ones, (Source.LEARNED,) * 2)
