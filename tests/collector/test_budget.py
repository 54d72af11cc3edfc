"""Sharing a campaign's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.collector.budget import MAX_MEANS, MIN_MEANS, allotment_s, guess_s, shares
from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec

weights = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)


@given(weights)
def test_shares_add_up_and_follow_the_weights(values):
    given_out = shares(values)
    assert sum(given_out) == pytest.approx(1)
    assert sorted(given_out) == [share for _, share in sorted(zip(values, given_out))]


@given(weights, st.floats(0.001, 10))
def test_ops_that_use_up_their_allotments_take_the_budget_unless_held_by_the_bounds(values, mean_s):
    left_s, shares_left, taken = mean_s * len(values), 1.0, []
    for share in shares(values):
        taken.append(allotment_s(left_s, share, shares_left, mean_s))
        left_s, shares_left = left_s - taken[-1], shares_left - share
    assert all(MIN_MEANS * mean_s <= one <= MAX_MEANS * mean_s for one in taken)
    if max(taken) < MAX_MEANS * mean_s:
        assert sum(taken) == pytest.approx(mean_s * len(values))


def test_what_one_op_does_not_use_goes_to_the_next():
    assert allotment_s(2.0, 0.5, 1.0, 1.0) == 1.0
    assert allotment_s(1.9, 0.5, 0.5, 1.0) == 1.9
    assert allotment_s(-3.0, 0.5, 0.5, 1.0) == MIN_MEANS, "an overspent budget leaves a little"
    assert shares([0.0, 0.0]) == [0.5, 0.5]
    assert shares([]) == []


def test_a_measured_op_weighs_what_it_took():
    op = Op("mm", (TensorSpec((8, 8)), TensorSpec((8, 8))), outputs=(TensorSpec((8, 8)),))
    machine = Machine.uniform("two", 2)
    assert 0 < guess_s(op, Case(2), []) <= guess_s(op, Case(1), [])
    assert guess_s(op, Case(2), [Measurement(op, machine, Case(1), (Sample(3.0),))]) == 3.0
