"""Per-case regressors: what they learn, what they do without, and how sure they are."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import MACHINE, make_ops, measure, measure_all, true_seconds
from threadcast.core import Affinity, Case, Machine, Sample, Source
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models import artefacts, regressors
from threadcast.models.evaluation import replay
from threadcast.models.measured import group
from threadcast.models.registry import ModelRegistry
from threadcast.models.registry_of_kinds import REGRESSORS, create, register_regressor, unregister
from threadcast.models.regressors.contract import Estimator

TRAINING = measure_all(make_ops(60), seed=1)
UNSEEN = make_ops(30, seed=2)
CASES = MACHINE.cases()


@pytest.fixture(scope="module")
def ols():
    return create("ols").fit(TRAINING)


def forecast(model, ops):
    """Predicted, low, high, true seconds, and the nearest sample's, of ops at the cases that were not sampled."""
    points = []
    for entry in group(measure_all(ops, seed=3)):
        observed = replay(model, entry)
        curve = model.predict(entry.op, observed, CASES, machine=MACHINE)
        for case, seconds, low, high in zip(CASES, curve.seconds, curve.low, curve.high):
            if case not in {m.case for m in observed}:
                nearest = min(
                    observed, key=lambda m: (m.case.affinity is not case.affinity, abs(m.case.threads - case.threads))
                )
                points.append((seconds, low, high, true_seconds(entry.op, case), nearest.seconds))
    return np.array(points).T


@pytest.mark.parametrize("name", REGRESSORS)
def test_every_regressor_halves_the_error_of_taking_the_nearest_sample(name):
    predicted, low, high, actual, nearest = forecast(create(name).fit(TRAINING), UNSEEN)
    assert np.mean(np.abs(predicted / actual - 1)) < np.mean(np.abs(nearest / actual - 1)) / 2
    assert np.mean((low <= actual) & (actual <= high)) > 0.75


@pytest.mark.parametrize("samples", [1, 4, 8, 16])
def test_it_asks_for_the_number_of_samples_it_was_made_for_or_all(samples):
    model = create("ols", samples=samples).fit(TRAINING)
    (entry, *_) = group(TRAINING)
    asked = [m.case for m in replay(model, entry)]
    assert len(asked) == min(samples, len(CASES))
    if samples > 1:
        assert {case.affinity for case in asked} == set(Affinity)


def test_the_linear_scale_of_the_paper_learns_too_and_stays_positive():
    predicted, low, _, actual, nearest = forecast(create("ols", scale="linear").fit(TRAINING), UNSEEN)
    assert low.min() > 0
    assert np.median(np.abs(predicted / actual - 1)) < np.median(np.abs(nearest / actual - 1))


def test_four_counters_are_chosen_and_normalised_by_instructions(ols):
    (learned,) = ols._learned.values()
    assert len(learned.counters) == 4
    assert learned.normaliser == "instructions"


def test_without_counters_the_sampled_times_are_the_features():
    model = create("ols").fit(measure_all(make_ops(60), counters=False))
    (learned,) = model._learned.values()
    assert (learned.counters, learned.normaliser) == ((), "flops")
    predicted, _, _, actual, nearest = forecast(model, UNSEEN)
    assert np.mean(np.abs(predicted / actual - 1)) < np.mean(np.abs(nearest / actual - 1)) / 2


def test_an_op_whose_counters_were_not_read_is_forecast_with_those_of_training(ols):
    entry = group(measure_all(UNSEEN[:1], counters=False))[0]
    curve = ols.predict(entry.op, replay(ols, entry), CASES, machine=MACHINE)
    assert np.all(np.isfinite(curve.seconds))


def test_a_seldom_measured_case_is_interpolated_and_flagged():
    seldom = Case(6)
    kept = [m for i, m in enumerate(TRAINING) if m.case != seldom or i < 3 * len(CASES)]
    model = create("ols", samples=2).fit(kept)
    entry = group(measure_all(UNSEEN[:1]))[0]
    curve = model.predict(entry.op, replay(model, entry), CASES, machine=MACHINE)
    position = CASES.index(seldom)
    assert curve.source[position] is Source.INTERPOLATED
    neighbours = [curve.at(Case(4)), curve.at(Case(8))]
    assert min(neighbours) <= curve.seconds[position] <= max(neighbours)


@pytest.mark.parametrize("name", REGRESSORS)
def test_the_fewest_ops_learn_and_a_case_measured_for_a_few_of_many_does_too(name):
    few = create(name, samples=2).fit(TRAINING[: 6 * len(CASES)])
    kept = [m for i, m in enumerate(TRAINING[: 20 * len(CASES)]) if m.case != Case(6) or i < 6 * len(CASES)]
    some = create(name, samples=2).fit(kept)
    entry = group(measure_all(UNSEEN[:1]))[0]
    for model in (few, some):
        curve = model.predict(entry.op, replay(model, entry), CASES, machine=MACHINE)
        assert curve.source[CASES.index(Case(6))] is Source.LEARNED


def test_samples_are_taken_where_training_was_measured():
    kept = [m for m in TRAINING if m.case.affinity is Affinity.COMPACT]
    model = create("ols", samples=2).fit(kept)
    assert model.propose(UNSEEN[0], [], MACHINE) == Case(2)


def test_ops_left_out_of_training_are_noted():
    whole = [m for m in TRAINING if not (m.op == TRAINING[0].op and m.case.threads > 1)]
    broken = [replace(m, samples=(Sample(0.0),)) if m.op == TRAINING[-1].op else m for m in whole]
    notes = " ".join(create("ols").fit(broken).notes)
    assert "1 of 59 ops left out" in notes
    assert TRAINING[-1].op.key in notes


def test_regressors_that_did_not_converge_are_noted(monkeypatch):
    adam = next(one for one in regressors.found() if one.name == "mlp_adam")
    monkeypatch.setitem(adam.options, "max_iter", 2)
    notes = " ".join(create("mlp_adam").fit(TRAINING).notes)
    assert "8 of 8 regressors stopped before they converged" in notes


def test_each_machine_is_learned_by_itself_and_another_one_is_refused():
    other = Machine.uniform("other", 4, group_size=2)
    model = create("ols", samples=2).fit([*TRAINING, *measure_all(make_ops(20), machine=other)])
    for machine in (MACHINE, other):
        entry = group(measure_all(UNSEEN[:1], machine=machine))[0]
        assert model.predict(entry.op, replay(model, entry), machine.cases(), machine=machine).cases == machine.cases()
    with pytest.raises(ModelError, match="third"):
        model.predict(UNSEEN[0], [], CASES, machine=Machine.uniform("third", 4))


def test_an_op_without_its_samples_is_refused_by_name(ols):
    with pytest.raises(ModelError, match=rf"{UNSEEN[0].key} measured at .*8 compact"):
        ols.predict(UNSEEN[0], [measure(UNSEEN[0], Case(1, Affinity.SPREAD))], CASES, machine=MACHINE)


@pytest.mark.parametrize("options", [{"samples": 0}, {"scale": "cubic"}, {"seed": -1}])
def test_wrong_options_are_refused(options):
    with pytest.raises(InvalidInput, match=f"{next(iter(options))}="):
        create("ols", **options)


def test_runaway_forecasts_are_kept_near_the_ratios_of_training(ols):
    """An op 10,000 times longer than any in training: a straight line would go anywhere, the clip may not."""
    entry = group(measure_all(UNSEEN[:1]))[0]
    observed = [replace(m, samples=(Sample(m.seconds * 1e4, m.samples[0].counters),)) for m in replay(ols, entry)]
    curve = ols.predict(entry.op, observed, CASES, machine=MACHINE)
    assert curve.seconds.max() < 20 * max(m.seconds for m in observed)


@pytest.mark.parametrize("regressor", [*regressors.found()], ids=lambda one: one.name)
def test_numbers_that_a_library_cannot_fit_are_a_model_error(regressor):
    for rows, targets in ((np.full((8, 2), np.inf), np.ones(8)), (np.ones((8, 2)), np.full(8, np.nan))):
        with pytest.raises(ModelError, match=f"{regressor.name} could not be fitted"):
            regressor.fitted(rows, targets)


@pytest.mark.parametrize(
    "regressor", [one for one in regressors.found() if isinstance(one, Estimator)], ids=lambda one: one.name
)
@pytest.mark.parametrize("features", [1, 6])
def test_what_is_stored_forecasts_what_the_library_does(regressor, features):
    random = np.random.default_rng(0)
    rows = random.integers(-8, 8, (60, features)) / 4
    unseen = random.integers(-16, 16, (200, features)) / 8  # at the thresholds of trees, too
    targets = rows[:, 0] ** 2 + 0.1 * random.standard_normal(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = regressor.unfitted(3).fit(rows, targets).predict(unseen)
    numbers, _ = regressor.fitted(rows, targets, seed=3)
    stored = artefacts.read_npz({"x": artefacts.npz_bytes(numbers)}, "x")
    found = regressor.forecaster(regressor.checked(stored, features=features))(unseen)
    np.testing.assert_allclose(found, expected, rtol=1e-5 if regressor.name == "xgboost" else 1e-9, atol=1e-6)


A_FILE = """
import numpy as np
from threadcast.models.regressors.contract import Regressor

class Median(Regressor):
    def fit(self, rows, targets, *, seed):
        return {"median": np.median(targets, keepdims=True)}, True

    def forecaster(self, numbers):
        return lambda rows: np.repeat(numbers["median"], len(rows))

REGRESSORS = (Median("median"),)
"""


def test_a_file_adds_a_regressor_that_learns_is_stored_and_loaded(tmp_path, monkeypatch):
    """As CONTRIBUTING says; the file lies in another folder, so that it is gone afterwards."""
    (tmp_path / "median.py").write_text(A_FILE)
    monkeypatch.setattr(regressors, "__path__", [*regressors.__path__, str(tmp_path)])
    (median,) = (one for one in regressors.found() if one.name not in REGRESSORS)
    register_regressor(median)
    try:
        registry = ModelRegistry(tmp_path / "models")
        model = create("median", samples=1).fit(TRAINING)
        loaded = registry.load(registry.save(model, trained_on={}, metrics={}))
        for one in (model, loaded):
            predicted, low, _, actual, _ = forecast(one, UNSEEN[:3])
            assert 0 < low.min() < actual.max()
            assert np.median(np.abs(np.log(predicted / actual))) < 2
    finally:
        unregister("median")
