"""What steps ask of the system's memory, in a process of its own: what malloc is told cannot be undone."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.compiler import needs_compiler

ROOT = Path(__file__).parents[3]

SCRIPT = """
import ctypes, json, resource
from statistics import mean, median
import torch
from tests.runtime.random_plans import made_up_curves
from threadcast import networks
from threadcast.capture.graph.capture import capture_training
from threadcast.threads.memory import keep_freed_memory
from threadcast.core import Case, read_machine
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.runtime.plans.sequential import sequential
from threadcast.runtime.engine.engine import Engine

def faults(step, warm_up, steps=10):
    for _ in range(warm_up):
        step()
    counts = []
    for _ in range(steps):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return counts

work = networks.load("pathnet", "small", batch=64)
optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3, momentum=0.9)

def eager():
    optimizer.zero_grad()
    work.loss(work.model(*work.inputs), work.target).backward()
    optimizer.step()

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: how many pages are huge is the kernel's mood
found = {"eager": mean(faults(eager, 3))}
optimizer.zero_grad()
keep_freed_memory()
captured = capture_training(work.model, work.loss, optimizer, work.inputs, work.target)
machine = read_machine()
machine = machine.limited_to([core.id for core in machine.cores[:2]])
co_running = plan(Problem(captured.graph, made_up_curves(captured.graph, machine), machine), policy="critical_path")
for name, made in (("sequential", sequential(captured.graph, machine, Case(1))), ("co-running", co_running)):
    engine = Engine(captured, made, machine)
    found[name] = median(faults(lambda: engine.run(captured.bind()), 15))
    engine.close()
found |= {"cores": len(machine), "teams": len({op.cores for op in co_running.ops})}
print(json.dumps(found))
"""


@pytest.mark.system
@needs_compiler
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_settled_steps_take_next_to_no_page_faults_in_sequence_and_side_by_side() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout)
    assert found["eager"] > 500  # else there is nothing to save
    assert found["teams"] >= found["cores"]
    assert found["sequential"] < found["eager"] / 10
    assert found["co-running"] < found["eager"] / 10
