"""The roofline: its formula, its fit, what it does not know."""

import numpy as np
import pytest

from tests.models import synthetic_ops
from tests.models.synthetic_ops import MACHINE, make_ops, measure_all, true_seconds
from threadcast.collector.calibration import Calibration
from threadcast.core import Affinity, Cache, Case, Machine, Op, Source
from threadcast.core.errors import ArtefactError, ModelError
from threadcast.models.artefacts import json_bytes
from threadcast.models.measured import group
from threadcast.models.roofline import Roofline
from threadcast.models.roofline_limits import fit_limits, least_seconds

LIMITS = Calibration(MACHINE.fingerprint, 1e10, 1e9, 3e9, {1: 1e-6, 2: 3e-6, 8: 9e-6})
ONE, TWO, FOUR, EIGHT = Case(1, Affinity.SPREAD), Case(2), Case(4), Case(8)


def op_of(flops, bytes_moved):
    return Op("made_up", attributes={"flops": flops, "bytes": bytes_moved}, cost=(flops, bytes_moved))


def test_compute_scales_with_cores_and_memory_until_it_is_full():
    cases = (ONE, TWO, FOUR, EIGHT)
    compute = least_seconds(LIMITS, [op_of(1e10, 0.0)], cases, MACHINE)[0]
    memory = least_seconds(LIMITS, [op_of(0.0, 1e9)], cases, MACHINE)[0]
    assert compute == pytest.approx([1.0, 1 / 2, 1 / 4, 1 / 8], rel=1e-4)
    assert memory == pytest.approx([1.0, 1 / 2, 1 / 3, 1 / 3], rel=1e-4)


def test_the_longer_of_both_rules():
    assert least_seconds(LIMITS, [op_of(2e10, 1e9)], (ONE,), MACHINE)[0] == pytest.approx([2.0], rel=1e-4)


def test_an_empty_op_costs_the_call_and_the_team():
    """Between calibrated thread counts the cost is linear."""
    assert least_seconds(LIMITS, [op_of(0, 0)], (ONE, TWO, FOUR), MACHINE)[0] == pytest.approx([1e-6, 3e-6, 5e-6])


def test_bytes_that_fit_into_the_caches_of_the_cores_come_from_there():
    uniform = Machine.uniform("cached", 4)
    machine = Machine("cached", uniform.cores, tuple(Cache(2, 1000, (core.id,)) for core in uniform.cores))
    limits = Calibration(machine.fingerprint, 1e10, 1e9, 1e9, {1: 0.0}, {2: 1e10})
    seconds = least_seconds(limits, [op_of(0.0, 3000.0)], (Case(1), Case(2), Case(3), Case(4)), machine)[0]
    assert seconds == pytest.approx([3e-6, 3e-6, 1e-7, 0.75e-7])


def test_the_fit_finds_the_machine_behind_the_times():
    found = fit_limits("any", group(measure_all(make_ops(60))))
    assert found.core_flops_per_s == pytest.approx(synthetic_ops.CORE_FLOPS_PER_S, rel=0.1)
    assert found.core_bytes_per_s == pytest.approx(synthetic_ops.CORE_BYTES_PER_S, rel=0.25)
    assert found.fork_join_s[8] == pytest.approx(8 * synthetic_ops.FORK_S, rel=0.25)


def test_a_fitted_roofline_forecasts_unseen_shapes_from_no_sample():
    model = Roofline().fit(measure_all(make_ops(60)))
    errors, held = [], []
    for op in make_ops(30, seed=2):
        curve = model.predict(op, [], MACHINE.cases(), machine=MACHINE)
        actual = np.array([true_seconds(op, case) for case in MACHINE.cases()])
        errors += np.abs(curve.seconds / actual - 1).tolist()
        held += ((curve.low <= actual) & (actual <= curve.high)).tolist()
        assert set(curve.source) == {Source.LEARNED}
    assert np.mean(errors) < 0.15
    assert np.mean(held) > 0.8


def test_compute_that_no_measured_op_shows_is_guessed_within_an_order_of_magnitude():
    memory_bound = [m for m in measure_all(make_ops(60)) if m.op.kind != "mm"]
    found = fit_limits("any", group(memory_bound))
    assert 0.1 < found.core_flops_per_s / synthetic_ops.CORE_FLOPS_PER_S < 10


def test_a_calibration_is_kept_by_fit_which_only_finds_the_interval():
    model = Roofline(calibrations=[LIMITS])
    op = make_ops(1)[0]
    before = model.predict(op, [], MACHINE.cases(), machine=MACHINE)
    after = model.fit(measure_all(make_ops(20))).predict(op, [], MACHINE.cases(), machine=MACHINE)
    assert np.array_equal(before.seconds, after.seconds)
    assert not np.array_equal(before.high, after.high)


def test_a_machine_without_calibration_is_refused_with_what_to_do():
    with pytest.raises(ModelError, match="--calibrate"):
        Roofline().predict(make_ops(1)[0], [], MACHINE.cases(), machine=MACHINE)


def test_a_stored_interval_that_does_not_enclose_the_forecast_is_refused():
    document = {"schema": "threadcast.roofline/1", "calibrations": [], "log_bounds": {"m": [0.1, 0.2]}}
    with pytest.raises(ArtefactError, match="enclose"):
        Roofline().from_files({"model.json": json_bytes(document)})
