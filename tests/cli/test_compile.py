"""`threadcast compile`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import invoke
from threadcast.cli import compile as compile_command


def test_what_is_compiled_stays() -> None:
    invoke("compile", "--json")
    result = invoke("compile", "--json")
    assert result.exit_code == 0
    parts = json.loads(result.stdout)["parts"]
    assert [part["part"] for part in parts] == ["planner", "native engine"]
    assert {part["state"] for part in parts} <= {"was compiled before", "left out: numba is not installed"}


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    variables = {**os.environ, "CXX": "no-such-compiler", "THREADCAST_ENGINE_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "threadcast", "compile"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (1, "", [])
    assert "threadcast: error: there is no C++ compiler" in done.stderr


def test_parts_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_command, "find_spec", lambda name: None)
    result = invoke("compile")
    assert result.exit_code == 0
    assert result.stdout.count("is not installed") == 2
    assert "numba" in result.stdout
