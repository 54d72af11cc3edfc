"""Cores are divided so that no other division gets on faster."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadcast.core.errors import InvalidInput
from threadcast.malleable.division import STAYS_WITHIN, Claim, divide
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


@pytest.mark.parametrize(
    ("claims", "cores", "found"),
    [
        ({"a": Claim(), "b": Claim()}, 2, {"a": 1, "b": 1}),
        (dict.fromkeys("abc", Claim()), 12, dict.fromkeys("abc", 4)),
        ({"a": Claim()}, 8, {"a": 8}),
        ({"a": Claim(most=3)}, 8, {"a": 3}),
        ({}, 8, {}),
        ({"serial": Claim(progress=curve(1.0)), "b": Claim(progress=curve(0.0))}, 8, {"serial": 1, "b": 7}),
        ({"slower": Claim(progress={1: 1.0, 2: 1.5, 4: 1.2, 8: 0.7})}, 8, {"slower": 2}),
        ({"heavy": Claim(weight=5, progress=curve(0.1)), "b": Claim(progress=curve(0.1))}, 8, {"heavy": 7, "b": 1}),
        (dict.fromkeys("abcd", Claim(least=2)), 2, dict.fromkeys("abcd", 1)),
        ({"zero": Claim(progress={1: 0.0, 4: 0.0}), "b": Claim()}, 8, {"zero": 4, "b": 4}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_each_gets_what_it_makes_most_of(claims, cores, found):
    assert divide(claims, cores) == found


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


@pytest.mark.parametrize("serial", [0.0, 0.05, 0.6, 1.0])
def test_two_known_numbers_of_cores_say_how_it_scales_beyond_them(serial):
    known = {cores: 1 / (serial + (1 - serial) / cores) for cores in range(1, 65)}
    claim = Claim(progress={cores: known[cores] for cores in (3, 4)})
    assert [claim.rate(cores) for cores in (1, 8, 64)] == pytest.approx([known[cores] for cores in (1, 8, 64)])
    assert Claim(progress={4: 10.0, 8: 9.0}).rate(64) == 9.0
    assert Claim(progress={1: 1.0, 2: 3.0}).rate(64) == pytest.approx(96.0), "more than linear is linear beyond"


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


def test_expected_rates_are_scaled_to_what_is_measured_between_their_numbers_of_cores():
    party = Party(Claim(progress={1: 1.0, 4: 4.0, 8: 0.0}))
    assert party.known_rates() == {1: 1.0, 4: 4.0}
    party.rates.by_cores = {2: 100.0}
    assert party.known_rates() == pytest.approx({1: 50.0, 2: 100.0, 4: 200.0})
    party.rates.by_cores = {2: 100.0, 4: 220.0}
    assert party.known_rates() == pytest.approx({1: 55.0, 2: 100.0, 4: 220.0})
