"""The files in deploy/ are read by the programs that they are for, and name metrics that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from flask.testing import FlaskClient
from prometheus_client import generate_latest

from tests.cli.commands import invoke
from tests.service.test_server import Running, arguments
from threadcast.cli.main import cli
from threadcast.service.retraining_metrics import RetrainingMetrics
from threadcast.service.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = shutil.copy(DEPLOY / "threadcast.service", tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_runs_commands_that_there_are() -> None:
    context = cli.make_context("threadcast", [], resilient_parsing=True)
    lines = re.findall(r"threadcast (\w+)(.*)", "\n".join(re.findall(r"^Exec.*", unit_text(), re.MULTILINE)))
    assert [command for command, _ in lines] == ["serve", "serve"]
    for command, options in lines:
        known = cli.get_command(context, command)
        assert known is not None
        assert set(options.split()) <= {name for parameter in known.params for name in parameter.opts}


def unit_text() -> str:
    return (DEPLOY / "threadcast.service").read_text()


def test_every_metric_of_the_alerts_is_one_of_the_service(client: FlaskClient) -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    named = {name for rule in rules for name in re.findall(r"threadcast_\w+", rule["expr"])}
    assert len(named) >= 6
    assert {re.sub(r"_bucket$", "", name) for name in named} <= families(client)


def families(client: FlaskClient) -> set[str]:
    """The names of all metrics of a service and of what retrains beside it, as on their page."""
    shown = client.get("/metrics").text + generate_latest(RetrainingMetrics("champion").registry).decode()
    return set(re.findall(r"^# TYPE (\w+)", shown, re.MULTILINE))


def test_the_page_on_operating_names_metrics_that_there_are(client: FlaskClient) -> None:
    named = set(re.findall(r"`(threadcast_\w+)`", (ROOT / "docs" / "operating.md").read_text()))
    assert len(named) >= 8
    assert named <= families(client)


def test_the_linter_finds_nothing_in_the_container_file() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_image_leaves_out_is_not_needed(settings: ServiceSettings, tmp_path: Path) -> None:
    blocked = "import sys; sys.modules.update(torch=None, matplotlib=None, openvino=None, onnx=None); "
    python, flag, code, *rest = arguments(settings)
    server = Running([python, flag, blocked + code, *rest], tmp_path)
    try:
        assert server.get("/health/ready").status == 200
        assert server.post("/v1/plans", {"graph": "net", "cores": 2}).status == 200
    finally:
        server.end()


def test_the_commands_of_the_page_on_operating_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("THREADCAST_STORE", "store.db")
    monkeypatch.setenv("THREADCAST_MODELS", "models")
    monkeypatch.setenv("THREADCAST_SERVICE_PORT", "0")
    (tmp_path / "times.csv").write_text("machine,op,threads,repeat,seconds\nbox,gemm,1,1,0.5\nbox,gemm,4,1,0.2\n")
    page = (ROOT / "docs" / "operating.md").read_text()
    commands = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    assert len(commands) >= 15
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "threadcast"
        done = invoke(*words)
        assert done.exit_code == 0, f"{command}: {done.output}"
