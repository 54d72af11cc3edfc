"""The demo does the whole job for real, and stops its service whatever happens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import urllib3
from click.testing import CliRunner

from threadcast.cli import demo, demo_many_core, demo_service
from threadcast.cli.main import cli
from threadcast.core.errors import ServiceUnavailable
from threadcast.models import registry_of_kinds
from threadcast.models.registry import ModelRegistry
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
    return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_demo_measures_learns_serves_plans_runs_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "WORKLOADS", (("lenet", "tiny", "training"), ("inception_block", "tiny", "forward")))
    monkeypatch.setattr(demo, "MEAN_S", 0.004)
    monkeypatch.setattr(demo_many_core, "NETWORK", ("inception_block", "large", "forward"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = children()
    done = CliRunner().invoke(cli, ["demo", "--output", str(tmp_path), "--steps", "3", "--allow-busy", "--json"])
    assert done.exit_code == 0, done.output
    assert {pid for pid in children() - before if not is_resource_tracker(pid)} == set()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) >= PROMISED
    assert json.loads(done.stdout) == summary
    assert summary["measured_share"] == 1.0
    assert summary["predictions_over_http"] == summary["ops_measured"] > 50
    assert set(summary["models"]) == set(registry_of_kinds.names())
    assert 0 < summary["lower_bound_s"] <= summary["predicted_step_s"]
    for network in summary["networks"].values():
        assert network["guard_keeps"] in {"plan", "default"}
        assert min(network["default_step_s"], network["planned_step_s"]) > 0
    many_core = summary["many_core"]
    assert many_core["simulated"] is True
    assert 0 < many_core["cases_measured_share"] < 0.1
    assert 0 <= many_core["regret_mean"] < many_core["regret_all_cores"]
    assert many_core["predictions_over_http"] == many_core["distinct_ops"] > 10
    assert many_core["model_served"] == "learned_curve@1"
    assert many_core["predicted_step_s"] > 0
    assert many_core["planned_step_s"] < many_core["default_step_s"]
    report = (tmp_path / "report.html").read_text()
    assert report.count('<svg class="timeline"') == 5
    assert "lenet training" in report
    assert "68 cores, simulated" in report
    assert "http" not in report.replace("over HTTP", "").replace("http://www.w3.org", "").lower().split("<body>")[0]


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
    with (
        pytest.raises(ServiceUnavailable, match=r"did not start.*champion"),
        demo_service.service(tmp_path / "none.db", tmp_path / "models", log=tmp_path / "log"),
    ):
        pass
    assert children() == before
