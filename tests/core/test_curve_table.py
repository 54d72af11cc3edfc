"""Tables of curves: stacked, concatenated, and reduced to some rows or cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import THREE, curves, same_curve
from threadcast.core import Case, Curve, CurveTable
from threadcast.core.errors import InvalidInput


@given(st.lists(curves(THREE), min_size=1, max_size=4))
def test_a_table_gives_back_the_curves_that_it_was_made_of(some):
    table = CurveTable.of(some, model="m@1")
    assert len(table) == len(some)
    assert all(same_curve(table[i], curve) for i, curve in enumerate(some))
    assert table.model == "m@1"


def test_the_curves_of_a_table_have_the_same_cases():
    with pytest.raises(InvalidInput, match="same cases"):
        CurveTable.of([Curve.exact(THREE, [1.0] * 3), Curve.exact(THREE[:2], [1.0] * 2)])
    with pytest.raises(InvalidInput, match="at least one curve"):
        CurveTable.of([])


@given(st.lists(st.lists(curves(THREE), min_size=1, max_size=3), min_size=1, max_size=3))
def test_concatenated_tables_have_the_rows_of_all_in_order(parts):
    tables = [CurveTable.of(part, model=f"m@{n}") for n, part in enumerate(parts)]
    whole = CurveTable.concat([CurveTable.empty(THREE), *tables])
    rows = [curve for part in parts for curve in part]
    assert len(whole) == len(rows)
    assert all(same_curve(whole[i], curve) for i, curve in enumerate(rows))
    assert whole.model == tables[-1].model


@given(st.lists(curves(THREE), min_size=1, max_size=4), st.permutations(THREE), st.integers(1, 3))
def test_a_table_at_some_cases_has_their_columns_in_order(some, order, count):
    table = CurveTable.of(some, model="m@1").at_cases(order[:count])
    assert (table.cases, table.model) == (tuple(order[:count]), "m@1")
    assert all(table[i].at(case) == curve.at(case) for i, curve in enumerate(some) for case in order[:count])


def test_cases_that_a_table_lacks_are_named():
    table = CurveTable.empty(THREE)
    assert table.at_cases(None) is table
    with pytest.raises(InvalidInput, match="cases 8 compact are not among the 3 of the machine: 1 compact, 2 compact"):
        table.at_cases([Case(1), Case(8)])
    with pytest.raises(InvalidInput, match=r"\(none\)"):
        table.at_cases([])
