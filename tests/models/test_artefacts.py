"""Files that do not hold what they should are refused; `test_poisoned_files` has those that would run something."""

import io
import json
import zipfile

import numpy as np
import pytest
from xgboost import XGBRegressor

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core.errors import ArtefactError
from threadcast.models import artefacts, regressors
from threadcast.models.boosted_trees import BoostedTrees
from threadcast.models.registry_of_kinds import create

ROWS = np.random.default_rng(0).random((40, 3))
TARGETS = ROWS[:, 0]
NAMES = ("rows", "columns", "depth")


def zip_of(**entries):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name.replace("_json", ".json").replace("_npy", ".npy"), data)
    return buffer.getvalue()


def npy_of(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def test_an_array_that_claims_more_than_it_brings_is_refused():
    header = npy_of(np.zeros(3)).replace(b"(3,)", b"(9,)")
    with pytest.raises(ArtefactError, match="claims shape"):
        artefacts.read_npz({"file": zip_of(rows_npy=header)}, "file")


def test_arrays_of_other_numbers_are_refused():
    with pytest.raises(ArtefactError, match="float64"):
        artefacts.read_npz({"file": artefacts.npz_bytes({"a": np.array([True])})}, "file")


FOREST = next(one for one in regressors.found() if one.name == "random_forest")


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("left", 10**6), ("left", 0), ("left", -2), ("left", -1), ("right", 0), ("feature", 3), ("feature", -1),
        ("roots", -1), ("roots", 10**6), ("threshold", np.nan), ("value", np.inf), ("base", np.nan),
    ],
)  # fmt: skip
def test_a_tree_that_leads_out_of_its_arrays_is_refused(array, value):
    stored = {name: own.copy() for name, own in FOREST.fitted(ROWS, TARGETS)[0].items()}
    stored[array][0] = value
    with pytest.raises(ArtefactError, match=r"do not fit|no number"):
        FOREST.checked(stored, features=3)


@pytest.mark.parametrize("array", ["roots", "left", "right", "feature", "threshold", "value", "base"])
@pytest.mark.parametrize(
    "change",
    [lambda a: a[None], lambda a: a.astype(np.int32 if a.dtype == np.float64 else np.float64), lambda a: a[:0]],
)
def test_tree_arrays_of_other_shapes_or_types_are_refused(array, change):
    stored = dict(FOREST.fitted(ROWS, TARGETS)[0])
    with pytest.raises(ArtefactError, match="do not fit"):
        FOREST.checked(stored | {array: change(stored[array])}, features=3)


@pytest.mark.parametrize("regressor", [*regressors.found()], ids=lambda one: one.name)
def test_numbers_for_other_features_are_refused(regressor):
    numbers, _ = regressor.fitted(ROWS, ROWS[:, 2])
    with pytest.raises(ArtefactError), artefacts.reading("it"):
        regressor.checked(numbers, features=2)


def grown(trees):
    return BoostedTrees.grown(ROWS, TARGETS, n_estimators=trees, random_state=0)


@pytest.fixture(scope="module")
def boosted():
    return grown(3).stored(NAMES)


def test_a_stored_booster_comes_back(boosted):
    options = {"subsample": 0.8, "max_bin": 256, "tree_method": "hist", "random_state": 0, "n_jobs": 1}
    expected = XGBRegressor(n_estimators=3, **options).fit(ROWS, TARGETS).predict(ROWS)
    for trees in (grown(3), BoostedTrees.load(boosted, features=NAMES)):
        assert np.array_equal(trees.forecast(ROWS), expected)
        assert np.array_equal(trees.forecast(ROWS[:, None]), expected[:, None])


def test_a_booster_of_other_rows_is_refused(boosted):
    document = json.loads(boosted)
    document["learner"]["learner_model_param"]["num_feature"] = "4"
    with pytest.raises(ArtefactError, match="features"):
        BoostedTrees.load(json.dumps(document).encode(), features=NAMES)


@pytest.mark.parametrize(
    "now", [NAMES, ("rows", "new", "columns", "depth"), ("depth", "new", "rows", "newer", "columns")]
)
def test_a_booster_finds_its_features_by_their_names(now):
    fitted = grown(20)
    expected = fitted.forecast(ROWS)
    loaded = BoostedTrees.load(fitted.stored(NAMES), features=now)
    rows = np.full((len(ROWS), len(now)), 1e9)
    for column, name in enumerate(NAMES):
        rows[:, now.index(name)] = ROWS[:, column]
    assert np.array_equal(loaded.forecast(rows), expected)
    assert len({*expected}) > 3


@pytest.mark.parametrize(
    ("stored", "why"), [(NAMES, "learned from 'columns', which"), ((), "no names"), (("a", "b", "a"), "no names")]
)
def test_a_booster_whose_features_are_not_found_by_name_is_refused(stored, why):
    data = json.loads(grown(3).stored(NAMES))
    data["learner"]["feature_names"] = [*stored]
    with pytest.raises(ArtefactError, match=why):
        BoostedTrees.load(json.dumps(data).encode(), features=("rows", "depth", "width"))


def test_a_booster_cut_short_anywhere_is_refused(boosted):
    """XGBoost itself ends the process on some of these."""
    for end in range(0, len(boosted), 97):
        with pytest.raises(ArtefactError):
            BoostedTrees.load(boosted[:end], features=NAMES)


def test_a_booster_changed_at_random_is_refused_or_works(boosted):
    """Each of these, unchecked, could read beyond its arrays; 27 of 3,000 did."""
    rng = np.random.default_rng(0)
    refusals = 0
    for _ in range(200):
        data = bytearray(boosted)
        data[rng.integers(len(data))] = rng.integers(256)
        try:
            BoostedTrees.load(bytes(data), features=NAMES).forecast(ROWS)
        except ArtefactError:
            refusals += 1
    assert refusals > 20


@pytest.mark.parametrize("name", ["ols", "k_neighbors", "xgboost"])
def test_files_of_another_kind_of_model_are_refused(name):
    measurements = measure_all(make_ops(8))
    files = create("decision_tree", samples=2).fit(measurements).to_files()
    with pytest.raises(ArtefactError, match=f"decision_tree, not {name}"):
        create(name).from_files(files)


def test_parts_that_do_not_fit_each_other_are_refused():
    measurements = measure_all(make_ops(8))
    files = create("ols", samples=2).fit(measurements).to_files()
    document = json.loads(files["model.json"])
    (machine,) = document["machines"].values()
    for change in (
        {"counters": []},
        {"normaliser": "luck"},
        {"cases": [[0, "compact"]]},
        {"cases": machine["cases"][1:]},
        {"samples": machine["samples"][1:]},
    ):
        poisoned = {**document, "machines": {"m": {**machine, **change}}}
        with pytest.raises(ArtefactError):
            create("ols").from_files({**files, "model.json": artefacts.json_bytes(poisoned)})
