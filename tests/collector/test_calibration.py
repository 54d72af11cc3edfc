"""The micro-measurements, on the machine at hand."""

import copy
import json
import pickle
from dataclasses import replace

import pytest

from threadcast.collector.calibration import Calibration, calibrate
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.machine import Cache
from threadcast.core.topology import read_machine

GOOD = Calibration("m-2c-00000000", 5e10, 1e10, 1.5e10, {1: 1e-6, 2: 4e-6}, {2: 5e10})


def test_this_machine_s_limits_are_measured_and_plausible():
    machine = read_machine()
    found = calibrate(machine, seconds=0.02)
    assert found.machine == machine.fingerprint
    assert 1e8 < found.core_flops_per_s < 1e13
    assert 1e8 < found.core_bytes_per_s <= found.all_bytes_per_s < 1e13
    assert 0 < found.fork_join_s[1] < 1e-2
    assert max(found.fork_join_s) == len(machine)
    assert set(found.cache_bytes_per_s) == {cache.level for cache in machine.caches if cache.level >= 2}


def test_the_rate_of_a_cache_of_unknown_size_is_not_measured():
    machine = read_machine(cores=1)
    core = machine.cores[0].id
    unsized = replace(machine, caches=(Cache(2, 0, (core,)), Cache(3, 1 << 20, (core,))))
    assert set(calibrate(unsized, seconds=0.01).cache_bytes_per_s) == {3}


def test_a_calibration_survives_json_copies_and_pickles():
    assert copy.deepcopy(GOOD) == pickle.loads(pickle.dumps(GOOD)) == GOOD
    assert Calibration.from_json(json.loads(json.dumps(GOOD.to_json()))) == GOOD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"core_flops_per_s": 0.0}, "core_flops_per_s"),
        ({"all_bytes_per_s": float("inf")}, "finite"),
        ({"fork_join_s": {"2": 1e-6}}, "must have 1 thread"),
        ({"fork_join_s": {"one": 1e-6}}, "whole numbers"),
        ({"fork_join_s": {"1": -1e-6}}, "below 0"),
        ({"cache_bytes_per_s": {"2": 0}}, "above 0"),
        ({"schema": "threadcast.calibration/9"}, "schema"),
        ({"machine": 7}, "machine"),
    ],
)
def test_a_document_with_impossible_numbers_is_refused(change, message):
    with pytest.raises((FormatError, InvalidInput), match=message):
        Calibration.from_json({**GOOD.to_json(), **change})
