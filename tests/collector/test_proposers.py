"""Fixed choices of cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.collector.proposers import EvenlySpread, FixedProposer
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import InvalidInput

MACHINE = Machine.uniform("sixteen", 16, group_size=2)
OP = Op("mm")


def follow(proposer: FixedProposer, machine: Machine) -> list[Case]:
    observed: list[Measurement] = []
    while (case := proposer.propose(OP, observed, machine)) is not None:
        observed.append(Measurement(OP, machine, case, (Sample(1.0),)))
    return [found.case for found in observed]


def test_a_spread_has_both_ends_and_even_steps():
    every = MACHINE.cases()
    assert len(every) == 16
    assert EvenlySpread(4).cases(MACHINE) == (every[0], every[5], every[10], every[15])
    assert EvenlySpread(1).cases(MACHINE) == (every[-1],)


@given(st.integers(1, 100), st.integers(1, 20))
def test_a_spread_has_as_many_different_cases_as_asked_for_or_there_are(count, cores):
    machine = Machine.uniform("any", cores)
    chosen = follow(EvenlySpread(count), machine)
    assert len(chosen) == len(set(chosen)) == min(count, len(machine.cases()))
    assert set(chosen) <= set(machine.cases())


def test_a_spread_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="count=0"):
        EvenlySpread(0)
