"""Milliseconds among seconds are told, whatever they are among; real differences are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Case, Op, Sample
from threadcast.core.measurement import TIMED
from threadcast.models.measured import group
from threadcast.models.units import odd_units

OPS = make_ops(24)
MEASURED = measure_all(OPS)


def in_milliseconds(wrong):
    """All that was measured, with times a thousand times as large where `wrong` says so of a measurement."""
    return [replace(m, samples=tuple(Sample(1e3 * s.seconds) for s in m.samples)) if wrong(m) else m for m in MEASURED]


def said(measured):
    return odd_units(group(measured))


def test_nothing_is_said_of_times_in_one_unit():
    assert said(MEASURED) == said(in_milliseconds(lambda m: True)) == ()


def test_nothing_is_said_of_small_ops_that_take_as_long_as_large_ones():
    assert said([replace(m, samples=(Sample(1e-4 + s.seconds * 1e-3),)) for m in MEASURED for s in m.samples[:1]]) == ()


@pytest.mark.parametrize("wrong", [{2}, {2, 5, 8}, set(range(2, 24, 6))], ids=["one", "some", "every other one"])
def test_ops_that_are_far_slower_than_others_of_their_kind_are_named(wrong):
    keys = {OPS[i].key for i in wrong}
    (sentence,) = said(in_milliseconds(lambda m: m.op.key in keys))
    assert "of kind softmax" in sentence
    assert any(key in sentence for key in keys)


def test_a_case_that_is_far_slower_than_those_beside_it_is_named():
    (sentence,) = said(in_milliseconds(lambda m: m.op == OPS[0] and m.case == Case(4)))
    assert f"{OPS[0].key} at 4 compact" in sentence


def test_ops_of_unknown_work_are_not_held_against_each_other():
    def unknown(op):
        return Op("op", attributes={"label": op.key})

    keys = {OPS[2].key}
    assert said([replace(m, op=unknown(m.op)) for m in in_milliseconds(lambda m: m.op.key in keys)]) == ()
    (sentence,) = said(
        [replace(m, op=unknown(m.op)) for m in in_milliseconds(lambda m: m.op.key in keys and m.case == Case(4))]
    )
    assert OPS[2].key in sentence


@pytest.mark.parametrize("more", [1, 2], ids=["half", "a third"])
def test_samples_that_are_far_slower_than_others_of_their_case_are_named(more):
    mixed = [
        replace(m, samples=(*m.samples[:1] * more, Sample(1e3 * m.samples[0].seconds))) if m.op == OPS[3] else m
        for m in MEASURED
    ]
    assert f"samples of {OPS[3].key} at " in said(mixed)[0]


@pytest.mark.parametrize("others", [1, 2])
def test_a_machine_that_is_far_slower_than_others_at_the_same_is_named(others):
    slow = in_milliseconds(lambda m: True)
    named = [replace(slow[0].machine, name=f"fast-{i}") for i in range(others)]
    fast = [replace(m, machine=machine) for machine in named for m in MEASURED]
    (sentence,) = said([*fast, *slow])
    assert sentence.startswith(f"what {MEASURED[0].machine.fingerprint} measured: about 1,000 times off")
    assert said(fast) == said([*fast, *slow[:2]]) == ()


def test_nothing_is_asked_of_what_threadcast_timed_itself():
    wrong = in_milliseconds(lambda m: m.op == OPS[0])
    assert said(wrong)
    assert said([replace(m, conditions={**m.conditions, TIMED: 3}) for m in wrong]) == ()
