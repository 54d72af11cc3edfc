"""What the simulator promises: exact times, reproducible runs, and no illegal launch goes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.scheduler.random_problems import graph_of, hybrid_problem, problem_of
from threadcast.core import Machine, Trace
from threadcast.core.errors import IllegalLaunch, InvalidInput, PlanError
from threadcast.scheduler.interference.core_sharing import CoreSharing
from threadcast.scheduler.policies import Launch, Policy, Problem, Running, State, create
from threadcast.scheduler.problem.graph_curves import curves_of
from threadcast.scheduler.simulation.simulator import makespan_s, simulate


class Script(Policy):
    """Launches whatever a function of the state says."""

    name = "script"

    def __init__(self, problem: Problem, say: Callable[[State], Sequence[Launch]]) -> None:
        super().__init__(problem)
        self._say = say

    def decide(self, state: State) -> Sequence[Launch]:
        return self._say(state)


class Factors:
    """Interference by a function of the positions of the running ops."""

    core_throughput = 1.0

    def __init__(self, factor: Callable[[set[int], int], float]) -> None:
        self._factor = factor

    def slowdowns(self, running: Sequence[Running]) -> Sequence[float]:
        together = {at.op for at in running}
        return [self._factor(together, at.op) for at in running]


def each_on_its_own_core(state: State) -> list[Launch]:
    return [Launch(op, (core,), 1) for op, core in zip(state.ready, state.idle)]


def times(trace: Trace) -> dict[str, tuple[float, float]]:
    return {op.id: (op.start_s, op.finish_s) for op in trace.ops}


def test_ops_start_when_their_predecessors_have_finished() -> None:
    problem = problem_of([{1: 1.0}, {1: 2.0}, {1: 0.5}, {1: 1.0}], [(0, 1), (0, 2), (1, 3), (2, 3)])
    trace = simulate(Script(problem, each_on_its_own_core))
    assert times(trace) == {"a": (0, 1), "b": (1, 3), "c": (1, 1.5), "d": (3, 4)}
    assert trace.makespan_s == 4.0
    assert trace.simulated


def test_ops_of_no_time_start_and_finish_at_once() -> None:
    problem = problem_of([{1: 0.0}, {1: 0.0}, {1: 1.0}], [(0, 1), (1, 2)])
    assert times(simulate(Script(problem, each_on_its_own_core))) == {"a": (0, 0), "b": (0, 0), "c": (0, 1)}


def test_the_policy_sees_predicted_times_while_true_ones_pass() -> None:
    problem = problem_of([{1: 1.0}, {1: 1.0}], cores=1)
    seen: list[list[float]] = []

    def look(state: State) -> list[Launch]:
        seen.append([at.finish_s for at in state.running])
        return each_on_its_own_core(state)

    true_curves = curves_of(graph_of([{1: 3.0}, {1: 0.5}]), problem.machine)
    trace = simulate(Script(problem, look), true_curves=true_curves)
    assert times(trace) == {"a": (0, 3), "b": (3, 3.5)}
    assert seen == [[], []]
    two = problem_of([{1: 1.0}, {1: 1.0}, {1: 1.0}], [(0, 2)], cores=2)
    simulate(Script(two, look), true_curves=curves_of(graph_of([{1: 0.25}, {1: 8.0}, {1: 1.0}], [(0, 2)]), two.machine))
    assert seen[-1] == [1.0], "the op that overruns is still shown with its predicted finish"


def test_true_curves_must_be_one_an_op() -> None:
    problem = problem_of([{1: 1.0}, {1: 1.0}])
    with pytest.raises(PlanError, match="1 true curves for 2 ops"):
        simulate(create("fifo", problem), true_curves=curves_of(graph_of([{1: 1.0}]), problem.machine))


def test_what_is_left_of_an_op_is_rescaled_when_its_neighbour_ends() -> None:
    """Both go at half pace until b is done at 2 x 2 s; a then has 4 - 2 s left and goes at full pace."""
    problem = problem_of([{1: 4.0}, {1: 2.0}], cores=2)
    halved = Factors(lambda together, op: 2.0 if len(together) > 1 else 1.0)
    assert times(simulate(Script(problem, each_on_its_own_core), interference=halved)) == {"a": (0, 6), "b": (0, 4)}


def test_what_is_left_of_an_op_is_rescaled_when_a_neighbour_starts() -> None:
    """a (6 s) runs alone for 1 s, beside c at a third of its pace for 3 s, then alone for the 4 s that are left."""
    problem = problem_of([{1: 6.0}, {1: 1.0}, {1: 1.0}], [(1, 2)], cores=2)
    slowed = Factors(lambda together, op: 3.0 if together == {0, 2} else 1.0)
    trace = simulate(Script(problem, each_on_its_own_core), interference=slowed)
    assert times(trace) == {"a": (0, 8), "b": (0, 1), "c": (1, 4)}


def test_interference_that_breaks_its_contract_is_refused() -> None:
    problem = problem_of([{1: 1.0}, {1: 1.0}], cores=2)
    for wrong in (0.5, -1.0, 0.0, float("inf"), float("nan")):
        with pytest.raises(InvalidInput, match="slow-down"):
            simulate(Script(problem, each_on_its_own_core), interference=Factors(lambda together, op, w=wrong: w))


def test_an_op_goes_on_at_full_pace_when_the_one_beside_it_ends() -> None:
    """b is done at 2 s; a has 4 - 1.03 s left by then."""
    problem = problem_of([{2: 4.0}, {2: 1.03}], cores=2, threads_per_core=2)

    def together(state: State) -> list[Launch]:
        return [Launch(op, (0, 1), 2, hardware_thread=lane) for lane, op in enumerate(state.ready)]

    trace = times(simulate(Script(problem, together)))
    assert trace["b"] == (0, pytest.approx(2.0))
    assert trace["a"] == (0, pytest.approx(2.0 + 4.0 - 1.03))


def at(op: int, *cores: int, threads: int | None = None, hardware_thread: int = 0) -> Running:
    return Running(op, cores, threads or len(cores), 0.0, 1.0, hardware_thread)


ONE, TWO, FOUR = (problem_of([{1: 1.0}], cores=2, threads_per_core=n).machine for n in (1, 2, 4))
HYBRID = hybrid_problem([{1: 1.0}], fast=1, small=1).machine


@pytest.mark.parametrize(
    ("machine", "throughput", "running", "slower"),
    [
        (ONE, 1.0, [at(op, 0, 1, hardware_thread=op) for op in range(3)], [3.0] * 3),
        (HYBRID, 1.25, [at(op, op // 2, hardware_thread=op % 2) for op in range(4)], [1.6, 1.6, 2, 2]),
        (TWO, 1.25, [at(0, 0, 1), at(1, 1, hardware_thread=1)], [1.6, 1.6]),
        (TWO, 1.25, [at(0, 0, 1)], [1.0]),
        (FOUR, 1.0, [at(0, 0, 1, threads=4), at(1, 0, 1, hardware_thread=2)], [1.5, 3.0]),
        (FOUR, 1.25, [at(0, 0, 1, threads=4)], [1.0]),
        (FOUR, 1.25, [at(0, 0, 1, threads=16)], [1.0]),
    ],
    ids=[
        "time slices gain nothing", "cores of one hardware thread gain nothing", "the slowest core counts",
        "alone on two", "threads beyond the cores", "alone with more threads", "alone with too many",
    ],
)  # fmt: skip
def test_ops_share_their_cores_by_threads(
    machine: Machine, throughput: float, running: list[Running], slower: list[float]
) -> None:
    assert CoreSharing(machine, core_throughput=throughput).slowdowns(running) == slower


@pytest.mark.parametrize(
    ("say", "complaint"),
    [
        (lambda state: [Launch(1, (0,), 1)], "op 'b', which is not ready"),
        (lambda state: [Launch(9, (0,), 1)], "op number 9, which is not ready"),
        (lambda state: [Launch(0, (7,), 1)], r"cores \[7\] are not among"),
        (lambda state: [Launch(0, (), 1)], "at least one"),
        (lambda state: [Launch(0, (1, 1), 2)], "distinct"),
        (lambda state: [Launch(0, (0, 1), 1)], "at least one thread a core"),
        (lambda state: [Launch(0, (0,), 1, -1)], "hardware_thread=-1"),
        (lambda state: [Launch(0, (0, 1, 2), 3)], "does not offer 3 threads"),
        (lambda state: [Launch(0, (0,), 1), Launch(2, (0,), 1)], r"hardware thread 0 of cores \[0\] is taken"),
        (lambda state: [Launch(0, (0,), 2), Launch(2, (0,), 1, 1)], r"hardware thread 1 of cores \[0\] is taken"),
        (lambda state: [], "launched nothing while 2 ops are ready"),
    ],
)
def test_an_illegal_launch_is_refused(say: Callable[[State], list[Launch]], complaint: str) -> None:
    problem = problem_of([{1: 1.0, 2: 0.5}, {1: 1.0}, {1: 1.0}], [(0, 1)])
    with pytest.raises(IllegalLaunch, match=complaint):
        simulate(Script(problem, say))


def test_an_illegal_launch_comes_with_its_history() -> None:
    problem = problem_of([{1: 1.0}, {1: 2.0}, {1: 1.0}, {1: 1.0}], [(0, 2), (2, 3)])

    def wrong_in_the_end(state: State) -> list[Launch]:
        return [Launch(2, (1,), 1)] if 2 in state.ready else each_on_its_own_core(state)

    with pytest.raises(IllegalLaunch) as caught:
        simulate(Script(problem, wrong_in_the_end))
    message = str(caught.value)
    for part in ("'script' at 1 s", "Running: op 'b'", "0 s op 'a' on 1 threads, cores [0]", "cores [1]"):
        assert part in message


def test_a_simulation_gives_up_once_the_limit_is_reached() -> None:
    policy = create("fifo", problem_of([{1: 1.0}] * 3, cores=1))
    assert makespan_s(policy) == 3.0
    assert makespan_s(policy, give_up_s=3.5) == 3.0
    assert makespan_s(policy, give_up_s=3.0) == float("inf")
