"""Curves of a service: kept by key and model version, with their age, and never mixed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clock import Clock
from tests.prediction.predicting import MACHINE, OPS, assert_same, local
from threadcast.core import CurveTable
from threadcast.prediction.versioned_curves import VersionedCurves

KEYS = [op.key for op in OPS]


@pytest.fixture
def kept(clock: Clock) -> VersionedCurves:
    return VersionedCurves(MACHINE.cases(), fresh_s=60.0, clock=clock)


def table(which: Sequence[int], *, version: int = 1) -> CurveTable:
    return local(0.1 * version, version=f"m@{version}").curves([OPS[i] for i in which])


def add(kept: VersionedCurves, which: Sequence[int], *, version: int = 1) -> None:
    kept.add([KEYS[i] for i in which], table(which, version=version))


def test_fresh_curves_are_answered_with_their_age(kept: VersionedCurves, clock: Clock) -> None:
    add(kept, [0, 1])
    clock.now_s = 60.0
    found = kept.known([KEYS[1], KEYS[0]])
    assert found is not None
    assert (found.age_s, kept.wanted(KEYS[:2])) == (60.0, [])
    assert_same(found.table, table([1, 0]))


def test_curves_that_are_too_old_are_answered_and_named(kept: VersionedCurves, clock: Clock) -> None:
    add(kept, [0])
    clock.now_s = 50.0
    add(kept, [1])
    clock.now_s = 61.0
    found = kept.known(KEYS[:2])
    assert found is not None
    assert (found.age_s, kept.wanted(KEYS[:2])) == (61.0, [0])


def test_a_curve_asked_for_anew_takes_the_place_of_the_old_one(kept: VersionedCurves, clock: Clock) -> None:
    add(kept, [0, 1, 2])
    clock.now_s = 61.0
    changed = local(0.7, version="m@1").curves([OPS[1]])
    for _ in range(3):
        kept.add([KEYS[1]], changed)
    found = kept.known(KEYS)
    assert found is not None
    assert kept.wanted(KEYS) == [0, 2]
    assert_same(found.table.take([1]), changed)
    assert_same(found.table.take([0, 2]), table([0, 2]))


def test_an_answer_of_another_model_takes_the_place_of_all(kept: VersionedCurves) -> None:
    add(kept, [0, 1])
    add(kept, [1], version=2)
    found = kept.known(KEYS)
    assert found is not None
    assert (found.table.model, found.rows, kept.model) == ("m@2", (1,), "m@2")
    assert kept.wanted([KEYS[1], KEYS[0], KEYS[0]]) == [1]


@given(st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 2), min_size=1)), max_size=12))
def test_whatever_is_added_a_table_is_one_versions_own(steps: list[tuple[int, set[int]]]) -> None:
    kept = VersionedCurves(MACHINE.cases(), fresh_s=60.0, clock=Clock())
    for version, some in steps:
        which = sorted(some)
        add(kept, which, version=version)
        for asked in ([0], [1, 2], [2, 0, 1, 2]):
            found = kept.known([KEYS[i] for i in asked])
            if found is not None and len(found.rows) == len(asked):
                assert_same(found.table, table(asked, version=int(found.table.model[-1])))
        assert (kept.model, kept.wanted([KEYS[i] for i in which])) == (f"m@{version}", [])
