"""The demo does the whole job for real, and stops its service whatever happens."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
import urllib3
from click.testing import CliRunner

from tests.processes import command_of
from threadcast.cli import demo, demo_service
from threadcast.cli.demo_report import RunReport, verdict
from threadcast.cli.main import cli
from threadcast.core import Machine, Op, OpGraph, Placement, Plan, Trace
from threadcast.core.errors import ServiceUnavailable
from threadcast.models import registry_of_kinds
from threadcast.models.registry import ModelRegistry
from threadcast.runtime.tuner.guard import Verdict
from threadcast.store import Store

PROMISED = {
    "ops_measured", "measured_share", "predictions_over_http", "lower_bound_s", "predicted_step_s",
    "default_step_s", "planned_step_s",
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
    """A run of the demo on small networks: its folder, its summary, and what it printed."""

    folder: Path
    summary: dict[str, Any]
    stdout: str
    left_over: set[int]
    """Processes that the demo left behind."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "WORKLOADS", (("lenet", "tiny", "training"), ("inception_block", "tiny", "forward")))
        patch.setattr(demo, "MEAN_S", 0.004)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("THREADCAST_CORUN", str(folder / "corun"))
        before = children()
        ran = CliRunner().invoke(cli, ["demo", "--output", str(folder), "--steps", "3", "--json"])
        left_over = {pid for pid in children() - before if not is_resource_tracker(pid)}
    assert ran.exit_code == 0, ran.output
    return Demo(folder, json.loads((folder / "summary.json").read_text()), ran.stdout, left_over)


@pytest.mark.system
def test_demo_measures_learns_serves_plans_and_runs(done: Demo) -> None:
    summary = done.summary
    assert done.left_over == set()
    assert set(summary) >= PROMISED
    assert json.loads(done.stdout) == summary
    assert summary["measured_share"] == 1.0
    assert summary["predictions_over_http"] == summary["ops_measured"] > 50
    assert ModelRegistry(done.folder / "models").manifest("champion").version == summary["model_served"]
    assert summary["verdict"].startswith("Planned steps take ")
    report = (done.folder / "report.html").read_text()
    assert report.split("<p>")[1].startswith(f"<strong>{escape(summary['verdict'])}</strong>")
    assert report.count("<svg") >= 2 * len(summary["networks"])
    assert summary["load"] in summary["verdict"]
    assert 0 < summary["lower_bound_s"] <= summary["predicted_step_s"]
    for network in summary["networks"].values():
        assert network["guard_keeps"] in {"plan", "default"}
        assert min(network["default_step_s"], network["planned_step_s"]) > 0


def test_a_run_says_how_sure_its_gain_is_and_why_the_default_is_kept() -> None:
    graph = OpGraph(("a",), (Op("mm"),))
    plan = Plan(1, "search", (Placement("a", (0,), 1, 0.0, 4e-3),))
    trace = Trace(1, "search", (Placement("a", (0,), 1, 0.0, 4.1e-3),))
    verdict = Verdict(0.97, 0.94, 0.99, 9, "default")
    run = RunReport("net", graph, plan, trace, 5e-3, 4.6e-3, verdict)
    assert (run.row()[4], run.row()[-1]) == ("0.97 (0.94 to 0.99)", "default")
    assert run.why_default == "net keeps the default: the plan was 3% slower than it (0.94 to 0.99)."


def run_report(gain: float, low: float, high: float, *, disturbed: bool = False) -> RunReport:
    """A report of a network whose step takes 2 s by default."""
    plan = Plan(1, "search", (Placement("a", (0,), 1, 0.0, 4e-3),))
    trace = Trace(1, "search", (Placement("a", (0,), 1, 0.0, 4e-3),))
    verdict, kept = Verdict(gain, low, high, 30, "plan"), "99.9 % interval" if disturbed else "95 % interval"
    return RunReport("net", OpGraph(("a",), (Op("mm"),)), plan, trace, 2.0, 2.0 / gain, verdict, disturbed, kept)


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
    assert run.row()[5:7] == ["disturbed", "disturbed"]


def test_forecasts_of_what_was_not_measured_are_called_rough() -> None:
    run = replace(run_report(2.0, 1.6, 2.5), rough=True)
    assert run.row()[5].endswith("(rough)")


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
