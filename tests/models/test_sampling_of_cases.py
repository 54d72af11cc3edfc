"""Evenly spread cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Affinity, Case, Machine
from threadcast.core.errors import InvalidInput
from threadcast.models.sampling import evenly_spread

KNL = Machine.uniform("Xeon Phi 7250", 68, group_size=2).cases()


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_on_the_paper_s_machine_both_affinities_are_sampled_over_their_whole_range(count):
    chosen = evenly_spread(KNL, count)
    assert len(chosen) == count
    compact = [case.threads for case in chosen if case.affinity is Affinity.COMPACT]
    spread = [case.threads for case in chosen if case.affinity is Affinity.SPREAD]
    assert len(compact) - len(spread) in (0, 1)
    if count > 1:
        assert (min(spread), max(spread), min(compact), max(compact)) == (1, 34, 2, 68)


def test_a_single_sample_is_in_the_middle():
    assert evenly_spread(KNL, 1) == (Case(34),)
    assert evenly_spread(Machine.uniform("two", 2).cases(), 1) == (Case(1),)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 70))
def test_as_many_as_asked_for_or_all_each_once(cores, group_size, count):
    cases = Machine.uniform("any", cores, group_size=group_size).cases()
    chosen = evenly_spread(cases, count)
    assert len(chosen) == min(count, len(cases))
    assert set(chosen) <= set(cases)
    assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize("count", [0, -3, 2.0, True, None])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(InvalidInput, match="samples="):
        evenly_spread(KNL, count)
