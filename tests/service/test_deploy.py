"""The files in deploy/ are read by the programs that they are for, and name metrics that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import invoke
from tests.service.test_server import Running, arguments
from tests.services import need
from threadcast.cli.main import cli
from threadcast.core.settings import Settings
from threadcast.service.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())

pytestmark = pytest.mark.system


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    verify = [need("systemd-analyze"), "verify", "--man=no"]
    units = [shutil.copy(unit, tmp_path) for unit in UNITS]
    done = subprocess.run([*verify, *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_run_commands_that_there_are() -> None:
    context, ran = cli.make_context("threadcast", [], resilient_parsing=True), []
    text = "\n".join(unit.read_text() for unit in UNITS)
    for line in re.findall(r"^Exec\w+=/(?:usr/bin/env|bin/sh -c ')\W*threadcast ([a-z].*?)'?$", text, re.MULTILINE):
        command: Any = cli
        words = shlex.split(line)
        while hasattr(command, "get_command"):
            ran.append(words[0])
            command = command.get_command(context, words.pop(0))
            assert command is not None, line
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
    assert ran == ["db", "backup", "db", "prune", "models", "prune", "train", "serve", "serve"]


def test_systemd_waits_for_the_grace_of_the_service(tmp_path: Path) -> None:
    waits = re.search(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "systemd" / "threadcast.service").read_text(), re.MULTILINE)
    assert waits is not None
    settings = ServiceSettings.from_settings(Settings.read({}, directory=tmp_path, environment={}))
    assert int(waits[1]) >= settings.stops_within_s + 5


def test_each_timer_has_a_service_and_a_time_that_comes() -> None:
    for timer in (unit for unit in UNITS if unit.suffix == ".timer"):
        assert timer.with_suffix(".service") in UNITS
        (when,) = re.findall(r"^OnCalendar=(.*)$", timer.read_text(), re.MULTILINE)
        assert re.fullmatch(r"\*-\*-\* \d\d:\d\d:\d\d", when)


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
    rows = [f"gemm{size},{threads},{size / threads}" for size in (1, 2, 3, 4) for threads in (1, 2, 4)]
    (tmp_path / "times.csv").write_text("\n".join(["op,threads,seconds", *rows]))
    page = (ROOT / "docs" / "operating.md").read_text()
    commands = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    assert len(commands) >= 15
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "threadcast"
        done = invoke(*words)
        assert done.exit_code == 0, f"{command}: {done.output}"
