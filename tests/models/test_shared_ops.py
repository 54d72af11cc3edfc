"""Measured ops come out in a worker as they went in."""

from dataclasses import replace

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Machine, Sample
from threadcast.models.measured import group
from threadcast.models.shared import SharedOps


def in_worker(entries):
    make, parts = SharedOps(entries).__reduce__()
    return make(*parts).get()


def test_ops_machines_cases_samples_and_conditions_arrive():
    ops, other = make_ops(3), Machine.uniform("other", 3)
    measured = [
        replace(m, conditions={"cache": "warm", "number": i})
        for i, m in enumerate([*measure_all(ops), *measure_all(ops, machine=other)])
    ]
    assert in_worker(group(measured)) == group(measured)


def test_a_counter_that_was_not_read_arrives_as_none():
    (first, *rest) = measure_all(make_ops(1))
    partly = replace(first, samples=(Sample(1.0, {"cycles": 5.0, "faults": None}), Sample(2.0, {"cycles": 0.0})))
    found = in_worker(group([partly, *rest]))[0].by_case[first.case]
    assert [s.counters["cycles"] for s in found.samples] == [5.0, 0.0]
    assert [s.counters["faults"] for s in found.samples] == [None, None]


def test_it_is_unpacked_once_by_a_worker():
    make, parts = SharedOps(group(measure_all(make_ops(2)))).__reduce__()
    assert make(*parts).get() is make(*parts).get()
