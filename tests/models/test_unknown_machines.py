"""Forecasts for machines that were not learned from, and what few measured ops there tell of all others."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulated_servers import servers
from tests.models.synthetic_ops import make_ops, measure, measure_all, true_seconds
from threadcast.core import Machine, Op, TensorSpec
from threadcast.models.joint_process import JointProcess
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.machine_limits import UNIT_S, UNKNOWN_S, MachineLimits, work_per_thread
from threadcast.models.machine_transfer import MachineTransfer, machines_left_out
from threadcast.models.measured import group
from threadcast.models.point_trees import Points, Shape
from threadcast.models.smooth_curves import curves_of

KNOWN, NEW = Machine.uniform("twelve", 12, group_size=12), Machine.uniform("sixteen", 16, group_size=16)
OPS = make_ops(60)
TRAIN, HELD_OUT = OPS[:40], OPS[40:]


def slower(op, case, factor):
    """A measurement on the new machine, where every op takes `factor` times as long as the formula says."""
    found = measure(op, case, machine=NEW)
    return replace(found, samples=tuple(replace(s, seconds=s.seconds * factor) for s in found.samples))


@pytest.fixture(scope="module")
def model():
    return LearnedCurve(samples=1).fit(measure_all(TRAIN, machine=KNOWN))


def off(model, ops, observed, factor):
    """Mean absolute error of log times of the ops, and the mean width of log intervals."""
    table = model.predict_many(ops, observed, NEW.cases(), machine=NEW)
    truth = np.array([[factor * true_seconds(op, case) for case in NEW.cases()] for op in ops])
    return np.abs(np.log(table.seconds / truth)).mean(), np.log(table.high / table.low).mean()


def test_each_op_that_is_measured_on_a_new_machine_narrows_all_others(model):
    case = NEW.cases()[5]
    unmeasured = HELD_OUT[10:]
    found = []
    for count in (0, 2, 10):
        ops = [*HELD_OUT[:count], *unmeasured]
        observed = [*([slower(op, case, 5.0)] for op in HELD_OUT[:count]), *([] for _ in unmeasured)]
        table = model.predict_many(ops, observed, NEW.cases(), machine=NEW)
        truth = np.array([[5.0 * true_seconds(op, one) for one in NEW.cases()] for op in unmeasured])
        own = table.seconds[count:]
        found.append((np.abs(np.log(own / truth)).mean(), np.log(table.high[count:] / table.low[count:]).mean()))
    errors, widths = zip(*found, strict=True)
    assert errors[0] > 1.0  # nothing tells that the machine is five times slower
    assert errors[2] < 0.5 * errors[0]
    assert widths[0] > widths[1] > widths[2]


def test_a_model_that_was_adapted_forecasts_others_by_what_was_measured(model):
    case, unmeasured = NEW.cases()[5], HELD_OUT[10:]
    measured = [slower(op, case, 5.0) for op in HELD_OUT[:10]]
    assert model.adapts_to(NEW)
    assert not model.adapts_to(KNOWN)
    adapted = model.adapted(measured)
    before, width_before = off(model, unmeasured, [[] for _ in unmeasured], 5.0)
    after, width_after = off(adapted, unmeasured, [[] for _ in unmeasured], 5.0)
    assert after < 0.5 * before
    assert width_after < width_before
    assert off(model, unmeasured, [[] for _ in unmeasured], 5.0) == (before, width_before)  # it stays as it is
    together = model.predict_many(
        [*HELD_OUT[:10], *unmeasured], [*([m] for m in measured), *([] for _ in unmeasured)], NEW.cases(), machine=NEW
    )
    apart = adapted.predict_many(unmeasured, [[] for _ in unmeasured], NEW.cases(), machine=NEW)
    np.testing.assert_allclose(apart.seconds, together.seconds[10:], rtol=1e-9)
    np.testing.assert_allclose(apart.high, together.high[10:], rtol=1e-9)
    elsewhere = measure_all(HELD_OUT[:3], machine=KNOWN)
    assert model.adapted(elsewhere) is model


def test_variances_of_errors_are_found_from_machines_that_were_left_out():
    random = np.random.default_rng(0)
    log_threads = np.log([1, 2, 4, 8, 16, 32])
    shape = np.exp(-np.abs(log_threads[:, None] - log_threads) / 1.5)
    root = np.linalg.cholesky(shape)

    def machine():
        common = 0.8 * random.standard_normal()
        own = 0.5 * random.standard_normal((200, 1)) + 0.3 * random.standard_normal((200, 6)) @ root.T
        return common + own

    found = MachineTransfer.learned(machine() for _ in range(40))
    # a level that shapes carry counts as level: the six correlated numbers have a mean of their own
    assert found.level == pytest.approx(0.8**2, rel=0.5)
    assert found.op_level == pytest.approx(0.5**2 + 0.3**2 * shape.mean(), rel=0.2)
    assert found.op_shape == pytest.approx(0.3**2 * (1 - shape.mean()), rel=0.2)
    assert MachineTransfer.learned([]) == MachineTransfer()
    assert MachineTransfer.from_json(json.loads(json.dumps(found.to_json()))) == found
    for wrong in ([1.0] * 4, [1.0, 0.0, 1.0], [float("nan")] * 3):
        with pytest.raises(ValueError):
            MachineTransfer.from_json(wrong)


def test_smooth_curves_have_no_steps_and_the_trees_level(model):
    op, cases = HELD_OUT[0], NEW.cases()
    seconds = model.predict(op, [], cases, machine=NEW).seconds
    bends = np.abs(np.diff(np.log(seconds), 2))
    assert bends.max() < 0.5
    trees = model._trees.log_seconds([op], NEW, cases)
    assert np.log(seconds).mean() == pytest.approx(trees.mean(), abs=0.2)


@pytest.mark.parametrize(("slope", "threads"), [(1.0, 16), (2.0, 16), (2.6, 1)])  # 7 and 1 are fastest with the latter
def test_where_the_fastest_count_is_hardly_faster_than_all_threads_these_are_the_choice(slope, threads):
    cases = NEW.cases()
    curve = curves_of(np.array([[0.0, 0.0, slope, 0.0]]), NEW, cases)[0]
    assert cases[curve.argmin()].threads == threads
    assert np.all(np.diff(curve[curve.argmin() :]) >= 0)
    few = curves_of(np.array([[0.0, 0.0, slope, 0.0]]), NEW, cases[3:9])[0]
    np.testing.assert_allclose(few, curve[3:9], rtol=1e-12)


def test_a_single_sample_moves_the_level_of_a_curve_and_its_choice_little():
    server = servers()[5]
    ops = [
        Op("mm", (TensorSpec((side, side)), TensorSpec((side, side))), {}, (TensorSpec((side, side)),))
        for side in (96, 160, 256, 384, 512, 768, 1024, 1536)
    ]
    cases = server.machine.cases()
    truth = np.array([server.curve(op, cases) for op in ops])
    process = JointProcess(prior=True)
    without = process.predict_many(ops, [[] for _ in ops], cases, machine=server.machine)
    observed = [server.measured(op, [cases[64]]) for op in ops]
    process.fit([m for of_op in observed for m in of_op])
    found = process.predict_many(ops, observed, cases, machine=server.machine)

    def off(table):
        return np.abs(np.log(table.seconds / truth)).mean()

    def regret(table):
        rows = np.arange(len(ops))
        return (truth[rows, table.seconds.argmin(axis=1)] / truth.min(axis=1) - 1).mean()

    assert off(found) < off(without)
    assert regret(found) < regret(without) + 0.02


def test_intervals_widen_away_from_where_an_op_was_measured(model):
    op, cases = HELD_OUT[0], NEW.cases()
    one, two = ([slower(op, cases[at], 5.0) for at in places] for places in ((15,), (0, 15)))
    widths = [
        np.log(curve.high / curve.low)[:8]
        for curve in (model.predict(op, own, cases, machine=NEW) for own in (one, two))
    ]
    assert np.all(np.diff(widths[0]) < 0)
    assert np.all(widths[1][1:] < widths[0][1:])


def test_limits_are_fitted_else_nominal():
    op, cases = HELD_OUT[0], KNOWN.cases()
    limits = MachineLimits.learned(group(measure_all(TRAIN, machine=KNOWN)))
    truth = np.log([true_seconds(op, case) for case in cases])
    fitted, nominal = (one.log_seconds([op], KNOWN, cases)[0] for one in (limits, MachineLimits()))
    assert np.abs(fitted - truth).mean() < 0.5 * np.abs(nominal - truth).mean()
    assert MachineLimits.from_json(limits.to_json()) == limits
    table = Op("op", attributes={"m": 2.0}, cost=(1e9, 0.0))
    np.testing.assert_allclose(
        limits.log_seconds([table], KNOWN, cases), np.log(UNIT_S) + work_per_thread([table], cases)
    )
    few = MachineLimits.learned(group(measure_all(TRAIN[:5], machine=KNOWN)))
    assert few.log_seconds([op], KNOWN, cases)[0].tolist() == nominal.tolist()
    nothing = Op("mystery", (), {}, ())
    assert np.exp(MachineLimits().log_seconds([nothing], KNOWN, cases)[0, 0]) == pytest.approx(UNKNOWN_S)


def test_machines_of_one_family_are_left_out_together(monkeypatch):
    alone, one, other = (Machine.uniform(name, 8, group_size=8) for name in ("alone", "one", "other"))
    measured = [
        *measure_all(TRAIN, machine=alone),
        *(
            replace(m, conditions={"family": "alike"})
            for twin in (one, other)
            for m in measure_all(TRAIN, machine=twin)
        ),
    ]
    entries = group(measured)
    points, learned_from = Points.of(entries), []
    grow = Points.trees

    def watched(self, shape, rows):
        learned_from.append(
            {e.machine.name for e, of_op in zip(entries, points.of_op, strict=True) if rows[of_op].all()}
        )
        return grow(self, shape, rows)

    monkeypatch.setattr(Points, "trees", watched)
    found = list(machines_left_out(entries, points, Shape(trees=5)))
    assert [errors.shape for errors in found] == [(40, len(alone.cases()))] * 3
    assert learned_from == [{"one", "other"}, {"alone"}]
    single = group(measure_all(TRAIN, machine=alone))
    assert list(machines_left_out(single, Points.of(single), Shape(trees=5))) == []
