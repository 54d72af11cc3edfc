"""Plans come from a process of their own, which ends with whoever asks it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from threadcast.core import Machine, Op, OpGraph
from threadcast.core.errors import InvalidInput
from threadcast.core.graph import Edge
from threadcast.scheduler import planner, planner_process
from threadcast.scheduler.planner_process import PlannerEnded, PlannerProcess
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.checker import check_schedule

LONG_S = 120.0


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Three ops on two cores, the first two side by side."""
    curves = {"a": {1: 4.0, 2: 2.5}, "b": {1: 3.0, 2: 2.0}, "c": {1: 1.0, 2: 0.8}}
    graph = OpGraph(tuple(curves), (Op("mm"), Op("mm"), Op("relu")), (Edge(0, 2), Edge(1, 2)), curves)
    machine = Machine.uniform("two", 2)
    return Problem(graph, curves_of(graph, machine), machine)


@pytest.fixture(scope="module")
def process() -> Iterator[PlannerProcess]:
    """A process that makes several plans."""
    with closing(PlannerProcess()) as made:
        yield made


def test_its_plan_is_the_planners(process: PlannerProcess, problem: Problem) -> None:
    process.ask(problem, policy="critical_path")
    plan = process.result(LONG_S)
    assert plan is not None
    assert plan == planner.plan(problem, policy="critical_path")
    check_schedule(problem.graph, plan, machine=problem.machine)


def test_an_answer_can_be_waited_for(process: PlannerProcess, problem: Problem) -> None:
    process.ask(problem)
    process.wait(LONG_S)
    assert process.result() is not None
    process.wait(0.01)
    assert process.result() is None


def test_without_compiling_a_plan_is_the_same_and_comes_at_once(problem: Problem) -> None:
    found = []
    for compiles in (True, False):
        with closing(PlannerProcess(compiles=compiles)) as process:
            process.ask(problem)
            found.append(process.result(LONG_S))
            mapped = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
            assert ("llvmlite" in mapped) == (compiles and find_spec("numba") is not None)
    assert found[0] == found[1]


def test_a_process_in_the_background_gives_way_to_every_other_one_from_its_start_on(problem: Problem) -> None:
    with closing(PlannerProcess(background=True)) as process:
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        process.ask(problem, policy="fifo")
        assert process.result(LONG_S) is not None


def test_a_question_has_equal_ops_once_and_loses_nothing_that_plans_need(problem: Problem) -> None:
    graph, curves = problem.graph, problem.curves
    costly = Op("relu", cost=(7.0, 8.0))  # another cost than its equals have
    graph = OpGraph(
        ("a", "b", "c", "d"), (Op("mm"), Op("relu"), costly, Op("mm")), (Edge(0, 2), Edge(1, 2, True), Edge(2, 3))
    )
    asked = Problem(graph, curves.take([0, 1, 2, 0]), problem.machine)
    message = planner_process._problem_bytes(asked, "auto", {"budget_s": 1.5})
    assert message.count(b'"mm"') == 1
    found, policy, options = planner_process._problem_of(message)
    assert (policy, options) == ("auto", {"budget_s": 1.5})
    assert (found.graph.ids, found.graph.ops, found.graph.edges) == (graph.ids, graph.ops, graph.edges)
    assert [(op.flops, op.bytes_moved) for op in found.graph.ops] == [(op.flops, op.bytes_moved) for op in graph.ops]
    assert found.machine == asked.machine
    assert found.curves.cases == asked.curves.cases
    for name in ("seconds", "low", "high", "source"):
        assert np.array_equal(getattr(found.curves, name), getattr(asked.curves, name))


def test_options_that_a_policy_does_not_have_are_refused(process: PlannerProcess, problem: Problem) -> None:
    process.ask(problem, policy="fifo", options={"nonsense": 1})
    with pytest.raises(InvalidInput, match="nonsense"):
        process.result(LONG_S)
    process.ask(problem, policy="fifo", options={"inter": 1})
    assert process.result(LONG_S) is not None


def test_a_plan_that_is_not_made_in_time_is_none_and_the_process_can_be_ended(problem: Problem) -> None:
    process = PlannerProcess(background=True)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 0
    os.kill(process.pid, signal.SIGSTOP)
    process.ask(problem)
    assert process.result(0.0) is None
    assert process.result(0.01) is None
    process.close()
    process.close()
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_process_that_was_killed_says_so(problem: Problem) -> None:
    with closing(PlannerProcess()) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.ask(problem)
        with pytest.raises(PlannerEnded, match="status -9"):
            process.result(LONG_S)


def test_a_process_that_cannot_be_started_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(FileNotFoundError):
        PlannerProcess()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_it_ends_with_its_standard_input() -> None:
    with closing(PlannerProcess()) as process:
        process._questions.close()
        assert process._process.wait(LONG_S) == 0


def test_it_ends_with_a_caller_that_is_killed() -> None:
    program = f"from {planner_process.__name__} import PlannerProcess as P; p = P(); print(p.pid, flush=True); input()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as caller:
        assert caller.stdout is not None
        planning = os.pidfd_open(int(caller.stdout.readline()))
        caller.kill()
    poll = planner_process.select.poll()
    poll.register(planning, planner_process.select.POLLIN)
    assert poll.poll(LONG_S * 1e3)
    os.close(planning)


def test_it_loads_its_libraries_before_it_is_asked() -> None:
    program = (
        f"import sys, {planner_process.__name__} as p; assert 'numba' not in sys.modules; steps = len(list(p._load()));"
        "print(steps, *({'numba'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    loaded = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split()[1:] == ["numba"] * (find_spec("numba") is not None)


def test_a_question_ends_the_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    asked = os.dup(0)
    try:
        os.dup2(reads, 0)
        os.write(writes, b"?")
        steps = iter(range(3))
        monkeypatch.setattr(planner_process, "_load", lambda: steps)
        planner_process._load_until_asked()
    finally:
        os.dup2(asked, 0)
        for file in (reads, writes, asked):
            os.close(file)
    assert list(steps) == [1, 2]
