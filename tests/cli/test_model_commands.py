"""`threadcast train`, `compare`, `predict` and `models`, on measurements that a formula made."""

from __future__ import annotations

import getpass
import json
import shutil
from dataclasses import replace
from functools import partial

import pytest

from tests.cli.commands import invoke
from tests.models.synthetic_ops import MACHINE, make_ops, measure_all, true_seconds
from threadcast.cli.model_table import shown
from threadcast.collector import calibration
from threadcast.core import Case, OpGraph, Sample
from threadcast.core.topology import read_machine
from threadcast.models.joint_process import JointProcess
from threadcast.models.judgement import row_of
from threadcast.models.registry import ModelRegistry
from threadcast.models.retraining import is_held_out
from threadcast.store import Store
from threadcast.store.long_form import write_long_form

OPS = make_ops(18)
pytestmark = pytest.mark.usefixtures("one_library_thread")
FAST = ("--model", "hill_climb", "--model", "ols", "--model", "roofline", "--jobs", "1")


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory):
    """A store of two networks that share ops, to be copied: making one waits for the disk many times."""
    path = tmp_path_factory.mktemp("filled") / "store.sqlite"
    with Store.open(path) as store:
        store.add(measure_all(OPS))
        for name, ops in (("first/forward", OPS[:10]), ("second/forward", OPS[8:])):
            store.add_graph(name, OpGraph(tuple(map(str, range(len(ops)))), tuple(ops)))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch, filled_store):
    """A directory with a store of two networks that share ops, where no setting of the user's reaches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("THREADCAST_STORE", str(tmp_path / "store.sqlite"))
    shutil.copy(filled_store, tmp_path / "store.sqlite")
    return tmp_path


def document(*arguments):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments, code=1):
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return result.stderr


def test_a_trained_joint_process_forecasts_unmeasured_ops_with_the_shipped_prior(folder):
    assert document("train", "--model", "joint_process", "--jobs", "1")["models"][0]["version"] == "joint_process@1"
    loaded = ModelRegistry(folder / "threadcast" / "models").load("joint_process@1")
    known, new = measure_all(OPS), make_ops(20, seed=7)[-1]
    found = loaded.predict(new, [], MACHINE.cases(), machine=MACHINE)
    wanted = JointProcess(prior=True).fit(known).predict(new, [], MACHINE.cases(), machine=MACHINE)
    assert found.seconds == pytest.approx(wanted.seconds, rel=1e-6)


def test_training_registers_every_model_with_its_score_and_the_best_gets_the_alias(folder):
    found = document("train", *FAST)
    assert [model["version"] for model in found["models"]] == ["hill_climb@1", "ols@1", "roofline@1"]
    assert {model["split"] for model in found["models"]} == {"new_network"}
    best = min(found["models"], key=lambda model: (model["unusable"], model["cost"], model["samples"]))
    assert found["alias"] == {"champion": best["version"]}
    registry = ModelRegistry(folder / "threadcast" / "models")
    manifest = registry.manifest("ols@1")
    assert manifest.trained_on["networks"] == ["first/forward", "second/forward"]
    assert manifest.trained_on["ops"] == len(OPS)
    assert manifest.metrics["new_network"]["accuracy"] == found["models"][1]["accuracy"]
    assert registry.resolve("champion") == best["version"]


def test_an_alias_is_retrained_and_moves_only_to_a_better_model(folder, monkeypatch):
    held_out = [op for op in make_ops(90) if is_held_out(op.key)][-6:]
    with Store.open(folder / "store.sqlite") as store:
        store.add(measure_all(held_out))
    document("train", "--model", "static_xgboost", "--jobs", "1")
    kept = document("train", "--promote-if-better")
    assert (kept["promoted"], kept["now"]) == (False, "static_xgboost@1")
    with Store.open(folder / "store.sqlite") as store, Store.open(folder / "slower.sqlite") as slower:
        slower.add([replace(m, samples=tuple(Sample(3 * s.seconds) for s in m.samples)) for m in store.measurements()])
    monkeypatch.setenv("THREADCAST_STORE", str(folder / "slower.sqlite"))
    moved = document("train", "--promote-if-better")
    assert (moved["promoted"], moved["before"], moved["now"]) == (
        True, "static_xgboost@1", "static_xgboost@2"
    )  # fmt: skip
    assert moved["candidate"]["accuracy"] > moved["champion"]["accuracy"]
    assert "champion stays static_xgboost@2" in invoke("train", "--promote-if-better").stdout
    assert "leave out other choices" in refused("train", "--promote-if-better", "--samples", "1", code=2)


def test_without_an_alias_there_is_nothing_to_be_better_than_and_the_best_of_all_kinds_gets_it(folder, monkeypatch):
    monkeypatch.setattr("threadcast.models.registry_of_kinds.names", lambda: ("roofline", "hill_climb"))
    found = document("train", "--promote-if-better", "--jobs", "1")
    assert found["alias"]["champion"] in ("roofline@1", "hill_climb@1")
    assert "ops are held out" in refused("train", "--promote-if-better")


def test_the_training_table_fits_eighty_columns_and_names_the_alias(folder):
    result = invoke("train", *FAST, "--alias", "candidate")
    assert result.exit_code == 0, result.output
    assert "candidate is " in result.stdout
    assert "judged by new_network" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert all(f" {name} " in result.stdout for name in ("hill_climb", "ols", "roofline"))


def test_a_model_that_cannot_be_fitted_is_not_registered_and_the_others_are(folder):
    with Store.open("few.sqlite") as store:
        store.add(measure_all(OPS[:4]))
    result = invoke(
        "train", "--store", "few.sqlite", "--model", "ols", "--model", "hill_climb", "--jobs", "1", "--json"
    )
    assert result.exit_code == 0, result.output
    assert [model["version"] for model in json.loads(result.stdout)["models"]] == ["hill_climb@1"]
    assert "ols was not registered" in result.stderr


def test_milliseconds_among_seconds_are_flagged_and_the_versions_remember(folder):
    slow = OPS[4].key
    odd = [
        replace(m, samples=tuple(Sample(1e3 * s.seconds) for s in m.samples)) if m.op.key == slow else m
        for m in measure_all(OPS)
    ]
    write_long_form(odd, folder / "odd.csv")
    assert "is one of both in milliseconds?" in invoke("compare", str(folder / "odd.csv"), *FAST).stderr
    (sentence,) = document("compare", str(folder / "odd.csv"), *FAST)["odd_units"]
    assert slow in sentence
    with Store.open(folder / "odd.sqlite") as store:
        store.add(odd)
    document("train", *FAST, "--store", str(folder / "odd.sqlite"))
    assert ModelRegistry(folder / "threadcast" / "models").manifest("champion").trained_on["odd_units"] == [sentence]


def test_a_file_counts_once_whatever_its_name(folder):
    write_long_form(measure_all(OPS), folder / "times.csv")
    shutil.copy(folder / "times.csv", folder / "copy.csv")
    few = ("--model", "hill_climb", "--jobs", "1")
    twice = ["times.csv", "times.csv", "copy.csv"]
    for name in ("times.csv", "copy.csv"):
        assert (
            f"{name} was read before, as times.csv; nothing of it counts again"
            in invoke("compare", *twice, *few).stderr
        )
    (alone,), (row,) = (document("compare", *files, *few)["rows"] for files in (["times.csv"], twice))
    assert (row["points"], row["noise_floor"]) == (alone["points"], alone["noise_floor"])


def test_a_roofline_is_trained_with_what_this_machine_can_do(folder, monkeypatch):
    monkeypatch.setattr(calibration, "calibrate", partial(calibration.calibrate, seconds=0.01))
    found = document("train", "--model", "roofline", "--calibrate", "--jobs", "1")
    assert found["alias"] == {"champion": "roofline@1"}
    roofline = ModelRegistry(folder / "threadcast" / "models").load("roofline@1")
    assert read_machine().fingerprint in roofline._limits


def test_what_cannot_be_trained_is_refused_before_anything_is_registered(folder):
    with Store.open("empty.sqlite"):
        pass
    assert "threadcast profile" in refused("train", "--store", "empty.sqlite")
    assert "no measurements of other" in refused("train", "--machine", "other")
    assert "alias='No Name'" in refused("train", "--alias", "No Name")
    assert "no model is called 'oracle'" in refused("train", "--model", "oracle", code=2)
    assert "--model roofline" in refused("train", "--model", "ols", "--calibrate", code=2)
    assert "no store at" in refused("train", "--store", "none.sqlite")
    assert document("models", "list") == {"models": [], "aliases": {}}


def test_models_are_compared_on_the_store_by_left_out_networks(folder):
    found = document("compare", *FAST)
    assert found["split"] == "new_network"
    compared = [(row["model"], row["samples"]) for row in found["rows"] if row["model"] != "hill_climb"]
    assert sorted(compared) == [*(("ols", count) for count in (1.0, 3.0, 4.0)), ("roofline", 0.0)]
    costs = [row["cost"] for row in found["rows"]]
    assert costs == sorted(costs)
    best = found["best"]
    assert (best["model"]["model"], best["ops"]) == (found["rows"][0]["model"], 20)
    assert best["next"]["cost"] - best["model"]["cost"] == pytest.approx(best["more"])
    assert best["low"] <= best["more"] <= best["high"]
    assert {row["ops"] for row in found["rows"]} == {20}  # the shared ops are judged with both
    assert {(row["model"], row["fold"]) for row in found["by_fold"]} == {
        (name, fold) for name in ("hill_climb", "ols", "roofline") for fold in ("first/forward", "second/forward")
    }
    for row in found["rows"]:
        assert row["accuracy"] <= 1
        assert row["regret_p95"] >= 0


def test_a_file_that_is_no_table_of_measurements_is_refused(folder):
    (folder / "wrong.csv").write_text("a,b\n1,2\n")
    assert "missing column" in refused("compare", "wrong.csv")
    refused("compare", "none.csv", code=2)


def test_an_op_of_the_store_is_forecast_by_its_key(folder):
    document("train", "--model", "ols", "--jobs", "1")
    op = OPS[0]
    found = document("predict", op.key, "--machine", MACHINE.fingerprint)
    assert (found["model"], found["machine"]) == ("ols@1", MACHINE.fingerprint)
    assert [Case(case["threads"], case["affinity"]) for case in found["cases"]] == list(MACHINE.cases())
    (seconds,), (low,), (high,) = found["seconds"], found["low"], found["high"]
    for case, s, below, above in zip(MACHINE.cases(), seconds, low, high):
        assert s == pytest.approx(true_seconds(op, case), rel=0.1)
        assert below <= s <= above
    (about,) = found["ops"]
    assert (about["key"], about["kind"], about["count"]) == (op.key, op.kind, 1)
    fastest = min(zip(seconds, found["cases"]), key=lambda pair: pair[0])[1]
    assert about["best"] == fastest


def test_the_curve_of_an_op_is_shown_case_by_case(folder):
    result = invoke("predict", OPS[0].key, "--machine", MACHINE.fingerprint)
    assert result.exit_code == 0, result.output
    assert "joint_process (shipped prior and store)" in result.stdout
    assert result.stdout.count("compact") == 4
    assert result.stdout.count("spread") >= 4
    assert result.stdout.count("best") == 1


def test_every_op_of_a_stored_graph_is_forecast(folder):
    found = document("predict", "first/forward", "--machine", MACHINE.fingerprint, "--model", "hill_climb")
    assert [op["key"] for op in found["ops"]] == [op.key for op in OPS[:10]]
    assert len(found["seconds"]) == 10
    result = invoke("predict", "first/forward", "--machine", MACHINE.fingerprint, "--model", "hill_climb", "--curves")
    assert result.stdout.count("best") == 10


def test_ops_of_one_key_with_curves_of_their_own_are_forecast_apart(folder):
    curves = {"a": {1: 4.0, 2: 3.0}, "b": {1: 1.0, 2: 9.0}, "c": {1: 4.0, 2: 3.0}}
    OpGraph(("a", "b", "c"), (OPS[0],) * 3, (), curves).write(folder / "graph.json")
    found = document("predict", "graph.json", "--cores", "2")
    assert [(op["count"], op["best"]["threads"]) for op in found["ops"]] == [(2, 2), (1, 1)]
    assert found["seconds"] == [[4.0, 3.0], [1.0, 9.0]]


def test_what_cannot_be_forecast_is_refused(folder):
    assert "no op mm-0123456789abcdef" in refused("predict", "mm-0123456789abcdef", "--machine", MACHINE.fingerprint)
    assert "no op of the store has the key 'mm-xxx'; no network named 'mm-xxx'" in refused("predict", "mm-xxx")
    assert "first/forward" in refused("predict", "third/forward", "--machine", MACHINE.fingerprint)
    assert "no model is called 'oracle'" in refused(
        "predict", OPS[0].key, "--machine", MACHINE.fingerprint, "--model", "oracle"
    )
    assert MACHINE.fingerprint in refused("predict", OPS[0].key, "--machine", "other")


def test_aliases_move_and_go_back_from_the_command_line(folder):
    document("train", "--model", "hill_climb", "--jobs", "1")
    document("train", "--model", "hill_climb", "--jobs", "1")
    assert document("models", "alias", "stable", "hill_climb@1") == {"alias": "stable", "version": "hill_climb@1"}
    assert document("models", "rollback", "champion") == {"alias": "champion", "version": "hill_climb@1"}
    shown = document("models", "show", "champion")
    assert shown["version"] == "hill_climb@1"
    assert [move["rollback"] for move in shown["alias_moves"]] == [False, False, True]
    listed = document("models", "list")
    assert [row["aliases"] for row in listed["models"]] == [["champion", "stable"], []]
    assert "no earlier version" in refused("models", "rollback", "champion")
    assert "hill_climb@2" in refused("models", "show", "hill_climb@9")


@pytest.mark.system
def test_training_on_a_dask_cluster_gives_the_same_models(folder):
    from distributed import LocalCluster

    local = document("train", "--model", "ols", "--model", "xgboost", "--jobs", "1")["models"]
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        there = document("train", "--model", "ols", "--model", "xgboost", "--backend", "dask", "--address", address)
    for mine, theirs in zip(local, there["models"], strict=True):
        for what in ("model", "accuracy", "regret_mean", "coverage_90"):
            assert mine[what] == theirs[what]
    registry = ModelRegistry(folder / "threadcast" / "models")
    curves = [
        registry.load(version).predict(OPS[0], observed_of(registry, version), MACHINE.cases(), machine=MACHINE)
        for version in ("ols@1", "ols@2")
    ]
    assert curves[0].seconds.tolist() == curves[1].seconds.tolist()


def observed_of(registry, version):
    model, entry = registry.load(version), measure_all(OPS[:1])
    observed = []
    while (case := model.propose(OPS[0], observed, MACHINE)) is not None:
        observed.append(next(m for m in entry if m.case == case))
    return observed


def test_a_cluster_that_does_not_answer_is_named(folder, monkeypatch):
    monkeypatch.setattr("threadcast.models.parallel.CONNECT_S", 0.5)
    assert "tcp://127.0.0.1:9" in refused(
        "train", "--model", "ols", "--backend", "dask", "--address", "tcp://127.0.0.1:9"
    )
    wrong = refused("train", "--model", "ols", "--backend", "dask", "--address", "nonsense")
    assert wrong.startswith("threadcast: error: no Dask scheduler answers at nonsense: missing port")
    refused("train", "--model", "ols", "--backend", "dask", code=2)
    refused("train", "--model", "ols", "--address", "tcp://127.0.0.1:9", code=2)


def test_a_model_that_forecasts_measured_ops_only_is_completed_by_the_untrained_one(folder):
    document("train", "--model", "hill_climb", "--jobs", "1")
    new = make_ops(20, seed=7)[-1]
    OpGraph(("old", "new"), (OPS[0], new)).write(folder / "graph.json")
    found = invoke("predict", "graph.json", "--machine", MACHINE.fingerprint, "--json")
    assert found.exit_code == 0, found.output
    assert "nothing was measured on this machine of 1 of 2 different ops" in found.stderr
    said = json.loads(found.stdout)
    assert said["model"] == "hill_climb@1, joint_process (shipped prior and store) for ops that were not measured"
    alone = document("predict", "graph.json", "--machine", MACHINE.fingerprint, "--model", "joint_process")
    assert alone["model"] == "joint_process (shipped prior and store)"
    assert said["seconds"][1] == alone["seconds"][1]
    assert set(said["source"][0]) == {"measured"}
    assert "measured" not in said["source"][1]


def test_a_damaged_alias_does_not_hide_the_others(folder):
    document("train", "--model", "hill_climb")
    document("models", "alias", "next", "champion")
    (folder / "threadcast" / "models" / "aliases" / "next" / "1.json").write_text("{")
    listed = invoke("models", "list", "--json")
    assert json.loads(listed.stdout)["aliases"] == {"champion": "hill_climb@1"}
    assert "alias next is left out: " in listed.stderr
    assert "next/1.json cannot be loaded" in refused("predict", "first/forward", "--model", "next")


def test_old_versions_are_pruned_and_moves_say_which_user_made_them(folder):
    for _ in range(3):
        document("train", "--model", "hill_climb", "--jobs", "1", "--no-alias")
    document("models", "alias", "champion", "hill_climb@2")
    assert document("models", "prune", "--keep", "1", "--dry-run")["versions"] == ["hill_climb@1"]
    assert len(document("models", "list")["models"]) == 3
    removed = document("models", "prune", "--keep", "1")
    assert (removed["versions"], removed["left"]) == (["hill_climb@1"], 2)
    assert removed["bytes"] > 0
    assert [row["version"] for row in document("models", "list")["models"]] == ["hill_climb@2", "hill_climb@3"]
    (move,) = document("models", "show", "champion")["alias_moves"]
    assert move["by"] == f"user {getpass.getuser()}"


@pytest.mark.parametrize(
    ("mean", "error", "said"),
    [
        (1.06e-4, 1.2e-4, "0.01\u00b10.01"),
        (0.166, 0.06, "17\u00b16"),
        (0.0, 0.0, "0\u00b10"),
        (0.0123, None, "1.23"),
        (1e-6, 1e-7, "0.000\u00b10.000"),
        (None, None, "-"),
    ],
)
def test_regret_has_the_digits_that_its_error_leaves(mean, error, said):
    row = row_of("amdahl", "s", "all", [])
    column = shown([replace(row, regret_mean=mean, regret_spread=error)], title="t").columns[5]
    assert list(column.cells) == [said]
