"""Threads: who starts them, that they end, and what they leave as it was."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import make_random_plan
from tests.waiting import HANGS_S, eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, Placement, Plan
from threadcast.core.errors import ExecutionError, PlanError
from threadcast.runtime.engine.executors import Executors
from threadcast.runtime.engine.python_engine import PythonEngine
from threadcast.runtime.engine.replay import THREADS_PER_CORE, Team
from threadcast.threads.affinity import thread_ids
from threadcast.threads.openmp import end_idle_workers

ROOT = Path(__file__).parents[3]


def parallel_sums(x: Tensor) -> Tensor:
    return (x * 2).sum() + (x + 1).sum()  # long enough for every op to ask for its whole team


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture_forward(parallel_sums, torch.ones(1 << 17))


@pytest.fixture(scope="module")
def plan(captured: Captured, machine: Machine) -> Plan:
    return make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=4, max_factor=2)


def opened(captured: Captured, plan: Plan, machine: Machine) -> PythonEngine:
    engine = PythonEngine(captured, plan, machine)
    engine.run(captured.bind())
    return engine


def threads_end(before: int) -> bool:
    """Whether there are no more threads than `before`; the kernel may need a moment to bury those that have ended."""
    return eventually(lambda: len(thread_ids()) <= before)


def executor_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "threadcast-executor"]


def test_nothing_leaks_over_100_engines(captured: Captured, plan: Plan, machine: Machine) -> None:
    opened(captured, plan, machine).close()  # torch makes one pool for the process when it is first told a count
    before = len(thread_ids())
    for _ in range(100):
        opened(captured, plan, machine).close()
    assert threads_end(before)


def test_an_engine_that_is_garbage_ends_its_threads(captured: Captured, plan: Plan, machine: Machine) -> None:
    engine = opened(captured, plan, machine)
    assert executor_threads()
    del engine
    gc.collect()
    assert not executor_threads()


def test_a_closed_engine_says_so_and_may_be_closed_again(captured: Captured, plan: Plan, machine: Machine) -> None:
    with PythonEngine(captured, plan, machine) as engine:
        pass
    engine.close()
    engine.rest()
    with pytest.raises(ExecutionError, match="closed"):
        engine.run(captured.bind())


def test_shared_teams_outlive_an_engine_that_uses_them(captured: Captured, plan: Plan, machine: Machine) -> None:
    executors = Executors(machine)
    try:
        PythonEngine(captured, plan, machine, executors=executors).close()
        other = PythonEngine(captured, plan, machine, executors=executors)
        assert torch.equal(other.run(captured.bind()), captured.run())
    finally:
        executors.close()


def test_closed_teams_take_no_engine_and_start_no_threads(captured: Captured, plan: Plan, machine: Machine) -> None:
    executors = Executors(machine)
    executors.close()
    with pytest.raises(ExecutionError, match="closed"):
        PythonEngine(captured, plan, machine, executors=executors)
    assert not executor_threads()


def test_thread_counts_and_affinity_of_others_stay(captured: Captured, plan: Plan, machine: Machine) -> None:
    mine, cpus = torch.get_num_threads(), os.sched_getaffinity(0)
    counts: list[int] = []
    with opened(captured, plan, machine):
        thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (mine, cpus)
    assert counts == [mine]
    assert torch.get_num_threads() == mine


def test_rested_teams_have_no_idle_workers_and_work_again(captured: Captured, machine: Machine) -> None:
    cores = tuple(core.id for core in machine.cores)
    ops = tuple(Placement(op, cores, 3 * len(cores), float(i), i + 1.0) for i, op in enumerate(captured.graph.ids))
    if not end_idle_workers():
        pytest.skip("this OpenMP cannot end a thread's workers")
    with opened(captured, Plan(len(cores), "wide", ops), machine) as engine:
        working = len(thread_ids())
        engine.rest()
        assert threads_end(working - (3 * len(cores) - 1))
        assert torch.allclose(engine.run(captured.bind()), captured.run())
        assert len(thread_ids()) >= working


def test_cores_that_the_machine_lacks_are_refused_and_nothing_is_left(captured: Captured, machine: Machine) -> None:
    before = len(thread_ids())
    ops = tuple(Placement(op, (i * 97,), 1, float(i), i + 1.0) for i, op in enumerate(captured.graph.ids))
    with pytest.raises(PlanError, match=r"cores \[97\] are not among"):
        PythonEngine(captured, Plan(len(ops), "elsewhere", ops), machine)
    assert threads_end(before)


def test_a_plan_that_wants_thousands_of_threads_is_refused(machine: Machine) -> None:
    executors = Executors(machine)
    try:
        with pytest.raises(PlanError, match="different teams"):
            executors.make([Team((machine.cores[0].id,), THREADS_PER_CORE * len(machine) + 1)])
    finally:
        executors.close()


SCRIPT = """
import os, signal, sys, threading
import torch
from tests.waiting import HANGS_S, eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Placement, Plan, read_machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.MODULE import ENGINE as Engine

captured = capture_forward(lambda x: [(x * i).sum() for i in range(20)], torch.ones(1 << 17))
machine = read_machine()
cores = [core.id for core in machine.cores][:2]
teams = [tuple(cores), *((core,) for core in cores)]
ops = tuple(Placement(op, team, len(team), i, i + 1) for i, op in enumerate(captured.graph.ids)
            for team in [teams[i % len(teams)]])
engine = Engine(captured, Plan(len(cores), "mixed", ops), machine)
engine.run(captured.bind())
"""

FORK_THEN_EXIT_WHILE_A_DAEMON_THREAD_RUNS_STEPS = """
torch.set_num_threads(2)
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

STEPS_UNTIL_INTERRUPTED = """
print("running", flush=True)
while True:
    engine.run(captured.bind())
"""


ENGINES = ["python_engine.PythonEngine", pytest.param("native.engine.NativeEngine", marks=needs_compiler)]


def process(ending: str, engine: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    module, _, name = engine.rpartition(".")
    script = textwrap.dedent(SCRIPT + ending).replace("MODULE", module).replace("ENGINE", name)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fork_makes_its_own_engine_and_the_interpreter_exits_in_the_middle_of_a_daemon_threads_step(
    engine: str,
) -> None:
    with process(FORK_THEN_EXIT_WHILE_A_DAEMON_THREAD_RUNS_STEPS, engine) as running:
        out, err = running.communicate(timeout=HANGS_S)
    assert running.returncode == 0, err
    assert "fork" in out.splitlines()[0]
    assert out.splitlines()[1:] == [f"own: {float(1 << 17)}", "status 7"]


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_the_process(engine: str) -> None:
    with process(STEPS_UNTIL_INTERRUPTED, engine) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "running\n"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=HANGS_S)
    assert running.returncode == -signal.SIGINT, err
    assert err.rstrip().endswith("KeyboardInterrupt")
