"""Measurements grouped by op, and what cannot be learned from."""

from dataclasses import replace

import pytest

from tests.models.synthetic_ops import MACHINE, make_ops, measure, measure_all
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import ModelError
from threadcast.models.interpolation import measured_knots
from threadcast.models.measured import by_case, group, usable

OPS = make_ops(4)


def with_seconds(measurement, seconds):
    return replace(measurement, samples=(Sample(seconds),))


def test_repeated_measurements_of_a_case_are_put_together():
    first, second = measure(OPS[0], Case(2)), with_seconds(measure(OPS[0], Case(2)), 1.0)
    (entry,) = group([first, second])
    assert entry.by_case[Case(2)].samples == first.samples + second.samples


def test_a_cold_measurement_is_not_learned_from_and_counts_only_without_a_warm_one():
    warm, cold = (replace(measure(OPS[0], Case(2)), conditions={"cache": state}) for state in ("warm", "cold"))
    assert group([cold]) == ()
    assert by_case([cold, warm]) == by_case([warm, cold]) == by_case([warm])
    assert by_case([cold])[Case(2)] is cold
    rotated = replace(cold, conditions={"cache": "rotated"})
    assert by_case([warm, rotated, cold]) == by_case([rotated])


def test_the_same_op_on_two_machines_is_two_entries():
    other = Machine.uniform("other", 4)
    entries = group([measure(OPS[0], Case(2)), measure(OPS[0], Case(2), machine=other)])
    assert [entry.machine for entry in entries] == [MACHINE, other]


@pytest.mark.parametrize("seconds", [0.0, 5e-324, 1e308])
def test_one_sample_that_no_op_can_take_is_enough_to_leave_the_op_out(seconds):
    odd = [
        replace(m, samples=(*m.samples, Sample(seconds))) if m.op == OPS[1] and m.case == Case(4) else m
        for m in measure_all(OPS)
    ]
    kept, refused = usable(group(odd))
    assert (len(kept), list(refused)) == (3, [OPS[1].key])
    assert repr(seconds) in refused[OPS[1].key]
    with pytest.raises(ModelError, match=OPS[1].key):
        measured_knots([m for m in odd if m.op == OPS[1]])


def test_an_op_with_more_work_than_any_is_left_out():
    endless = Op("endless", attributes={}, cost=(1e308, 0.0))
    kept, refused = usable(group([*measure_all(OPS), replace(measure(OPS[0], Case(2)), op=endless)]))
    assert (len(kept), list(refused)) == (4, [endless.key])
    assert "1e+308 flops" in refused[endless.key]


def test_an_op_that_is_broken_on_one_machine_only_is_named_and_learned_from_on_the_other():
    other = Machine.uniform("other", 4)
    broken = [with_seconds(m, 0.0) for m in measure_all(OPS[:1])]
    kept, refused = usable(group([*broken, *measure_all(OPS, machine=other)]))
    assert (len(kept), list(refused)) == (4, [OPS[0].key])


@pytest.mark.parametrize(
    ("measurements", "message"),
    [
        ([], "none of 0 ops"),
        (measure_all(OPS[:1]), "only op"),
        ([with_seconds(m, 0.001) for m in measure_all(OPS)], "0.001 s in every case"),
        ([with_seconds(m, 0.0) for m in measure_all(OPS)], "none of 4 ops"),
    ],
    ids=["empty", "one op", "constant", "all zero"],
)
def test_a_table_that_nothing_can_be_learned_from_is_refused(measurements: list[Measurement], message: str):
    with pytest.raises(ModelError, match=message):
        usable(group(measurements))
