"""Whole calls of a program are compared with the program as traced, both passes included, by a clock of the test."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.clock import Clock
from threadcast.collector.busy import CpuTimes
from threadcast.runtime.compiled.compiled_call import CompiledCall
from threadcast.runtime.compiled.short_way import ShortWay
from threadcast.runtime.plans.plan_store import FasterGraphs
from threadcast.runtime.tuner import rounds
from threadcast.runtime.tuner.backends_beside import BackendsBeside
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.events import Outlook, Place
from threadcast.runtime.tuner.report import Report

pytestmark = pytest.mark.compared


@pytest.fixture(autouse=True)
def learning_at_once() -> None:
    """Here it is waited for."""


class Part:
    """Stands for graphs that are measured in their first calls."""

    def __init__(self, measured: int = 3) -> None:
        self.left = measured
        self.reason = ""
        self.disturbed = False
        self.outlook = Outlook(None)
        """What the graphs go on to learn once they have settled."""
        self.found: Outlook | None = None
        """What a look finds that they learn then."""
        self.rests = False
        self.beside = 0
        """Calls that left a core to what makes a plan."""

    def use(self, *, rests: bool = False, counts: bool = False) -> None:
        self.rests, self.reason = rests, ""

    def look(self) -> None:
        if self.found is not None:
            self.outlook = self.found

    def beside_a_plan(self, run: Any, *arguments: Any) -> Any:
        self.beside += 1
        return run(*arguments)

    def leave(self, reason: str) -> None:
        self.reason = reason

    @property
    def learning(self) -> bool:
        return self.outlook.place is not None

    @property
    def reports(self) -> list[Report]:
        self.left -= 1
        if self.left >= 0:
            return [Report()]
        return [Report.as_default("")]


class Taking(torch.autograd.Function):
    """Doubles; both passes take time by a clock."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, forward_s: float, backward_s: float) -> Tensor:
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.now_s += forward_s
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.clock.now_s += ctx.backward_s
        return 2 * gradient, None, None, None


def ways(clock: Clock, **seconds: tuple[float, float]) -> dict[str, Any]:
    """For each name a function that takes these seconds forward and backward, and notes its name in "ran"."""
    ran: list[str] = []

    def way(name: str) -> Any:
        def call(x: Tensor) -> tuple[Tensor]:
            ran.append(name)
            return (Taking.apply(x, clock, *seconds[name]),)

        return call

    return {"ran": ran} | {name: way(name) for name in seconds}


def train(call: CompiledCall, clock: Clock, steps: int = 200) -> None:
    for _ in range(steps):
        x = torch.ones(3, requires_grad=True)
        (y,) = call(x)
        clock.now_s += 0.3
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 3


def called(
    way: dict[str, Any], parts: list[Part], clock: Clock, *, graphs: Any = None, budget: Budget | None = None
) -> CompiledCall:  # fmt: skip
    found = way["graphs"] if graphs is None else graphs
    return CompiledCall(way["eager"], found, parts, budget=budget, clock=clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("eager", "graphs", "fastest"),
    [
        ((0.01, 0.05), (0.02, 0.02), "graphs"),
        ((0.02, 0.02), (0.01, 0.05), "eager"),
        ((0.02, 0.02), (0.02, 0.02), "eager"),
    ],
)
def test_the_way_with_the_shorter_forward_and_backward_pass_runs(
    eager: tuple[float, float], graphs: tuple[float, float], fastest: str
) -> None:
    clock = Clock()
    way = ways(clock, eager=eager, graphs=graphs)
    part = Part()
    call = called(way, [part], clock, budget=Budget(0.05))
    train(call, clock)
    assert set(way["ran"][:2]) == {"eager"}  # while it is found out how long these take
    assert set(way["ran"][-20:]) == {fastest}
    assert not call.measuring
    assert bool(part.reason) == (fastest == "eager")


def test_the_program_runs_as_traced_but_for_calls_in_which_graphs_learn_or_are_compared() -> None:
    """They take 1.2 of eager's time, and wait for a plan, and later for compilers, for most of the time."""
    clock, part, budget = Clock(), Part(0), Budget(0.05)
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.012, 0.0))
    call = called(way, [part], clock, budget=budget)
    part.disturbed = True
    train(call, clock, 100)
    assert set(way["ran"]) == {"eager"}
    part.disturbed, part.outlook = False, Outlook(Place.BESIDE)
    train(call, clock, 200)
    compared = len(way["ran"])
    assert 6 <= way["ran"].count("graphs") <= 60
    train(call, clock, 200)
    assert set(way["ran"][compared:]) == {"eager"}
    part.found = Outlook(Place.CALL)  # the compilers are done
    train(call, clock, 20)
    assert set(way["ran"][-10:]) == {"graphs"}
    part.found = part.outlook = Outlook(None)
    train(call, clock, 200)
    assert set(way["ran"][-100:]) == {"eager"}
    assert not call.measuring


def test_what_graphs_lose_against_the_program_as_traced_is_within_the_budget() -> None:
    clock, part, budget = Clock(), Part(0), Budget(0.05)
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.1, 0.0))
    part.left = 1_000_000  # they never settle
    call = called(way, [part], clock, budget=budget)
    behind_s = []
    for _ in range(500):
        train(call, clock, 1)
        behind_s.append(budget.behind_s - 0.05 * budget.eager_s)
    assert budget.eager_s == pytest.approx(5.0, rel=0.05)
    assert budget.start_s - 0.2 < max(behind_s) <= budget.start_s


@pytest.mark.parametrize(
    ("eager_s", "promised_s", "runs"),
    [(0.03, 0.01, {"graphs"}), (0.005, 0.001, {"graphs", "eager"})],
)
def test_graphs_that_were_faster_before_run_from_the_first_call_on_and_are_compared_where_they_are_not_any_more(
    eager_s: float, promised_s: float, runs: set[str]
) -> None:
    clock, way, kept = Clock(), {}, []
    way = ways(clock, eager=(eager_s, 0.0), graphs=(0.01, 0.0))
    call = CompiledCall(
        way["eager"], way["graphs"], [Part(0)],  # type: ignore[list-item]
        clock=clock, found=FasterGraphs(promised_s, 0.03), keep=kept.append,
    )  # fmt: skip
    train(call, clock, 15)
    assert set(way["ran"]) == {"graphs"}
    train(call, clock, 400)
    assert set(way["ran"]) == runs
    assert way["ran"][-1] == ("graphs" if eager_s > 0.01 else "eager")
    assert kept[-1] == (None if "eager" in runs else FasterGraphs(pytest.approx(0.01), pytest.approx(0.03)))


@pytest.mark.parametrize(
    ("others", "slow_s", "found"),
    [(0.0, 0.011, [None]), (0.3, 0.011, []), (0.0, 0.03, [])],
    ids=["quiet", "taken", "loud"],
)
def test_that_graphs_are_not_faster_is_not_kept_where_others_took_the_cores_meanwhile(
    others: float, slow_s: float, found: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan waits for the slowest of its cores: on a busy machine it may lose where it wins on an idle one."""
    clock, kept, calls = Clock(), [], count()

    def cpu_times() -> CpuTimes:
        busy = int((others if clock.now_s else 0.0) * 100 * clock.now_s)
        return CpuTimes({0: (busy, 0, int(100 * clock.now_s))}, 0.0, clock.now_s)

    def graphs(x: Tensor) -> Any:
        return (Taking.apply(x, clock, slow_s if next(calls) // 8 % 2 else 0.011, 0.0),)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(rounds, "_cpu_times", cpu_times)
    way = ways(clock, eager=(0.01, 0.0))
    call = CompiledCall(way["eager"], graphs, [Part(0)], clock=clock, keep=kept.append)  # type: ignore[list-item]
    train(call, clock)
    assert way["ran"][-1] == "eager"
    assert not call.measuring
    assert kept == found


def test_what_other_processes_take_from_the_program_as_traced_is_not_counted_as_lost() -> None:
    clock, part, budget, seconds = Clock(), Part(0), Budget(0.05), [0.01]

    def eager(x: Tensor) -> Any:
        return (Taking.apply(x, clock, seconds[0], 0.0),)  # type: ignore[no-untyped-call]

    call = called({"eager": eager, "graphs": eager}, [part], clock, budget=budget)
    train(call, clock, 4)
    part.disturbed, seconds[0] = True, 1.0
    train(call, clock, 6)
    assert 0 < budget.behind_s <= 2.0


def test_a_program_gets_its_turn_after_others_have_spent_all_there_was() -> None:
    clock, budget = Clock(), Budget(0.05)
    for _ in range(2):
        slow = ways(clock, eager=(0.01, 0.0), graphs=(0.1, 0.0))
        train(called(slow, [Part(1_000_000)], clock, budget=budget), clock, 500)
    assert budget.left_s < 0.1
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.005, 0.0))
    part = Part()
    call = called(way, [part], clock, budget=budget)
    train(call, clock, 300)
    assert set(way["ran"][-20:]) == {"graphs"}


@pytest.mark.parametrize(("graphs_s", "few"), [(0.012, True), (0.005, False)])
def test_graphs_that_cannot_afford_what_they_learn_next_run_only_where_they_are_faster_already(
    graphs_s: float, few: bool
) -> None:
    clock, part, budget = Clock(), Part(0), Budget(0.0)
    way = ways(clock, eager=(0.01, 0.0), graphs=(graphs_s, 0.0))
    part.left, part.outlook = 1_000_000, Outlook(Place.CALL)
    call = called(way, [part], clock, budget=budget)
    train(call, clock, 20)
    part.outlook = Outlook(Place.CALL, cost_s=100.0)
    budget.charge(budget.left_s + 0.1)
    train(call, clock, 1)
    way["ran"].clear()
    train(call, clock, 100)
    assert way["ran"].count("graphs") <= 1 if few else "eager" not in way["ran"]
    part.left, part.outlook = 0, Outlook(None)
    train(call, clock, 100)
    assert few or not call.measuring
    assert call.by_graphs != few


def test_calls_are_seldom_timed_while_there_is_nothing_to_be_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, part, budget = Clock(), Part(0), Budget(0.0)
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.012, 0.0))
    part.left, part.outlook = 1_000_000, Outlook(Place.CALL, cost_s=1.0)
    call = called(way, [part], clock, budget=budget)
    budget.charge(10.0)
    train(call, clock, 30)
    observe, timed = call._whole.observe, list[float]()
    monkeypatch.setattr(call._whole, "observe", lambda **given: (timed.append(given["seconds"]), observe(**given)))
    before_s = budget.eager_s
    train(call, clock, 210)
    assert len(timed) == 10
    assert budget.eager_s - before_s == pytest.approx(2.1, abs=0.21), "the others are counted all the same"


def test_a_backward_pass_that_never_comes_does_not_count() -> None:
    clock = Clock()
    way = ways(clock, eager=(0.01, 1.0), graphs=(0.02, 0.0))
    call = called(way, [Part(0)], clock)
    for _ in range(400):
        call(torch.ones(3, requires_grad=True))
    assert way["ran"][-1] == "eager"
    assert not call.measuring


def test_calls_that_share_a_backward_pass_run_in_one_way() -> None:
    clock, part = Clock(), Part()
    way = ways(clock, eager=(0.01, 0.02), graphs=(0.005, 0.01))
    call = called(way, [part], clock)
    for _ in range(150):
        x = torch.ones(3, requires_grad=True)
        first, second = call(x)[0], call(x)[0]
        assert way["ran"][-1] == way["ran"][-2]
        (first.sum() + second.sum()).backward()
    assert set(way["ran"][-20:]) == {"graphs"}


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_graphs_that_became_faster_while_they_learned_are_kept(share: float) -> None:
    clock, part = Clock(), Part(0)
    way = ways(clock, eager=(0.01, 0.0), slow=(0.011, 0.0), fast=(0.005, 0.0))
    part.outlook = Outlook(Place.CALL)
    call = called(
        way, [part], clock, graphs=lambda x: way["slow" if part.outlook.place else "fast"](x), budget=Budget(share)
    )  # fmt: skip
    train(call, clock)
    assert not call.by_graphs
    part.outlook = Outlook(None)
    train(call, clock)
    assert set(way["ran"][-20:]) == {"fast"}


def test_where_learning_may_take_any_time_nothing_is_compared_before_its_end() -> None:
    """What a comparison shows beside compilers and looks at operators may be due to these."""
    clock, part = Clock(), Part(0)
    way = ways(clock, eager=(0.01, 0.0), slow=(0.02, 0.0), fast=(0.005, 0.0))
    part.outlook = Outlook(Place.CALL)
    call = called(way, [part], clock, graphs=lambda x: way["fast" if part.outlook.place else "slow"](x))
    train(call, clock)
    assert set(way["ran"][-100:]) == {"fast"}
    assert call.measuring
    part.outlook = Outlook(None)
    train(call, clock)
    assert set(way["ran"][-20:]) == {"eager"}
    assert not call.measuring


@pytest.mark.parametrize(("later_s", "fastest"), [(0.03, "eager"), (0.015, "graphs")])
def test_graphs_that_become_slower_are_compared_once_more(later_s: float, fastest: str) -> None:
    """As where a plan is given up, and PyTorch runs the graph from then on."""
    clock, took_s = Clock(), [0.01]
    way = ways(clock, eager=(0.02, 0.0), graphs=(0.01, 0.0))
    part = Part(0)

    def graphs(x: Tensor) -> Any:
        way["ran"].append("graphs")
        return (Taking.apply(x, clock, took_s[0], 0.0),)  # type: ignore[no-untyped-call]

    call = called(way, [part], clock, graphs=graphs)
    train(call, clock, 500)
    assert call.by_graphs
    took_s[0] = later_s
    way["ran"].clear()
    train(call, clock, 3_000)
    assert ("eager" in way["ran"]) == (fastest == "eager"), "it is still clearly faster than eager was"
    assert set(way["ran"][-15:]) == {fastest}
    assert bool(part.reason) == (fastest == "eager")


def test_nothing_is_compared_beside_a_plan_that_is_being_made() -> None:
    clock, part = Clock(), Part(0)
    seconds = {"eager": 0.01, "graphs": 0.005}

    def way(name: str) -> Any:
        return lambda x: (ran.append(name), (Taking.apply(x, clock, seconds[name], 0.0),))[1]  # type: ignore[func-returns-value, no-untyped-call]

    ran: list[str] = []
    call = called({name: way(name) for name in seconds}, [part], clock)
    train(call, clock, 8)
    part.disturbed, seconds["graphs"] = True, 0.5
    ran.clear()
    train(call, clock, 100)
    assert set(ran) == {"eager"}
    assert part.beside == 100
    part.disturbed, seconds["graphs"] = False, 0.005
    train(call, clock)
    assert set(ran[-20:]) == {"graphs"}
    assert not call.measuring


def test_graphs_that_lost_while_something_computed_beside_them_are_compared_again() -> None:
    """A plan waits for the slowest of its cores, PyTorch's operators less so."""
    clock, part = Clock(), Part(0)
    way = ways(clock, eager=(0.01, 0.0), slow=(0.011, 0.0), fast=(0.005, 0.0))
    part.outlook = Outlook(Place.BESIDE)
    call = called(way, [part], clock, graphs=lambda x: way["slow" if part.outlook.place else "fast"](x))
    train(call, clock, 300)
    assert set(way["ran"][-20:]) == {"eager"}
    part.found = Outlook(None)
    train(call, clock, 300)
    assert set(way["ran"][-20:]) == {"fast"}


class Search:
    """A search for backends of another function that only notes whether it rests."""

    over, working, rests = False, True, False

    def start(self) -> None:
        """Nothing to start."""

    def rest(self, rests: bool) -> None:
        self.rests = rests


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_a_search_for_backends_rests_beside_whole_calls_unless_these_may_take_any_time(share: float) -> None:
    clock, part, search, rested = Clock(), Part(), Search(), []
    others = BackendsBeside(lambda *_: search)  # type: ignore[arg-type, return-value]
    others.begin(object(), (), None)  # type: ignore[arg-type]
    seconds = {"eager": 0.01, "graphs": 0.005}

    def way(name: str) -> Any:
        def call(x: Tensor) -> Any:
            rested.append(search.rests)
            return (Taking.apply(x, clock, seconds[name], 0.0),)  # type: ignore[no-untyped-call]

        return call

    call = called({name: way(name) for name in seconds}, [part], clock, budget=Budget(share))
    train(call, clock)
    first = rested.index(True)
    assert all(rested[first : first + 30])
    assert all(rested) == (share < 1)
    assert rested[-1] == (share < 1)
    search.over = True
    assert call.by_graphs


def test_graphs_learn_nothing_in_calls_that_are_compared() -> None:
    clock, part, rested = Clock(), Part(), []
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.01, 0.0))

    def graphs(x: Tensor) -> Any:
        rested.append(part.rests)
        return way["graphs"](x)

    call = called(way, [part], clock, graphs=graphs)
    train(call, clock)
    assert rested[:3] == [False] * 3
    assert all(rested[4:])


def test_whatever_fails_between_calls_the_program_runs_as_traced(caplog: pytest.LogCaptureFixture) -> None:
    clock, part = Clock(), Part(0)
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.005, 0.0))
    call = called(way, [part], clock)
    del part.outlook
    train(call, clock)
    assert set(way["ran"]) <= {"eager"}
    assert "runs as before" in caplog.text


class NeverShort(ShortWay):
    """A way that is always about to be learned."""

    def __init__(self, graphs: Any) -> None:
        self.graphs = graphs

    def __call__(self, *arguments: Any) -> Any:
        return self.graphs(*arguments)

    def learns(self) -> bool:
        return True

    def forget(self) -> None:
        pass


def test_a_short_way_that_is_never_learned_is_waited_for_a_few_calls() -> None:
    clock = Clock()
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.02, 0.0))
    call = called(way, [Part(0)], clock, graphs=NeverShort(way["graphs"]))
    train(call, clock)
    first = way["ran"].index("graphs")
    assert way["ran"][first : first + 7] == ["graphs"] * 5 + ["eager"] * 2
    assert not call.measuring


def test_calls_of_equal_sizes_are_compared_and_the_verdict_is_for_all() -> None:
    clock, ran = Clock(), []

    def taking(name: str, seconds: float) -> Any:
        def call(size: int, x: Tensor) -> Tensor:
            ran.append((name, size))
            clock.now_s += seconds * (100.0 if size == 9 else 1.0)
            return x

        return call

    call = CompiledCall(taking("eager", 0.01), taking("graphs", 0.02), [Part(0)], clock=clock)  # type: ignore[list-item]
    for number in range(120):
        call(9 if number % 3 == 2 else 4, torch.ones(3))
    assert {name for name, size in ran if size == 9} == {"eager"}
    assert {name for name, _ in ran[-10:]} == {"eager"}


def test_a_call_that_raises_is_not_counted() -> None:
    clock = Clock()

    def failing(x: Tensor) -> Tensor:
        raise RuntimeError("the program's own")

    call = CompiledCall(failing, failing, [Part(0)], clock=clock)  # type: ignore[list-item]
    for _ in range(100):
        with pytest.raises(RuntimeError, match="own"):
            call(torch.ones(3))
    assert call.measuring
