"""Cores are divided so that no other division gets on faster."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadcast.core.errors import InvalidInput
from threadcast.malleable.division import STAYS_WITHIN, Claim, divide, in_time
from threadcast.malleable.party import Party


def curve(serial: float) -> dict[int, float]:
    return {cores: 1 / (serial + (1 - serial) / cores) for cores in (1, 2, 4, 8)}


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10), st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(4, 9),
)
@settings(max_examples=60, deadline=None)
def test_no_division_is_better(asked, cores):
    claims = {str(i): Claim(weight, least, None, curve(serial)) for i, (serial, weight, least) in enumerate(asked)}
    found = divide(claims, cores)
    if len(claims) >= cores:
        assert set(found.values()) == {1}
        return
    worth = {name: claim.worth(cores) for name, claim in claims.items()}
    fits = sum(claim.least for claim in claims.values()) <= cores
    counts = [range(claim.least if fits else 1, cores + 1) for claim in claims.values()]
    best = max(
        sum(worth[name][count] for name, count in zip(claims, division, strict=True))
        for division in product(*counts)
        if sum(division) <= cores
    )
    assert sum(found.values()) <= cores
    assert sum(worth[name][count] for name, count in found.items()) == pytest.approx(best)


def test_processes_of_which_nothing_is_known_get_equal_shares():
    assert divide({"a": Claim(), "b": Claim()}, 2) == {"a": 1, "b": 1}
    assert sorted(divide({"a": Claim(), "b": Claim(), "c": Claim()}, 12).values()) == [4, 4, 4]


def test_a_process_alone_gets_everything_but_no_more_than_it_may():
    assert divide({"a": Claim()}, 8) == {"a": 8}
    assert divide({"a": Claim(most=3)}, 8) == {"a": 3}
    assert divide({}, 8) == {}


def test_one_that_does_not_scale_gives_way_to_one_that_does():
    found = divide({"serial": Claim(progress=curve(1.0)), "parallel": Claim(progress=curve(0.0))}, 8)
    assert found == {"serial": 1, "parallel": 7}


def test_one_that_gets_slower_with_more_cores_is_not_given_them():
    found = divide({"a": Claim(progress={1: 1.0, 2: 1.5, 4: 1.2, 8: 0.7})}, 8)
    assert found == {"a": 2}


def test_weights_count():
    heavy = divide({"a": Claim(weight=5, progress=curve(0.1)), "b": Claim(progress=curve(0.1))}, 8)
    assert heavy["a"] > heavy["b"] >= 1


def test_more_processes_than_cores_share():
    assert divide(dict.fromkeys("abcd", Claim(least=2)), 2) == dict.fromkeys("abcd", 1)


def test_a_division_that_is_nearly_as_good_stays():
    claims = {"a": Claim(progress=curve(0.1)), "b": Claim(progress=curve(0.1001))}
    kept = divide(claims, 9, {"a": 4, "b": 5})
    assert kept == {"a": 4, "b": 5}
    assert divide(claims, 9, {"a": 8, "b": 1}) != {"a": 8, "b": 1}
    assert divide(claims, 9, {"a": 9}) != {"a": 9}
    assert 0 < STAYS_WITHIN < 0.1


def test_what_is_not_known_is_taken_to_scale_a_little_less_than_perfectly():
    worth = Claim(progress={2: 10.0}).worth(4)
    assert np.all(np.diff(worth) > 0)
    assert worth[2] / worth[1] < 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": 0}, {"weight": float("nan")}, {"least": 0}, {"least": 3, "most": 2}, {"progress": {0: 1.0}},
        {"progress": {1: -1.0}},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInput):
        Claim(**wrong)


def test_rates_of_zero_say_nothing():
    zero, unknown = Claim(progress={1: 0.0, 4: 0.0}, needs_per_s=0.5), Claim(needs_per_s=0.5)
    assert zero.fewest(8) is None
    assert in_time({"a": zero}, {"a": 4}) == {}
    assert divide({"a": zero, "b": Claim()}, 8) == divide({"a": unknown, "b": Claim()}, 8) == {"a": 4, "b": 4}
    assert Claim(progress={1: 0.0, 4: 4.0}, needs_per_s=3.9).fewest(8) == 4


def test_expected_rates_are_scaled_to_what_is_measured_between_their_numbers_of_cores():
    party = Party(Claim(progress={1: 1.0, 4: 4.0, 8: 0.0}))
    assert party.known_rates() == {1: 1.0, 4: 4.0}
    party.rates.by_cores = {2: 100.0}
    assert party.known_rates() == pytest.approx({1: 50.0, 2: 100.0, 4: 200.0})
    party.rates.by_cores = {2: 100.0, 4: 220.0}
    assert party.known_rates() == pytest.approx({1: 55.0, 2: 100.0, 4: 220.0})
