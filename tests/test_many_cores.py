"""`make bench-many-cores`: time is divided among parts, what ended well is not run again, nothing is left behind."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.waiting import eventually
from threadcast.core.errors import InvalidInput

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("many_cores")


@pytest.mark.parametrize(
    ("text", "cores", "counts"),
    [("", 1, (1,)), ("", 2, (1, 2)), ("", 12, (1, 2, 4, 8, 12)), (" ", 4, (1, 2, 4)), ("8, 1,8,3", 8, (1, 3, 8))],
)  # fmt: skip
def test_thread_counts_are_read_ascending_and_once(
    many: ModuleType, text: str, cores: int, counts: tuple[int, ...]
) -> None:
    assert many.thread_counts(text, cores) == counts


@pytest.mark.parametrize("text", ["0", "17", "1,,2", "two", "-1", "1.5"])
def test_a_thread_count_that_cannot_be_is_refused_by_name(many: ModuleType, text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a number from 1 to the 16 usable cores"):
        many.thread_counts(text, 16)


def test_every_command_has_a_file_of_its_own_and_names_what_there_is(many: ModuleType, tmp_path: Path) -> None:
    titles = [case.title for case in importlib.import_module("engine").CASES["networks"]]
    for part in many.WEIGHTS:
        found = list(many.commands(part, tmp_path, 16, (1, 4, 16)))
        assert len({name for name, _ in found}) == len(found) > 1
    for case in many.STEPS:
        assert sum(case.lower() in title.lower() for title in titles) == 2  # in both modes


def test_what_ended_well_is_not_run_again_and_what_failed_is(
    many: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"good": "print('figures')", "bad": "print('half'); raise SystemExit(3)"}
    monkeypatch.setattr(many, "commands", lambda *_: [(name, ["-c", code]) for name, code in said.items()])
    assert many.run_part("steps", tmp_path, 2, (1, 2), time.monotonic() + 60) == (
        "1 of 2 done, 1 failed or did not end in time"
    )
    assert (tmp_path / "steps" / "good.txt").read_text() == "figures\n"
    said |= {"good": "raise SystemExit(1)", "bad": "print('whole')"}
    assert many.run_part("steps", tmp_path, 2, (1, 2), time.monotonic() + 60) == "2 of 2 done"
    assert (tmp_path / "steps" / "bad.txt").read_text() == "whole\n"


def test_a_command_that_hangs_leaves_no_process(many: ModuleType, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    code = f"""
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
os.kill(child.pid, signal.SIGSTOP)
open({str(stopped)!r}, "w").write(str(child.pid))
time.sleep(600)
"""

    def until_stopped(process: Any, seconds: float) -> None:
        assert eventually(lambda: stopped.exists() and stopped.read_text() != "")
        raise subprocess.TimeoutExpired("steps", seconds)

    assert not many.ended(["-c", code], tmp_path / "unit.txt", 2.0, until_stopped)
    assert "killed after 2 s" in (tmp_path / "unit.draft").read_text()
    assert eventually(lambda: not is_alive(Path("/proc", stopped.read_text())))


def is_alive(process: Path) -> bool:
    """Whether a process is there that nobody has only forgotten to wait for."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from told import serve

def answer(asked):
    if asked["say"] == "fail":
        raise ValueError("it cannot")
    print("noise of a library")
    return {{"said": asked["say"]}}

serve(lambda: ({{"made": sys.argv[1]}}, answer))
"""


def state_of(process: int) -> str:
    return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_answers_when_it_is_told_to_and_tells_why_it_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    told = importlib.import_module("told")
    monkeypatch.setattr(told, "__file__", str(tmp_path / "told.py"))
    (tmp_path / "one.py").write_text(SCRIPT.format(folder=str(BENCHMARKS)))
    (tmp_path / "none.py").write_text("import time; time.sleep(600)")
    process = told.Told("one.py", "a")
    try:
        assert process.ready == {"made": "a"}
        assert process.ask({"say": "yes"}) == {"said": "yes"}
        # it rests between answers; the kernel stops one that runs a moment after it was told to
        eventually(lambda: state_of(process.session) == "T")
        with pytest.raises(RuntimeError, match="ValueError: it cannot"):
            process.ask({"say": "fail"})
        with pytest.raises(RuntimeError, match=r"one\.py a ended with 0"):
            process.ask({"say": "yes"})
    finally:
        process.kill()
    with pytest.raises(RuntimeError, match="no answer within"):
        told.Told("none.py", limit_s=0.3)


STARTER = """
import sys, time
sys.path.insert(0, {folder!r})
import told
told.__file__ = {at!r}
print(told.Told("one.py", "a").session, flush=True)
time.sleep(600)
"""


def test_a_process_that_rests_ends_with_who_started_it(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SCRIPT.format(folder=str(BENCHMARKS)))
    code = STARTER.format(folder=str(BENCHMARKS), at=str(tmp_path / "told.py"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        process = int(starter.stdout.readline())
        eventually(lambda: state_of(process) == "T")
        starter.kill()
    eventually(lambda: not is_alive(Path("/proc", str(process))))
