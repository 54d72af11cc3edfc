"""`threadcast plan`: from a graph file or measurements to a plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import invoke
from tests.cli.graph_files import GRAPH, document_of, written
from threadcast.cli.plan import most_at_once
from threadcast.core import Machine, Measurement, Op, OpGraph, Placement, Plan, Sample
from threadcast.core.topology import read_machine
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.store import Store


def test_a_graph_with_curves_is_planned_without_store_or_model(tmp_path: Path) -> None:
    result = invoke("plan", written(tmp_path), "--cores", "8", "--json")
    assert result.exit_code == 0, result.output
    plan = Plan.from_json(json.loads(result.stdout))
    check_schedule(OpGraph.from_json(GRAPH), plan, machine=Machine.uniform("cores", 8))
    assert plan.cores == 8
    assert plan.curves_from == "file"
    assert plan.gap is not None
    assert plan.gap >= 0


def test_ops_without_a_curve_are_forecast_beside_those_with_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("THREADCAST_STORE", str(tmp_path / "none.sqlite"))
    monkeypatch.setenv("THREADCAST_MODELS", str(tmp_path / "none"))
    inputs = [[[64, 64]], [[64, 64]]]
    ops = [{"id": "given", "kind": "mm", "curve": {"1": 4.0, "2": 2.5}}, {"id": "new", "kind": "mm", "inputs": inputs}]
    (tmp_path / "part.json").write_text(json.dumps({**GRAPH, "ops": ops, "edges": []}))
    two = tmp_path / "two.json"
    two.write_text(json.dumps(Machine.uniform("two", 2).to_json()))
    arguments = ("plan", str(tmp_path / "part.json"), "--machine", str(two), "--policy", "sequential", "--json")
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    plan = Plan.from_json(json.loads(result.stdout))
    given, new = (next(op for op in plan.ops if op.id == name) for name in ("given", "new"))
    assert given.duration_s == 2.5
    assert 1e-7 < new.duration_s < 1e-2
    assert plan.curves_from == "joint_process (shipped prior and store) and file"
    assert "nothing was measured on this machine of 1 of 2 different ops" in result.stderr


def test_planning_a_graph_with_curves_needs_only_the_small_install(tmp_path: Path) -> None:
    program = (
        "import sys; from threadcast.cli.main import cli; "
        f"cli(['plan', {written(tmp_path)!r}, '--cores', '4', '--compare'], standalone_mode=False); "
        "heavy = {'torch', 'pandas', 'sklearn', 'xgboost', 'sqlalchemy', 'flask', 'pyarrow'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_policy_is_compared_in_one_table(tmp_path: Path) -> None:
    result = invoke("plan", written(tmp_path), "--cores", "8", "--compare", "--json")
    document = json.loads(result.stdout)
    makespans = {row["policy"]: row["makespan_s"] for row in document["compared"]}
    assert {"fifo", "manual_grid", "strategies_1_2", "strategies", "critical_path"} <= set(makespans)
    assert document["makespan_s"] == min(makespans.values())


def test_a_policys_options_are_given_by_name(tmp_path: Path) -> None:
    graph = written(tmp_path)
    uniform = invoke(
        "plan", graph, "--cores", "8", "--json", "--policy", "uniform", "--option", "inter=2", "--option", "intra=2"
    )
    assert {op["threads"] for op in json.loads(uniform.stdout)["ops"]} <= {1, 2}
    chosen = invoke("plan", graph, "--cores", "8", "--json", "--policy", "strategies", "--option", "strategies=1,3")
    assert json.loads(chosen.stdout)["policy"] == "strategies_1_3"
    assert invoke("plan", graph, "--option", "inter=2").exit_code == 2
    assert invoke("plan", graph, "--policy", "uniform", "--option", "inter").exit_code == 2
    for value in ("NaN", "1.5", "true", "[1]", "1,2"):
        wrong = invoke("plan", graph, "--policy", "uniform", "--option", f"inter={value}", "--option", "intra=1")
        assert (wrong.exit_code, "must be a whole number" in wrong.stderr) == (1, True), wrong.output
    missing = invoke("plan", graph, "--cores", "8", "--policy", "uniform")
    assert missing.exit_code == 1
    assert "its options are: inter, intra" in missing.stderr


def test_options_that_are_no_policys_are_refused(tmp_path: Path) -> None:
    graph = written(tmp_path)
    for name in ("seed", "budget_s", "interference", "problem", "policy", "options"):
        result = invoke("plan", graph, "--policy", "manual_grid", "--option", f"{name}=1")
        assert (result.exit_code, f"{name}=... is no option" in result.stderr) == (2, True), result.output
    for name in ("name", "factory", ""):
        result = invoke("plan", graph, "--policy", "manual_grid", "--option", f"{name}=1")
        assert (result.exit_code, "its options are: inter, intra" in result.stderr) == (1, True), result.output


def test_the_search_takes_a_budget_and_a_seed(tmp_path: Path) -> None:
    graph = written(tmp_path)
    result = invoke("plan", graph, "--cores", "8", "--budget-s", "0.2", "--seed", "7", "--json")
    plan = Plan.from_json(json.loads(result.stdout))
    check_schedule(OpGraph.from_json(GRAPH), plan, machine=Machine.uniform("cores", 8))
    for flag, value, complaint in (
        ("--budget-s", "0", "not in the range x>0"),
        ("--budget-s", "soon", "not a valid float"),
        ("--seed", "-1", "not in the range x>=0"),
        ("--seed", "1.5", "not a valid integer"),
    ):
        wrong = invoke("plan", graph, flag, value)
        assert (wrong.exit_code, complaint in wrong.stderr) == (2, True), wrong.output
    for value in ("nan", "inf"):
        wrong = invoke("plan", graph, "--budget-s", value)
        assert (wrong.exit_code, "must be a finite number of seconds above 0" in wrong.stderr) == (1, True)
    for flag in (("--budget-s", "1"), ("--seed", "1")):
        wrong = invoke("plan", graph, "--policy", "fifo", *flag)
        assert (wrong.exit_code, f"{flag[0]} needs the search" in wrong.stderr) == (2, True)


def test_explain_says_what_scheduling_can_gain_at_most(tmp_path: Path) -> None:
    shown = invoke("plan", written(tmp_path), "--cores", "8", "--explain")
    assert shown.exit_code == 0, shown.output
    for part in ("Can scheduling help? Yes, up to 1.", "work over critical path", "side by side"):
        assert part in shown.stdout
    document = json.loads(invoke("plan", written(tmp_path), "--cores", "8", "--explain", "--json").stdout)
    report = document["explain"]
    assert report["verdict"] in shown.stdout
    assert 0 < report["reach"]["bound_s"] == document["lower_bound_s"]
    assert report["reach"]["work_s"] == pytest.approx(0.018)
    assert report["reach"]["path_s"] == pytest.approx(0.015)
    assert [holder["id"] for holder in report["holders"]] == ["first", "join", "left", "right"]
    assert "explain" not in json.loads(invoke("plan", written(tmp_path), "--cores", "8", "--json").stdout)


@pytest.mark.parametrize(
    ("curves", "edges", "said"),
    [
        ([{"1": 0.01, "4": 0.0025}] * 3, [(0, 1), (1, 2)], "No, at most 1.00x over one op after another"),
        ([{"1": 0.01, "4": 0.01}] * 3, [(0, 1), (1, 2)], "100% of it in ops that do not scale"),
        ([{"1": 0.01, "2": 0.005, "4": 0.0025}] * 4, [], "one op after another keeps them busy already"),
        ([{"1": 1e-7}] * 4, [], "The ops are so short"),
        ([{"1": 0}] * 2, [], "No: no op takes time."),
        ([{"1": 0.01, "4": 0.015}, {"1": 0.04, "4": 0.01}], [(0, 1)], "By giving each op its own thread count"),
    ],
)
def test_the_verdict_names_what_is_in_the_way(
    tmp_path: Path, curves: list[dict[str, float]], edges: list[tuple[int, int]], said: str
) -> None:
    ops = [{"id": f"op{i}", "kind": "mm", "inputs": [], "curve": curve} for i, curve in enumerate(curves)]
    graph = written(tmp_path, ops=ops, edges=[[f"op{a}", f"op{b}"] for a, b in edges])
    result = invoke("plan", graph, "--cores", "4", "--explain", "--policy", "fifo")
    assert (result.exit_code, said in result.stdout) == (0, True), result.output


def test_the_plan_and_its_timeline_are_written(tmp_path: Path) -> None:
    plan_file, timeline_file = tmp_path / "plan.json", tmp_path / "timeline.json"
    result = invoke(
        "plan", written(tmp_path), "--cores", "4", "--output", str(plan_file), "--timeline", str(timeline_file)
    )
    assert result.exit_code == 0, result.output
    assert {op.id for op in Plan.read(plan_file).ops} == {"first", "left", "right", "join"}
    assert json.loads(timeline_file.read_text())["traceEvents"]


def test_a_machine_file_gives_cache_groups(tmp_path: Path) -> None:
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps(Machine.uniform("tiles", 8, group_size=2).to_json()))
    graph = written(tmp_path)
    result = invoke("plan", graph, "--machine", str(machine), "--cores", "6", "--json")
    assert json.loads(result.stdout)["cores"] == 6
    too_many = invoke("plan", graph, "--machine", str(machine), "--cores", "9")
    assert too_many.exit_code == 1
    assert "cores=9 exceeds the 8 cores of tiles-8c" in too_many.stderr


def test_more_cores_than_any_curve_offers_are_planned_for_with_a_remark(tmp_path: Path) -> None:
    graph = written(tmp_path)
    result = invoke("plan", graph, "--cores", "64", "--json")
    assert result.exit_code == 0, result.output
    plan = Plan.from_json(json.loads(result.stdout))
    assert plan.cores == 64
    assert max(op.threads for op in plan.ops) == 8
    assert plan.makespan_s == pytest.approx(Plan.from_json(document_of(graph, cores=12)).makespan_s)
    assert "no curve goes beyond 8 threads: of 64 cores one op uses at most 8" in result.stderr


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with one stored graph whose ops were measured in every case of this machine."""
    monkeypatch.setenv("THREADCAST_MODELS", str(tmp_path / "models"))
    machine, url = read_machine(), f"sqlite:///{tmp_path}/store.db"
    ops = (Op("relu"), Op("mm"))
    with Store.open(url) as store:
        store.add_graph("own/tiny/b1/forward", OpGraph(("a", "b"), ops))
        store.add(
            Measurement(op, machine, case, (Sample(0.001 * (1 + i) * case.threads),))
            for i, op in enumerate(ops)
            for case in machine.cases()
        )
    return url


def test_a_stored_graph_is_planned_from_measurements_alone(store_url: str) -> None:
    result = invoke("plan", "own/tiny/b1/forward", "--store", store_url, "--json", "--policy", "strategies_1")
    assert result.exit_code == 0, result.output
    plan = Plan.from_json(json.loads(result.stdout))
    assert plan.curves_from == "joint_process (shipped prior and store)"
    assert {op.id: op.threads for op in plan.ops} == {"a": 1, "b": 1}
    assert plan.makespan_s == pytest.approx(0.003)


def test_fewer_cores_are_planned_from_the_whole_machines_measurements(store_url: str) -> None:
    named = ("--machine", read_machine().fingerprint)
    for machine in ((), named):
        result = invoke("plan", "own/tiny/b1/forward", "--store", store_url, "--cores", "1", "--json", *machine)
        assert json.loads(result.stdout)["cores"] == 1
    unknown = invoke("plan", "own/tiny/b1/forward", "--store", store_url, "--machine", "elsewhere")
    assert "no machine is called 'elsewhere'" in unknown.stderr


def test_the_local_model_answers_where_the_service_does_not(store_url: str) -> None:
    result = invoke("plan", "own/tiny/b1/forward", "--store", store_url, "--url", "http://127.0.0.1:9", "--json")
    assert "the local model answered: the service cannot be reached" in result.stderr
    assert json.loads(result.stdout)["curves_from"] == "joint_process (shipped prior and store) (local fallback)"


def test_a_key_file_that_holds_no_key_is_an_error_and_not_shown(store_url: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("se cret")
    result = invoke(
        "plan", "own/tiny/b1/forward", "--store", store_url, "--url", "http://127.0.0.1:9", "--key-file", str(file)
    )
    assert (result.exit_code, str(file) in result.stderr, "se cret" in result.output) == (1, True, False)


def test_a_network_is_planned_before_anything_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_MODELS", str(tmp_path / "models"))
    store = f"sqlite:///{tmp_path}/none.db"
    result = invoke("plan", "lenet", "--size", "tiny", "--store", store, "--json")
    assert result.exit_code == 0, result.output
    plan = Plan.from_json(json.loads(result.stdout))
    assert plan.curves_from == "joint_process (shipped prior and store)"
    assert 1e-6 < plan.makespan_s < 1.0
    assert "nothing was measured on this machine of" in result.stderr
    assert not (tmp_path / "none.db").exists()
    found = invoke("predict", "lenet", "--size", "tiny", "--store", store, "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    seconds, low, high = (np.array(answer[name]) for name in ("seconds", "low", "high"))
    assert (low < 0.5 * seconds).all()
    assert (high > 2 * seconds).all()


def test_ops_that_follow_one_another_are_not_at_once() -> None:
    ops = (Placement("a", (0,), 1, 0, 1), Placement("b", (1,), 1, 1, 2), Placement("c", (0,), 1, 1.5, 3))
    assert most_at_once(Plan(2, "x", ops)) == 2
    assert most_at_once(Plan(2, "x", ops[:2])) == 1
