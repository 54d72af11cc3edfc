from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import cases, seconds
from threadcast.core import Affinity, Case, Curve, CurveTable, Source
from threadcast.core.errors import InvalidInput

THREE = (Case(1), Case(2), Case(4))


@st.composite
def curves(draw: st.DrawFn, over: tuple[Case, ...] | None = None) -> Curve:
    chosen = over or tuple(draw(st.lists(cases, min_size=1, max_size=6, unique=True)))
    middle = np.array([draw(seconds) for _ in chosen])
    below, above = draw(st.floats(0, 1)), draw(st.floats(1, 3))
    source = tuple(draw(st.sampled_from(Source)) for _ in chosen)
    return Curve(chosen, middle, middle * below, middle * above, source)


def same(one: Curve, other: Curve) -> bool:
    arrays = all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("seconds", "low", "high"))
    return arrays and (one.cases, one.source) == (other.cases, other.source)


@given(curves())
def test_the_best_case_is_nowhere_beaten(curve):
    best = curve.best()
    assert curve.at(best) == curve.seconds.min()
    equals = [case.threads for case in curve.cases if curve.at(case) == curve.at(best)]
    assert best.threads == min(equals)


@given(curves())
def test_by_threads_is_the_better_affinity_in_order(curve):
    found = curve.by_threads()
    assert list(found) == sorted({case.threads for case in curve.cases})
    assert all(found[case.threads] <= curve.at(case) for case in curve.cases)


@given(st.lists(curves(THREE), min_size=1, max_size=4))
def test_a_table_gives_back_the_curves_that_it_was_made_of(some):
    table = CurveTable.of(some, model="m@1")
    assert len(table) == len(some)
    assert all(same(table[i], curve) for i, curve in enumerate(some))
    document = table.to_json()
    assert document["cases"][2] == {"threads": 4, "affinity": "compact"}
    assert document["source"][0] == [source.value for source in some[0].source]
    assert document["model"] == "m@1"


@given(st.lists(curves(THREE), min_size=2, max_size=4), st.data())
def test_taking_rows_repeats_and_orders_them(some, data):
    rows = data.draw(st.lists(st.integers(0, len(some) - 1), min_size=1, max_size=6))
    taken = CurveTable.of(some).take(rows)
    assert all(same(taken[i], some[row]) for i, row in enumerate(rows))


def test_an_exact_curve_has_no_width():
    curve = Curve.exact(iter(THREE), iter([3.0, 2.0, 1.0]))
    assert curve.low.tolist() == curve.high.tolist() == curve.seconds.tolist() == [3.0, 2.0, 1.0]
    assert curve.source == (Source.MEASURED,) * 3
    assert curve.seconds.dtype == np.float64


def test_a_case_that_the_curve_lacks_is_refused_with_those_it_has():
    with pytest.raises(InvalidInput, match="no case 8 spread; it has 1 compact, 2 compact, 4 compact"):
        Curve.exact(THREE, [3.0, 2.0, 1.0]).at(Case(8, Affinity.SPREAD))


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


def test_the_curves_of_a_table_have_the_same_cases():
    with pytest.raises(InvalidInput, match="same cases"):
        CurveTable.of([Curve.exact(THREE, [1.0] * 3), Curve.exact(THREE[:2], [1.0] * 2)])
    with pytest.raises(InvalidInput, match="at least one curve"):
        CurveTable.of([])


def test_the_arrays_of_a_table_have_one_shape():
    ones, source = np.ones((2, 3)), np.zeros((2, 3), dtype=np.int8)
    with pytest.raises(InvalidInput, match=r"seconds has shape \(3,\)"):
        CurveTable(THREE, np.ones(3), ones, ones, source)
    with pytest.raises(InvalidInput, match=r"high has shape \(1, 3\), expected \(2, 3\)"):
        CurveTable(THREE, ones, ones, np.ones((1, 3)), source)


def test_a_table_with_cases_that_are_not_offered_is_sent_as_strict_json():
    seconds = np.array([[1.0, np.inf]])
    table = CurveTable((Case(1), Case(2)), seconds, seconds, seconds, np.zeros((1, 2), dtype=np.int8))
    assert json.loads(json.dumps(table.to_json(), allow_nan=False))["seconds"] == [[1.0, None]]
