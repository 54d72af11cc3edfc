"""Poisoned files are refused, and nothing in them runs."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeRegressor

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Machine
from threadcast.core.errors import ArtefactError
from threadcast.models import artefacts, boosted_trees, regressors
from threadcast.models.per_case import PerCase
from threadcast.models.registry_of_kinds import REGRESSORS, create

ROWS = np.random.default_rng(0).random((40, 3))
TARGETS = ROWS[:, 0]


class Poison:
    """What a pickle would run when it is read."""

    def __reduce__(self):
        return (open, ("poisoned", "w"))


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


def skops_schema(value):
    with zipfile.ZipFile(io.BytesIO(artefacts.skops_bytes(value))) as archive:
        return json.loads(archive.read("schema.json"))


@pytest.fixture
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("read", [artefacts.read_skops, artefacts.read_npz, artefacts.read_json])
@pytest.mark.parametrize(
    "data", [pickle.dumps(Poison()), zip_of(data_pkl=pickle.dumps(Poison())), b"", b"PK\x03\x04"], ids=range(4)
)
def test_a_pickle_is_refused_and_not_run(working_directory, read, data):
    with pytest.raises(ArtefactError):
        read({"file": data}, "file")
    assert list(working_directory.iterdir()) == []


def test_an_array_of_objects_is_refused_and_not_unpickled(working_directory):
    data = zip_of(rows_npy=npy_of(np.array([Poison()], dtype=object), allow_pickle=True))
    with pytest.raises(ArtefactError):
        artefacts.read_npz({"file": data}, "file")
    assert list(working_directory.iterdir()) == []


def test_an_array_that_claims_more_than_it_brings_is_refused():
    header = npy_of(np.zeros(3)).replace(b"(3,)", b"(9,)")
    with pytest.raises(ArtefactError, match="claims shape"):
        artefacts.read_npz({"file": zip_of(rows_npy=header)}, "file")


def test_arrays_of_other_numbers_are_refused():
    with pytest.raises(ArtefactError, match="float64"):
        artefacts.read_npz({"file": artefacts.npz_bytes({"a": np.array([True])})}, "file")


@pytest.mark.parametrize("read", [artefacts.read_skops, artefacts.read_npz])
def test_an_archive_that_unpacks_without_end_is_refused(monkeypatch, read):
    monkeypatch.setattr(artefacts, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(ArtefactError, match="unpack"):
        read({"file": zip_of(schema_json=b"0" * 20_000)}, "file")


def test_a_type_that_skops_itself_would_trust_is_refused_if_it_is_not_ours():
    data = artefacts.skops_bytes([FunctionTransformer(np.exp)])
    with pytest.raises(ArtefactError, match=r"FunctionTransformer.*nothing was loaded"):
        artefacts.read_skops({"file": data}, "file")


@pytest.mark.parametrize(
    "node",
    [
        {"__class__": "system", "__module__": "os", "__loader__": "FunctionNode"},
        {"__class__": "LinearRegression", "__module__": "sklearn.linear_model._base", "__loader__": "FunctionNode"},
        {"__class__": "str", "__module__": "builtins", "__loader__": "MethodNode", "content": {}},
        {"__class__": "Popen", "__module__": "subprocess", "__loader__": "ObjectNode"},
        {"__class__": ["str"], "__module__": "builtins", "__loader__": "JsonNode"},
        {"__class__": "str", "__module__": "builtins", "__loader__": ["JsonNode"]},
        {"__class__": "str", "__module__": "builtins"},
    ],
    ids=range(7),
)
def test_a_foreign_type_anywhere_in_a_skops_file_is_refused(monkeypatch, node):
    schema = skops_schema([LinearRegression().fit(ROWS, TARGETS)])
    schema["content"][0]["content"]["content"]["fit_intercept"] = node
    monkeypatch.setattr("skops.io.loads", lambda *args, **options: pytest.fail("it was loaded"))
    with pytest.raises(ArtefactError, match="not allowed"):
        artefacts.read_skops({"file": zip_of(schema_json=json.dumps(schema))}, "file")


def test_every_type_on_the_list_is_one_that_a_model_needs():
    """Nothing is trusted without need: the list is what the fifteen regressors hold, and no more.

    Networks that scikit-learn itself has trained, as in stored models of earlier versions, also hold their optimizer.
    The rank of a linear regression is a numpy.int64 with SciPy 1.18, with Python 3.12 on, else a plain number.
    """
    held = "sklearn.neural_network._stochastic_optimizers"
    needed = {"ObjectNode": {f"{held}.AdamOptimizer", f"{held}.SGDOptimizer"}, "NdArrayNode": {"numpy.int64"}}
    measurements = measure_all(make_ops(8), machine=Machine.uniform("two", 2))
    for name in REGRESSORS:
        for file, data in PerCase(name, samples=1).fit(measurements).to_files().items():
            if file.endswith(".skops"):
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    collect_types(json.loads(archive.read("schema.json")), needed)
    assert needed == dict(artefacts.TRUSTED_TYPES)


def collect_types(node, found):
    if isinstance(node, dict):
        if "__loader__" in node:
            found.setdefault(node["__loader__"], set()).add(f"{node['__module__']}.{node['__class__']}")
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            collect_types(child, found)


TREE_KINDS = {
    "decision_tree": DecisionTreeRegressor(min_samples_leaf=2, random_state=3),
    "random_forest": RandomForestRegressor(regressors.TREES, min_samples_leaf=2, max_features=0.5, random_state=3),
    "gradient_boosting": GradientBoostingRegressor(
        n_estimators=60, learning_rate=0.15, max_features=0.5, random_state=3
    ),
}
"""scikit-learn's own, which ours must equal."""


@pytest.mark.parametrize("name", TREE_KINDS)
def test_trees_forecast_what_scikit_learn_does(name):
    fitted, _ = regressors.fit(name, ROWS, TARGETS, seed=3)
    (loaded,) = regressors.from_files(name, "x", regressors.to_files(name, "x", [fitted]), count=1, features=3)
    rows = np.random.default_rng(1).random((200, 3))
    expected = clone(TREE_KINDS[name]).fit(ROWS, TARGETS).predict(rows)
    np.testing.assert_allclose(fitted.predict(rows), expected, rtol=1e-9)
    assert np.array_equal(loaded.predict(rows), fitted.predict(rows))


def test_trees_of_a_single_feature_and_of_a_single_leaf_forecast():
    for targets in (TARGETS, np.ones(len(ROWS))):
        fitted, _ = regressors.fit("random_forest", ROWS[:, :1], targets, seed=3)
        expected = clone(TREE_KINDS["random_forest"]).fit(ROWS[:, :1], targets)
        np.testing.assert_allclose(fitted.predict(ROWS[:, :1]), expected.predict(ROWS[:, :1]), rtol=1e-9)


@pytest.mark.parametrize("name", TREE_KINDS)
@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("left", 10**6), ("left", 0), ("left", -2), ("left", -1), ("right", 0), ("feature", 3), ("feature", -1),
        ("roots", -1), ("roots", 10**6), ("threshold", np.nan), ("value", np.inf), ("base", np.nan),
    ],
)  # fmt: skip
def test_a_tree_that_leads_out_of_its_arrays_is_refused(name, array, value):
    stored = artefacts.read_npz(regressors.to_files(name, "x", [regressors.fit(name, ROWS, TARGETS)[0]]), "x.npz")
    stored[f"{array}.0"][0] = value
    with pytest.raises(ArtefactError, match="decision tree"):
        regressors.from_files(name, "x", {"x.npz": artefacts.npz_bytes(stored)}, count=1, features=3)


@pytest.mark.parametrize("array", ["roots", "left", "right", "feature", "threshold", "value", "base"])
@pytest.mark.parametrize(
    "change",
    [lambda a: a[None], lambda a: a.astype(np.int32 if a.dtype == np.float64 else np.float64), lambda a: a[:0]],
)
def test_tree_arrays_of_other_shapes_or_types_are_refused(array, change):
    fitted, _ = regressors.fit("random_forest", ROWS, TARGETS)
    stored = artefacts.read_npz(regressors.to_files("random_forest", "x", [fitted]), "x.npz")
    stored[f"{array}.0"] = change(stored[f"{array}.0"])
    with pytest.raises(ArtefactError, match="do not fit"):
        regressors.from_files("random_forest", "x", {"x.npz": artefacts.npz_bytes(stored)}, count=1, features=3)


@pytest.fixture(scope="module")
def boosted():
    regressor = regressors.make("xgboost").set_params(n_estimators=3)
    return bytes(regressor.fit(ROWS, TARGETS).get_booster().save_raw("json"))


def test_a_stored_booster_comes_back(boosted):
    loaded = boosted_trees.load(regressors.make("xgboost"), boosted, features=3)
    expected = regressors.make("xgboost").set_params(n_estimators=3).fit(ROWS, TARGETS)
    assert np.array_equal(loaded.predict(ROWS), expected.predict(ROWS))


def test_a_booster_of_other_rows_is_refused(boosted):
    with pytest.raises(ArtefactError, match="features"):
        boosted_trees.load(regressors.make("xgboost"), boosted, features=4)


NAMES = ("rows", "columns", "depth")


@pytest.mark.parametrize(
    "now", [NAMES, ("rows", "new", "columns", "depth"), ("depth", "new", "rows", "newer", "columns")]
)
def test_a_booster_finds_its_features_by_their_names(now):
    fitted = regressors.make("xgboost").set_params(n_estimators=20).fit(ROWS, TARGETS)
    expected = fitted.predict(ROWS)
    loaded = boosted_trees.load(regressors.make("xgboost"), boosted_trees.stored(fitted, NAMES), features=now)
    rows = np.full((len(ROWS), len(now)), 1e9)
    for column, name in enumerate(NAMES):
        rows[:, now.index(name)] = ROWS[:, column]
    assert np.array_equal(loaded.get_booster().inplace_predict(rows), expected)
    assert len({*expected}) > 3


@pytest.mark.parametrize(
    ("stored", "why"), [(NAMES, "learned from 'columns', which"), ((), "no names"), (("a", "b", "a"), "no names")]
)
def test_a_booster_whose_features_are_not_found_by_name_is_refused(stored, why):
    fitted = regressors.make("xgboost").set_params(n_estimators=3).fit(ROWS, TARGETS)
    data = json.loads(boosted_trees.stored(fitted))
    data["learner"]["feature_names"] = [*stored]
    with pytest.raises(ArtefactError, match=why):
        boosted_trees.load(regressors.make("xgboost"), json.dumps(data).encode(), features=("rows", "depth", "width"))


def test_a_booster_cut_short_anywhere_is_refused(boosted):
    """XGBoost itself ends the process on some of these."""
    for end in range(0, len(boosted), 97):
        with pytest.raises(ArtefactError):
            boosted_trees.load(regressors.make("xgboost"), boosted[:end], features=3)


def test_a_booster_changed_at_random_is_refused_or_works(boosted):
    """Each of these, unchecked, could read beyond its arrays; 27 of 3,000 did."""
    rng = np.random.default_rng(0)
    refusals = 0
    for _ in range(200):
        data = bytearray(boosted)
        data[rng.integers(len(data))] = rng.integers(256)
        try:
            boosted_trees.load(regressors.make("xgboost"), bytes(data), features=3).predict(ROWS)
        except ArtefactError:
            refusals += 1
    assert refusals > 20


@pytest.mark.parametrize("name", ["ols", "k_neighbors", "xgboost"])
def test_files_of_another_kind_of_model_are_refused(name):
    measurements = measure_all(make_ops(8))
    files = PerCase("decision_tree", samples=2).fit(measurements).to_files()
    with pytest.raises(ArtefactError, match=f"decision_tree, not {name}"):
        create(name).from_files(files)


def test_parts_that_do_not_fit_each_other_are_refused():
    measurements = measure_all(make_ops(8))
    files = PerCase("ols", samples=2).fit(measurements).to_files()
    document = json.loads(files["model.json"])
    (machine,) = document["machines"].values()
    for change in (
        {"low": [0.0]},
        {"counters": []},
        {"normaliser": "luck"},
        {"cases": [[0, "compact"]]},
        {"centre": None},
    ):
        poisoned = {**document, "machines": {"m": {**machine, **change}}}
        with pytest.raises(ArtefactError):
            create("ols").from_files({**files, "model.json": artefacts.json_bytes(poisoned)})
