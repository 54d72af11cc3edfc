"""A replay runs the plan as it was made, and finds what is next without a look at all that is ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.affinities import with_affinities
from tests.scheduler.random_problems import problem_of, problems
from threadcast.core import Placement, Plan
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem, State
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.problem import Running
from threadcast.scheduler.search.replay import replayed
from threadcast.scheduler.simulation.simulator import simulate


class Counted(Sequence[int]):
    """Which ops have finished, and how often that was asked."""

    def __init__(self, finished: Sequence[int]) -> None:
        self.finished, self.asked = finished, 0

    def __len__(self) -> int:
        return len(self.finished)

    def __iter__(self) -> Iterator[int]:
        return iter(self.finished)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        self.asked += 1
        return self.finished[index]


def test_thousands_of_ready_ops_are_not_all_looked_at() -> None:
    problem = problem_of([{1: 1.0}] * 2000, cores=4)
    made = plan(problem, policy="cpa")
    policy = PlanReplay(problem, plan=made)
    assert policy.rank is not None
    in_order = sorted(range(2000), key=policy.rank.__getitem__)
    placed = made.by_id()
    first, running = in_order[:100], in_order[100:103]
    now_s = placed[problem.graph.ids[running[0]]].start_s
    finished = Counted(bytes(op in first for op in range(2000)))
    busy = tuple(Running(op, placed[problem.graph.ids[op]].cores, 1, now_s, now_s + 1.0) for op in running)
    idle = tuple({0, 1, 2, 3} - {core for at in busy for core in at.cores})
    launches = policy.decide(State(now_s, in_order[103:], idle, busy, finished))
    assert [launch.op for launch in launches] == [in_order[103]]
    assert finished.asked < 50


def test_an_op_that_the_plan_keeps_for_later_does_not_slow_down_the_op_before() -> None:
    problem = problem_of([{1: 2.0}, {1: 1.0}, {1: 2.0}], cores=1, threads_per_core=2)
    made = Plan(1, "by hand", (
        Placement("a", (0,), 1, 0.0, 2.0), Placement("c", (0,), 1, 2.0, 4.0), Placement("b", (0,), 1, 2.0, 3.0, 1),
    ))  # fmt: skip
    again = simulate(PlanReplay(problem, plan=made))
    assert {at.id: at.start_s for at in again.ops} == {"a": 0.0, "b": 2.0, "c": 2.0}


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(["sequential", "cpa", "mcpa"]), st.integers(0, 99))
def test_a_replay_at_other_times_is_what_the_simulator_makes_of_it(problem: Problem, policy: str, seed: int) -> None:
    made = plan(problem, policy=policy)
    other = with_affinities(problem, seed=seed)
    simulated = simulate(PlanReplay(other, plan=made))
    assert {at.id: at for at in replayed(other, made.ops)} == simulated.by_id()
