"""What OpenMP binds as PyTorch is imported, in processes of their own: told, and undone where that is safe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from threadcast.core.openmp_places import VARIABLES, before_binding
from threadcast.threads.openmp import child_environment

MASK = sorted(os.sched_getaffinity(0))
ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, subprocess, sys, time
import torch
from threadcast.core import usable_cores
from threadcast.runtime.plans.model_cores import core_choice
import threadcast

def mask():
    return sorted(os.sched_getaffinity(0))

found = {"imported": mask(), "usable": usable_cores().cpus}
if "attach" in sys.argv:
    member = threadcast.attach()
    found["cores"] = member.cores
    os.sched_setaffinity(0, mask()[:1])  # as taskset -p does
    while len(member.cores) > 1:
        time.sleep(0.01)
    found["narrowed"] = member.cores
else:
    found["cores"] = [core.cpus for core in core_choice().machine(None).cores]
    found["mask"] = mask()
    os.sched_setaffinity(0, mask()[:1])
    core_choice().machine(None)
    found["narrowed"] = mask()
print(json.dumps(found))
"""

pytestmark = pytest.mark.skipif(len(MASK) < 2, reason="on one CPU there is nothing to bind to")


def found(*command: str, way: str = "choose", **variables: str) -> tuple[dict[str, Any], str]:
    """What a process that imports PyTorch says of its CPUs, and its log."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, check=True, timeout=120,
        cwd=ROOT, env={**environment, **variables},
    )  # fmt: skip
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "way"),
    [
        ("OMP_PLACES", "cores", "choose"),
        ("OMP_PROC_BIND", "true", "attach"),
        ("GOMP_CPU_AFFINITY", ",".join(map(str, reversed(MASK))), "choose"),
    ],
)
def test_a_main_thread_that_openmp_has_bound_gets_its_cpus_back(variable, value, way):
    said, log = found(way=way, **{variable: value})
    assert len(said["imported"]) < len(MASK)
    assert sorted(said["usable"]) == MASK
    assert sorted(cpu for core in said["cores"] for cpu in core) == MASK
    assert said.get("mask", MASK) == MASK
    assert f"({variable}={value})" in log
    assert "unset it" in log
    assert said["narrowed"] in (MASK[:1], [MASK[:1]])  # what somebody else sets afterwards holds


@pytest.mark.parametrize(
    ("command", "variables", "left"),
    [
        (("taskset", "-c", str(MASK[-1])), {"OMP_PLACES": "cores"}, MASK[-1:]),
        ((), {"OMP_PLACES": f"{{{MASK[-1]}}}"}, MASK[-1:]),
        ((), {"OMP_PLACES": "cores", "OMP_PROC_BIND": "false"}, MASK),
        ((), {"KMP_AFFINITY": "verbose,none"}, MASK),
    ],
)
def test_cpus_that_somebody_has_chosen_stay_so(command, variables, left):
    said, log = found(*command, **variables)
    assert said["imported"] == said["usable"] == said["mask"] == left
    assert log == ""


def test_of_two_libraries_the_one_that_was_loaded_first_knows_what_there_was():
    first, second = (frozenset({0, 8}), frozenset({1, 9}), frozenset({2, 10})), (frozenset({0}), frozenset({8}))
    for libraries in ([first, second], [second, first]):
        assert before_binding(frozenset({0}), libraries) == {0, 8, 1, 9, 2, 10}
        assert before_binding(frozenset({0, 8}), libraries) == {0, 8, 1, 9, 2, 10}
        assert before_binding(frozenset({1, 9}), libraries) == {1, 9}


def test_processes_that_serve_this_one_are_not_bound(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "0")
    environment = child_environment(OMP_NUM_THREADS="1")
    assert environment["OMP_NUM_THREADS"] == "1"
    assert not environment.keys() & set(VARIABLES)
    assert environment["PYTHONPATH"].split(os.pathsep) == [folder for folder in sys.path if folder]
