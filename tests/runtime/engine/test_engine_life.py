"""A process with an engine that is forked, and that ends within a step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.compiler import needs_compiler
from tests.waiting import HANGS_S

pytestmark = needs_compiler

ROOT = Path(__file__).parents[3]

SCRIPT = """
import os, signal, sys, threading
import torch
from tests.waiting import HANGS_S, eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Placement, Plan, read_machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.engine import Engine

captured = capture_forward(lambda x: [(x * i).sum() for i in range(20)], torch.ones(1 << 17))
machine = read_machine()
cores = [core.id for core in machine.cores][:2]
teams = [tuple(cores), *((core,) for core in cores)]
ops = tuple(Placement(op, team, len(team), i, i + 1) for i, op in enumerate(captured.graph.ids)
            for team in [teams[i % len(teams)]])
engine = Engine(captured, Plan(len(cores), "mixed", ops), machine)
torch.set_num_threads(2)
engine.run(captured.bind())
if (child := os.fork()) == 0:
    signal.alarm(500)
    (torch.ones(1 << 20) * 2).sum()  # the lanes are the parent's
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
captured.run()  # the main thread leads an idle worker, which does not come along
child = os.fork()
if child == 0:
    try:
        engine.run(captured.bind())
    except ExecutionError as error:
        print("child:", error, flush=True)
    engine.close()
    with Engine(captured, engine.plan, machine) as own:
        print("own:", own.run(captured.bind())[1].item(), flush=True)
    sys.exit(7)
print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
started = threading.Event()
results = []  # kept: torch gives up the interpreter's lock to free a tensor, and aborts when it cannot have it back
def work():
    while True:
        results.append(engine.run(captured.bind()))
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait()
"""


def test_a_fork_makes_its_own_engine_and_the_interpreter_exits_in_the_middle_of_a_daemon_threads_step() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout.splitlines()
    assert "fork" in out[0]
    assert out[1:] == [f"own: {float(1 << 17)}", "status 7"]
