"""The prior: forecasts of what nobody measured, how sure they are, and the files that come with the package."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure_all, true_seconds
from threadcast.core import Case, Machine, Op, TensorSpec
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError
from threadcast.models import prior as module
from threadcast.models.joint_process import FEW_OPS, JointProcess
from threadcast.models.point_trees import Shape
from threadcast.models.prior import Prior, shipped
from threadcast.models.untrained import UntrainedModel

KNOWN = [Machine.uniform(f"{n} cores", n, group_size=n) for n in (4, 12)]
NEW = Machine.uniform("sixteen", 16, group_size=16)
OPS = make_ops(60)
TRAIN, HELD_OUT = OPS[:40], OPS[40:]


@pytest.fixture(scope="module")
def prior():
    return Prior.learned([m for machine in KNOWN for m in measure_all(TRAIN, machine=machine)], shape=Shape(trees=40))


def truth(ops):
    return np.array([[true_seconds(op, case) for case in NEW.cases()] for op in ops])


def test_it_forecasts_a_machine_that_nobody_measured_within_its_intervals(prior):
    table = JointProcess(prior=prior).predict_many(HELD_OUT, [[] for _ in HELD_OUT], NEW.cases(), machine=NEW)
    without = JointProcess(prior=False).predict_many(HELD_OUT, [[] for _ in HELD_OUT], NEW.cases(), machine=NEW)
    off, off_without = (np.median(np.abs(np.log(one.seconds / truth(HELD_OUT)))) for one in (table, without))
    assert off < min(0.75, 0.8 * off_without), off_without
    assert ((truth(HELD_OUT) >= table.low) & (truth(HELD_OUT) <= table.high)).mean() > 0.85
    assert np.log(table.high / table.low).mean() < 0.7 * np.log(without.high / without.low).mean()


def test_a_process_that_was_adapted_has_learned_the_machine(prior):
    process, measured = JointProcess(prior=prior), measure_all(TRAIN[:8], machine=NEW)
    assert process.adapts_to(NEW)
    adapted = process.adapted(measured)
    fitted = JointProcess(prior=prior).fit(measured)
    asked = HELD_OUT, [[] for _ in HELD_OUT], NEW.cases()
    one, other = (each.predict_many(*asked, machine=NEW).seconds for each in (adapted, fitted))
    np.testing.assert_array_equal(one, other)
    assert process.adapts_to(NEW)
    assert not adapted.adapts_to(NEW)
    assert process.adapted(measured[:1]) is process


def test_a_forecast_depends_on_the_op_and_the_case_alone(prior):
    cases = NEW.cases()
    together = prior.log_seconds(HELD_OUT, NEW, cases)
    np.testing.assert_allclose(prior.log_seconds(HELD_OUT[3:5], NEW, cases[2:7]), together[3:5, 2:7], rtol=1e-12)
    again = Prior.from_files(prior.to_files())
    np.testing.assert_allclose(again.log_seconds(HELD_OUT[::-1], NEW, cases)[::-1], together, rtol=1e-12)
    assert again.transfer == prior.transfer
    assert prior.log_seconds([], NEW, cases).shape == (0, len(cases))
    one = Machine.uniform("one", 1, group_size=1)
    assert np.isfinite(prior.log_seconds(HELD_OUT, one, one.cases())).all()


def test_the_shipped_one_forecasts_seconds_of_the_right_order():
    large = Op("mm", (TensorSpec((1024, 1024)), TensorSpec((1024, 1024))), {}, (TensorSpec((1024, 1024)),))
    small = Op("add", (TensorSpec((8, 8)), TensorSpec((8, 8))), {}, (TensorSpec((8, 8)),))
    of_a_table = Op("mm", attributes={"m": 1024}, cost=(large.flops, 0.0))
    curves = np.exp(shipped().log_seconds([large, small, of_a_table], NEW, NEW.cases()))
    assert 1e-3 < curves[0, 0] < 1.0  # 2 Gflop
    assert curves[0, -1] < 0.5 * curves[0, 0]
    assert 1e-7 < curves[1, 0] < 1e-3
    assert 1e-2 < curves[2, 0] < 10.0
    assert shipped() is shipped()


def test_files_that_are_missing_or_damaged_are_refused(prior, monkeypatch, tmp_path):
    files = prior.to_files()
    for name, data in files.items():
        for damaged in ({other: files[other] for other in files if other != name}, {**files, name: data[:50]}):
            with pytest.raises(ArtefactError):
                Prior.from_files(damaged)
    for wrong in (b"prior/9", b"prior/1000"):
        with pytest.raises(ArtefactError):
            Prior.from_files({**files, "prior.json": files["prior.json"].replace(b"prior/1", wrong)})
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "none")
    with pytest.raises(ArtefactError, match="cannot be read"):
        module.shipped.__wrapped__()


def test_an_op_of_which_nothing_at_all_is_known_is_refused(prior):
    mystery = Op("mystery")
    with pytest.raises(ModelError, match="no tensors, FLOPs or bytes"):
        JointProcess(prior=prior).predict(mystery, [], NEW.cases(), machine=NEW)
    with pytest.raises(InvalidInput, match="prior="):
        JointProcess(prior="shipped")


def test_untrained_it_learns_from_the_store_once_an_op_must_be_forecast():
    asked = []

    def known():
        asked.append(True)
        return measure_all(TRAIN, machine=NEW)

    model, cases = UntrainedModel(known), NEW.cases()
    assert not model.adapts_to(NEW)
    measured = measure_all(HELD_OUT[:1], machine=NEW)
    assert model.predict(HELD_OUT[0], measured, cases, machine=NEW).source == ("measured",) * len(cases)
    assert not asked
    found = model.predict_many(HELD_OUT, [[] for _ in HELD_OUT], cases, machine=NEW)
    assert np.abs(np.log(found.seconds / truth(HELD_OUT))).mean() < 0.2
    model.predict(HELD_OUT[1], [], cases, machine=NEW)
    assert len(asked) == 1
    few = measure_all(HELD_OUT[:1], machine=NEW)[:3]
    mixed = model.predict_many(HELD_OUT[:3], [[], few, []], cases, machine=NEW)
    np.testing.assert_allclose(mixed.seconds[[0, 2]], found.seconds[[0, 2]], rtol=1e-9)
    assert mixed[1].at(few[0].case) == few[0].seconds
    alone = UntrainedModel(list).predict(HELD_OUT[1], [], (Case(1),), machine=NEW)
    assert alone.seconds[0] > 0


def test_the_prior_gives_way_once_many_ops_of_the_machine_are_known(prior):
    cases, few = NEW.cases(), measure_all(HELD_OUT[:1], machine=NEW)[:3]
    for count, counts in ((3, True), (FEW_OPS, False)):
        learned = measure_all(TRAIN[:count], machine=NEW)
        model = JointProcess(prior=prior).fit(learned)
        without = JointProcess().fit(learned).predict_many(HELD_OUT[:2], [few, []], cases, machine=NEW)
        for found in (model, JointProcess().from_files(model.to_files())):
            table = found.predict_many(HELD_OUT[:2], [few, []], cases, machine=NEW)
            assert np.allclose(table.seconds, without.seconds, rtol=1e-9) is not counts
            np.testing.assert_allclose(
                table.seconds, model.predict_many(HELD_OUT[:2], [few, []], cases, machine=NEW).seconds, rtol=1e-9
            )


def test_what_no_measured_op_of_the_machine_resembles_is_extrapolated(prior):
    of_kind = {op.kind: op for op in HELD_OUT}
    (known, strange), cases = list(of_kind.values())[:2], NEW.cases()
    learned = measure_all([op for op in TRAIN if op.kind == known.kind][:4], machine=NEW)
    fresh, model = JointProcess(prior=prior), JointProcess(prior=prior).fit(learned)
    own = measure_all([strange], machine=NEW)[:1]
    sources = [set(curve.source) for curve in (
        fresh.predict(known, [], cases, machine=NEW), model.predict(known, [], cases, machine=NEW),
        model.predict(strange, [], cases, machine=NEW), model.predict(strange, own, cases, machine=NEW),
    )]  # fmt: skip
    assert sources == [{"extrapolated"}, {"learned"}, {"extrapolated"}, {"measured", "learned"}]


def test_parameters_that_follow_from_measurements_stay_as_ops_become_many():
    process = JointProcess().fit(measure_all(TRAIN[:10], machine=NEW))
    tuned = process._machines[NEW.fingerprint].parameters
    process.following(measure_all(TRAIN[: FEW_OPS + 1], machine=NEW), NEW, tune=False)
    assert process._machines[NEW.fingerprint].parameters is tuned


def test_a_campaign_follows_no_prior(prior):
    learned = measure_all(TRAIN[:3], machine=NEW)
    followed = JointProcess(prior=prior).following(learned, NEW, tune=True)
    expected = JointProcess().fit(learned).predict(HELD_OUT[0], [], NEW.cases(), machine=NEW)
    np.testing.assert_array_equal(followed.predict(HELD_OUT[0], [], NEW.cases(), machine=NEW).seconds, expected.seconds)


def test_ops_of_one_name_that_do_different_work_have_different_forecasts(prior):
    small, large = (Op("gemm", cost=(flops, 0.0)) for flops in (1e6, 1e12))
    assert small.key == large.key
    together = prior.log_seconds([small, large], NEW, NEW.cases())
    assert together[0, 0] + 5 < together[1, 0]
    np.testing.assert_allclose(prior.log_seconds([large], NEW, NEW.cases())[0], together[1], rtol=1e-12)


ENDING = """
import codecs, sys
from threadcast.models.prior import shipped
shipped()
codecs.register_error("kept", lambda error, kept=dict(sys.modules): ("", 0))
"""


def test_a_process_that_ends_with_trees_in_memory_says_nothing():
    """Modules that something still holds are emptied before what they hold is freed."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=True)
    assert done.stderr == ""
