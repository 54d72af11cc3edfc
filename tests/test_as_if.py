"""The tests' way to run a command as if the machine had many cores."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.compiler import skip_without_compiler

AS_IF = Path(__file__).parent / "as_if"
PROGRAM = """
import os, subprocess, sys, threading
from threadcast.core import read_machine
machine = read_machine()
print(len(machine), [len(group) for group in machine.groups], os.cpu_count())
os.sched_setaffinity(0, {5, 7})
over = threading.Event()
thread = threading.Thread(target=lambda: [print(os.sched_getaffinity(0)), over.wait()])
thread.start()
print(os.sched_getaffinity(thread.native_id))
over.set()
thread.join()
sys.exit(subprocess.run([sys.executable, "-c", "import os; print(os.sched_getaffinity(0)); os._exit(3)"]).returncode)
"""


def test_a_command_its_threads_and_children_are_told_of_many_cores() -> None:
    skip_without_compiler()
    allowed = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(allowed, capture_output=True).returncode:
        pytest.skip("no leave to mount in a namespace of its own")
    run = subprocess.run(
        [sys.executable, str(AS_IF), "12", sys.executable, "-u", "-c", PROGRAM], capture_output=True, text=True
    )
    assert run.stdout.splitlines() == ["12 [8, 4] 12", "{5, 7}", "{5, 7}", "{5, 7}"], run.stderr
    assert run.returncode == 3


def test_what_it_cannot_do_is_said() -> None:
    for given, said in (
        ((), "required: cores"),
        (("0", "true"), "must be 1 to 64"),
        (("65", "true"), "must be 1 to 64"),
        (("16",), "required: program"),
    ):
        run = subprocess.run([sys.executable, str(AS_IF), *given], capture_output=True, text=True)
        assert run.returncode == 2
        assert said in run.stderr
