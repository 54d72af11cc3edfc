"""The demo does the whole job for real, and stops its service whatever happens."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import urllib3
from click.testing import CliRunner
from numpy.typing import NDArray

from tests.processes import command_of
from threadcast.cli import demo, demo_many_core, demo_report, demo_service
from threadcast.cli.demo_report import RunReport
from threadcast.cli.demo_summary import verdict
from threadcast.cli.main import cli
from threadcast.collector.campaign import ENOUGH
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import CurveTable, Machine, Op, OpGraph, Placement, Plan, Trace, read_machine
from threadcast.core.errors import ServiceUnavailable
from threadcast.models import registry_of_kinds
from threadcast.models.registry import ModelRegistry
from threadcast.runtime.tuner.guard import Verdict
from threadcast.store import Store

PROMISED = {
    "ops_measured", "measured_share", "models", "predictions_over_http", "lower_bound_s", "predicted_step_s",
    "default_step_s", "planned_step_s", "many_core",
}  # fmt: skip


def children() -> set[int]:
    """Processes that this one has started and that still are there."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(status.parent.name))
    return found


def is_resource_tracker(pid: int) -> bool:
    """Python's own helper of multiprocessing, which ends with this process."""
    return b"resource_tracker" in command_of(pid)


@dataclass(frozen=True)
class Demo:
    """A run of the demo on small networks: its folder, its summary, and what the service counted as forecast."""

    folder: Path
    summary: dict[str, Any]
    stdout: str
    served: dict[str, float]
    """Points by version of the model, of which the service had given forecasts at the end."""
    left_over: set[int]
    """Processes that the demo left behind."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    served: dict[str, float] = {}
    fetch = demo_many_core.fetch

    def fetch_and_count(url: str, sampled: demo_many_core.Sampled, **options: float) -> CurveTable:
        found = fetch(url, sampled, **options)
        with urllib3.PoolManager() as pool:
            text = pool.request("GET", f"{url}/metrics").data.decode()
        counted = re.findall(r'^threadcast_predicted_points_total\{model="(.+)"\} (.+)$', text, re.MULTILINE)
        served.update((version, float(count)) for version, count in counted)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "WORKLOADS", (("lenet", "tiny", "training"), ("inception_block", "tiny", "forward")))
        patch.setattr(demo, "MEAN_S", 0.004)
        patch.setattr(demo_many_core, "NETWORK", ("inception_block", "large", "forward"))
        patch.setattr(demo_many_core, "fetch", fetch_and_count)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("THREADCAST_CORUN", str(folder / "corun"))
        before = children()
        ran = CliRunner().invoke(cli, ["demo", "--output", str(folder), "--steps", "3", "--json"])
        left_over = {pid for pid in children() - before if not is_resource_tracker(pid)}
    assert ran.exit_code == 0, ran.output
    return Demo(folder, json.loads((folder / "summary.json").read_text()), ran.stdout, served, left_over)


@pytest.mark.system
def test_demo_measures_learns_serves_plans_and_runs(done: Demo) -> None:
    summary = done.summary
    assert done.left_over == set()
    assert set(summary) >= PROMISED
    assert json.loads(done.stdout) == summary
    assert summary["measured_share"] == 1.0
    assert summary["predictions_over_http"] == summary["ops_measured"] > 50
    few = len(read_machine().cases()) < demo.FEWEST_CASES
    assert set(summary["models"]) == set(demo_many_core.KINDS if few else registry_of_kinds.names())
    assert ("Xeon Phi" in summary["models_judged_by"]) is few
    report = (done.folder / "report.html").read_text()
    assert ("cases of an op, as here, cannot judge a model" in report) is few
    assert report.split("<p>")[1].startswith(f"<strong>{escape(summary['verdict'])}</strong>")
    assert summary["verdict"].startswith("Planned steps take ")
    assert summary["load"] in summary["verdict"]
    assert 0 < summary["lower_bound_s"] <= summary["predicted_step_s"]
    for network in summary["networks"].values():
        assert network["guard_keeps"] in {"plan", "default"}
        assert min(network["default_step_s"], network["planned_step_s"]) > 0


@pytest.mark.system
def test_the_champion_is_the_model_that_costs_least_as_train_would_say(done: Demo) -> None:
    costs = {name: row["cost"] for name, row in done.summary["models"].items() if row["cost"] is not None}
    champion = ModelRegistry(done.folder / "models").manifest("champion")
    assert champion.version == done.summary["model_served"]
    assert costs[champion.model] <= min(costs.values()) + 1e-12
    if len(read_machine().cases()) < demo.FEWEST_CASES:
        assert champion.metrics == {}  # of another machine
        return
    row = champion.metrics["new_network"]
    assert (row["unusable"], row["cost"]) == (0, costs[champion.model])


@pytest.mark.system
def test_the_demos_runs_are_on_the_dashboard_of_its_store(done: Demo) -> None:
    with Store.open(done.folder / "measurements.db") as store:
        runs, graphs = store.browse.runs(limit=10), set(store.graphs())
    assert len({run.graph for run in runs}) == len(runs) == len(done.summary["networks"])
    assert {run.graph for run in runs} <= graphs
    assert all(run.plan.makespan_s > 0 < run.trace.makespan_s for run in runs)


@pytest.mark.system
def test_the_many_core_figures_are_those_of_the_store_and_the_simulator(done: Demo) -> None:
    many_core, phi = done.summary["many_core"], XeonPhi()
    with Store.open(done.folder / "measurements.db") as store:
        measured = store.measurements(machine=phi.machine.fingerprint)
    cases = phi.machine.cases()
    graph = demo_many_core._graph("inception_block", "large", "forward")
    ops = graph.distinct_ops()
    assert {m.op.key for m in measured} == set(ops)
    assert all(m.conditions["simulated"] for m in measured)
    share = len({(m.op.key, m.case) for m in measured}) / (len(ops) * len(cases))
    assert many_core["cases_measured_share"] == pytest.approx(share)
    assert 0 < share < 0.1

    model = ModelRegistry(done.folder / "models").load("many_core")
    known = [[m for m in measured if m.op.key == key] for key in ops]
    curves = model.predict_many(list(ops.values()), known, cases, machine=phi.machine)
    exact = np.array([[phi.seconds(op, case) for case in cases] for op in ops.values()])
    chosen = exact[np.arange(len(ops)), curves.seconds.argmin(axis=1)]
    assert many_core["regret_mean"] == pytest.approx(np.mean(chosen / exact.min(axis=1) - 1), rel=1e-6, abs=1e-9)
    every_core = exact[:, [case.threads for case in cases].index(len(phi.machine))]
    assert many_core["regret_all_cores"] == pytest.approx(np.mean(every_core / exact.min(axis=1) - 1), rel=1e-6)
    assert many_core["regret_mean"] < many_core["regret_all_cores"]
    assert 0 < many_core["expected_regret"] <= ENOUGH

    row = {key: i for i, key in enumerate(ops)}
    of_step = [row[op.key] for op in graph.ops]
    assert many_core["default_step_s"] == pytest.approx(every_core[of_step].sum(), rel=1e-6)
    assert longest_path(graph, curves.seconds.min(axis=1)[of_step]) <= many_core["predicted_step_s"] * (1 + 1e-9)
    assert many_core["predicted_step_s"] < many_core["default_step_s"]
    assert longest_path(graph, exact.min(axis=1)[of_step]) <= many_core["planned_step_s"] < many_core["default_step_s"]


def longest_path(graph: OpGraph, seconds: NDArray[np.float64]) -> float:
    """Seconds of the longest path through the graph, ops with `seconds` (n_ops,), in their order."""
    ends = np.zeros(len(graph))
    for i in graph.topological_order:
        ends[i] = seconds[i] + max((ends[before] for before in graph.predecessors[i]), default=0.0)
    return float(ends.max())


@pytest.mark.system
def test_the_many_core_forecasts_came_from_the_service(done: Demo) -> None:
    many_core = done.summary["many_core"]
    served = ModelRegistry(done.folder / "models").manifest("many_core").version
    assert many_core["model_served"] == served != done.summary["model_served"]
    assert served.partition("@")[0] == "joint_process"
    assert many_core["predictions_over_http"] == many_core["distinct_ops"] > 10
    assert done.served[served] == many_core["predictions_over_http"] * 68


@pytest.mark.system
def test_the_report_says_what_is_simulated_and_why_an_accuracy_is_negative(done: Demo) -> None:
    report = (done.folder / "report.html").read_text()
    assert report.count('<svg class="timeline"') == 5
    assert "lenet training" in report
    assert "68 cores, simulated" in report
    assert "http" not in report.replace("over HTTP", "").replace("http://www.w3.org", "").lower().split("<body>")[0]
    for row in done.summary["models"].values():
        assert (row["worse_than_zero"] is not None) == (row["accuracy"] is not None and row["accuracy"] < 0)
        assert row["worse_than_zero"] is None or escape(row["worse_than_zero"]) in report


def test_a_traced_step_of_the_report_is_not_taken_for_the_median_step() -> None:
    graph = OpGraph(("a",), (Op("mm"),))
    plan = Plan(1, "search", (Placement("a", (0,), 1, 0.0, 4e-3),))
    trace = Trace(1, "search", (Placement("a", (0,), 1, 0.0, 4.1e-3),))
    verdict = Verdict(0.97, 0.94, 0.99, 9, "default")
    run = RunReport("net", graph, plan, trace, 5e-3, 4.6e-3, verdict, ())
    assert demo_report._step_row(run)[4] == "0.97 (0.94 to 0.99)"
    assert demo_report._step_row(run)[-1] == "default"
    assert run.why_default == "net keeps the default: the plan was 3% slower than it (0.94 to 0.99)."
    section = "".join(demo_report._run_section(run)).replace("\N{NO-BREAK SPACE}", " ")
    assert "<h3>One traced step: 4.10 ms</h3>" in section
    assert "The median planned step took 4.60 ms, 1.15x of the prediction." in section


def run_report(gain: float, low: float, high: float, *, disturbed: bool = False) -> RunReport:
    """A report of a network whose step takes 2 s by default."""
    plan = Plan(1, "search", (Placement("a", (0,), 1, 0.0, 4e-3),))
    trace = Trace(1, "search", (Placement("a", (0,), 1, 0.0, 4e-3),))
    verdict, kept = Verdict(gain, low, high, 30, "plan"), "99.9 % interval" if disturbed else "95 % interval"
    return RunReport("net", OpGraph(("a",), (Op("mm"),)), plan, trace, 2.0, 2.0 / gain, verdict, (), disturbed, kept)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (run_report(2.0, 1.6, 2.5), "0.50 of PyTorch's default (95 % interval 0.40 to 0.62; net on 2 cores); quiet."),
        (run_report(1.0, 0.8, 1.25), "1.00 of PyTorch's default, not shown to be less or more (95 % interval 0.80"),
        (run_report(0.5, 0.4, 0.8), "2.00 of PyTorch's default, more than it (95 %"),
        (run_report(2.0, 1.0, 4.0, disturbed=True), "0.50 of PyTorch's default, not shown to be less or more (99.9 %"),
    ],
    ids=["faster", "unclear", "slower", "disturbed"],
)
def test_the_verdict_is_one_sentence_that_says_how_sure_it_is(report: RunReport, said: str) -> None:
    found = verdict([report], Machine.uniform("two", 2), "quiet")
    assert found.startswith("Quiet: planned" if report.disturbed else "Planned")
    assert f"lanned steps take {said}" in found


def test_forecasts_by_disturbed_times_are_called_disturbed() -> None:
    run = replace(run_report(2.0, 1.6, 2.5), forecast_disturbed=True)
    assert demo_report._step_row(run)[5:7] == ["disturbed", "disturbed"]
    assert "the prediction says little" in "".join(demo_report._run_section(run))


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, Path]:
    store, models = tmp_path / "measurements.db", tmp_path / "models"
    Store.open(store).close()
    registry = ModelRegistry(models)
    registry.set_alias("champion", registry.save(registry_of_kinds.create("hill_climb"), trained_on={}, metrics={}))
    return store, models


def test_service_answers_within_the_block_and_has_ended_after_an_interrupt(
    served: tuple[Path, Path], tmp_path: Path
) -> None:
    before = children()
    with pytest.raises(KeyboardInterrupt):
        ask_then_interrupt(*served, log=tmp_path / "log")
    assert children() == before


def ask_then_interrupt(store: Path, models: Path, *, log: Path) -> None:
    with demo_service.service(store, models, log=log) as url:
        with urllib3.PoolManager() as pool:
            assert pool.request("GET", f"{url}/health/live").status == 200
        raise KeyboardInterrupt


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    before = children()
    (tmp_path / "none.db").write_text("m,k,n\n" * 50)
    with (
        pytest.raises(ServiceUnavailable, match=r"did not start.*not a SQLite database"),
        demo_service.service(tmp_path / "none.db", tmp_path / "models", log=tmp_path / "log"),
    ):
        pass
    assert children() == before
