"""Whole compiled calls are compared with eager PyTorch, backward passes included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from threadcast.runtime.compile_backend import compiled_graphs
from threadcast.runtime.compiled_call import CompiledCall
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.short_way import ShortWay
from threadcast.runtime.tuner.contender_id import plan_of
from threadcast.runtime.tuner.report import Report

pytestmark = pytest.mark.compared


class Clock:
    """A clock that only `pass_` moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds


class Part:
    """Stands for graphs that are measured in their first calls."""

    def __init__(self, measured: int = 3, *, has_channels_last: bool = False) -> None:
        self.left = measured
        self.reason = ""
        self.learning = self.disturbed = False
        self.has_channels_last = has_channels_last
        self.layout = MemoryFormat.AS_GIVEN
        self.alone = self.plainly = False
        self.by_plan = False
        """Whether a plan runs the graph."""

    def use(self, layout: MemoryFormat, *, plainly: bool = False, alone: bool = False) -> None:
        self.layout, self.plainly, self.alone = layout, plainly, alone

    def leave(self, reason: str) -> None:
        self.reason = reason

    @property
    def reports(self) -> list[Report]:
        self.left -= 1
        if self.left >= 0:
            return [Report()]
        return [Report(plan_of(Variant(self.layout))) if self.by_plan else Report.as_default("")]


class Taking(torch.autograd.Function):
    """Doubles; both passes take time by a clock."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, forward_s: float, backward_s: float) -> Tensor:
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.pass_(forward_s)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.clock.pass_(ctx.backward_s)
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
        clock.pass_(0.3)  # whatever the caller does
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 3


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
    call = CompiledCall(way["eager"], way["graphs"], [part], clock=clock)  # type: ignore[list-item]
    train(call, clock)
    assert set(way["ran"][:3]) == {"graphs"}  # while these are learning
    assert set(way["ran"][-20:]) == {fastest}
    assert not call.measuring
    assert bool(part.reason) == (fastest == "eager")


def in_layouts(
    part: Part, clock: Clock, *, eager: float, plainly: tuple[float, float], learned: tuple[float, float],
    unlimited: bool = False,
) -> tuple[CompiledCall, list[str]]:  # fmt: skip
    """A call whose graphs take these seconds as given and in channels last, by PyTorch and by plans; and what runs."""
    seconds = {"given, plainly": plainly[0], "last, plainly": plainly[1], "given": learned[0], "last": learned[1]}
    way = ways(clock, eager=(eager, 0.0), **{name: (took_s, 0.0) for name, took_s in seconds.items()})

    def graphs(x: Tensor) -> Any:
        name = "given" if part.layout is MemoryFormat.AS_GIVEN else "last"
        return way[f"{name}, plainly" if part.plainly else name](x)

    call = CompiledCall(way["eager"], graphs, [part], unlimited=unlimited, clock=clock)  # type: ignore[list-item]
    return call, way["ran"]


@pytest.mark.parametrize(
    ("eager", "plainly", "learned", "fastest", "never"),
    [
        (0.02, (0.02, 0.015), (0.03, 0.01), "channels last", "given"),
        (0.02, (0.02, 0.015), (0.015, 0.03), "as given", ""),
        (0.02, (0.02, 0.022), (0.015, 0.01), "as given", "last"),
        (0.02, (0.02, 0.022), (0.03, 0.01), "channels last", ""),
        (0.02, (0.02, 0.03), (0.03, 0.01), None, "last"),
        (0.02, (0.02, 0.015), (0.03, 0.03), None, ""),
    ],
)
@pytest.mark.parametrize("unlimited", [False, True])
def test_the_layout_that_pytorch_runs_faster_is_learned_first_and_the_other_where_it_does_not_win(
    eager: float, plainly: tuple[float, float], learned: tuple[float, float], fastest: str | None, never: str,
    unlimited: bool,
) -> None:  # fmt: skip
    clock, part = Clock(), Part(0, has_channels_last=True)
    call, ran = in_layouts(part, clock, eager=eager, plainly=plainly, learned=learned, unlimited=unlimited)
    train(call, clock, 1_000)
    assert not call.measuring
    assert call.runs == fastest
    assert (part.layout if part.alone else None) == fastest
    assert bool(part.reason) == (fastest is None)
    assert set(ran[:20]) == {"given, plainly", "last, plainly"}
    assert set(ran[-20:]) == {{"channels last": "last", "as given": "given"}.get(fastest or "", "eager")}
    assert never not in ran


def test_learning_a_second_layout_loses_2_percent_at_most() -> None:
    clock, part = Clock(), Part(0, has_channels_last=True)
    call, ran = in_layouts(part, clock, eager=0.01, plainly=(0.01, 0.011), learned=(0.015, 0.0125))
    while call._whole.layout is MemoryFormat.AS_GIVEN:
        train(call, clock, 1)
    part.left = 1_000_000  # it goes on learning
    ran.clear()
    train(call, clock, 1_000)
    assert ran.count("last") / 1_000 == pytest.approx(0.08, abs=0.01)
    assert ran.count("eager") == 1_000 - ran.count("last")


def test_calls_without_gradients_are_compared_by_themselves() -> None:
    clock = Clock()
    way = ways(clock, eager=(0.01, 1.0), graphs=(0.02, 0.0))
    call = CompiledCall(way["eager"], way["graphs"], [Part(0)], clock=clock)  # type: ignore[list-item]
    with torch.no_grad():
        for _ in range(100):
            call(torch.ones(3))
    assert way["ran"][-1] == "eager"


def test_a_backward_pass_that_never_comes_does_not_count() -> None:
    clock = Clock()
    way = ways(clock, eager=(0.01, 1.0), graphs=(0.02, 0.0))
    call = CompiledCall(way["eager"], way["graphs"], [Part(0)], clock=clock)  # type: ignore[list-item]
    for _ in range(100):
        call(torch.ones(3, requires_grad=True))
    assert way["ran"][-1] == "eager"


@pytest.mark.parametrize(("graphs_s", "share"), [(0.01, 1.0), (0.0105, 0.4), (0.012, 0.1), (0.1, 0.0)])
def test_slower_graphs_that_still_learn_run_in_as_many_calls_as_lose_2_percent(graphs_s: float, share: float) -> None:
    clock, part = Clock(), Part(0)
    way = ways(clock, eager=(0.01, 0.0), graphs=(graphs_s, 0.0))
    part.learning = True
    call = CompiledCall(way["eager"], way["graphs"], [part], clock=clock)  # type: ignore[list-item]
    train(call, clock)
    compared = len(way["ran"])
    train(call, clock, 800)
    assert way["ran"][compared:].count("graphs") / 800 == pytest.approx(share, abs=0.03)
    part.learning = False
    train(call, clock)
    assert way["ran"][-1] == "eager"
    assert not call.measuring


def test_graphs_that_became_faster_while_they_learned_are_kept() -> None:
    clock, part = Clock(), Part(0)
    way = ways(clock, eager=(0.01, 0.0), slow=(0.011, 0.0), fast=(0.005, 0.0))
    part.learning = True
    call = CompiledCall(
        way["eager"], lambda x: way["slow" if part.learning else "fast"](x), [part], clock=clock  # type: ignore[list-item]
    )  # fmt: skip
    train(call, clock)
    part.learning = False
    train(call, clock)
    assert set(way["ran"][-20:]) == {"fast"}


def test_where_learning_may_take_any_time_nothing_is_compared_before_its_end() -> None:
    """What a comparison shows beside compilers and looks at operators may be due to these."""
    clock, part = Clock(), Part(0)
    way = ways(clock, eager=(0.01, 0.0), slow=(0.02, 0.0), fast=(0.005, 0.0))
    part.learning = True
    call = CompiledCall(
        way["eager"], lambda x: way["fast" if part.learning else "slow"](x), [part],  # type: ignore[list-item]
        unlimited=True, clock=clock,
    )  # fmt: skip
    train(call, clock)
    assert set(way["ran"]) == {"fast"}
    assert call.measuring
    part.learning = False
    train(call, clock)
    assert set(way["ran"][-20:]) == {"eager"}
    assert not call.measuring


def test_graphs_that_only_seem_faster_while_they_learn_are_compared_again() -> None:
    clock, part, taken = Clock(), Part(0), iter([0.006, 0.006, 0.006, 0.02] * 1_000)
    way = ways(clock, eager=(0.01, 0.0), slow=(0.02, 0.0))

    def graphs(x: Tensor) -> Any:
        if not part.learning:
            return way["slow"](x)
        way["ran"].append("noisy")
        return (Taking.apply(x, clock, next(taken), 0.0),)  # type: ignore[no-untyped-call]

    part.learning = True
    call = CompiledCall(way["eager"], graphs, [part], clock=clock)  # type: ignore[list-item]
    train(call, clock, 400)
    assert set(way["ran"][-20:]) == {"noisy"}
    assert call.measuring
    part.learning = False
    train(call, clock)
    assert set(way["ran"][-20:]) == {"eager"}


@pytest.mark.parametrize(("by_pytorch_s", "fastest"), [(0.03, "eager"), (0.015, "graphs")])
def test_graphs_that_are_left_to_pytorch_later_are_compared_once_more(by_pytorch_s: float, fastest: str) -> None:
    clock, part, ran = Clock(), Part(0), []
    part.by_plan = True

    def graphs(x: Tensor) -> Any:
        ran.append("graphs")
        return (Taking.apply(x, clock, 0.01 if part.by_plan else by_pytorch_s, 0.0),)  # type: ignore[no-untyped-call]

    def eager(x: Tensor) -> Any:
        ran.append("eager")
        return (Taking.apply(x, clock, 0.02, 0.0),)  # type: ignore[no-untyped-call]

    call = CompiledCall(eager, graphs, [part], clock=clock)  # type: ignore[list-item]
    train(call, clock)
    assert call.runs == "as given"
    part.by_plan, part.learning = False, True  # what was kept is looked at again
    train(call, clock, 400)
    assert not call.measuring
    part.learning = False
    ran.clear()
    train(call, clock, 400)
    assert "eager" in ran
    assert set(ran[-100:]) == {fastest}
    assert not call.measuring
    assert bool(part.reason) == (fastest == "eager")


def test_after_a_layout_whose_plans_are_given_up_the_other_is_learned() -> None:
    clock, part = Clock(), Part(0, has_channels_last=True)
    part.by_plan = True
    took = {"given, plainly": 0.02, "last, plainly": 0.015, "given": 0.01, "last": 0.01, "last, by PyTorch": 0.03}
    way = ways(clock, eager=(0.02, 0.0), **{name: (took_s, 0.0) for name, took_s in took.items()})

    def graphs(x: Tensor) -> Any:
        name = "given" if part.layout is MemoryFormat.AS_GIVEN else "last"
        given_up = "last, by PyTorch" if name == "last" and not part.by_plan else name
        return way[f"{name}, plainly" if part.plainly else given_up](x)

    call = CompiledCall(way["eager"], graphs, [part], clock=clock)  # type: ignore[list-item]
    train(call, clock, 400)
    assert call.runs == "channels last"
    part.by_plan = False
    train(call, clock, 1_000)
    assert call.runs == "as given"
    assert set(way["ran"][-20:]) == {"given"}


def test_graphs_that_run_whatever_their_speed_are_not_compared_again() -> None:
    clock, part = Clock(), Part(0)
    part.by_plan = True
    way = ways(clock, eager=(0.01, 0.0), graphs=(0.02, 0.0))
    call = CompiledCall(way["eager"], way["graphs"], [part], clock=clock)  # type: ignore[list-item]
    call.keep_graphs()
    part.by_plan = False
    train(call, clock, 400)
    assert set(way["ran"]) == {"graphs"}


def test_nothing_is_compared_beside_a_plan_that_is_being_made() -> None:
    clock, part = Clock(), Part(0)
    seconds = {"eager": 0.01, "graphs": 0.005}

    def way(name: str) -> Any:
        return lambda x: (ran.append(name), (Taking.apply(x, clock, seconds[name], 0.0),))[1]  # type: ignore[func-returns-value, no-untyped-call]

    ran: list[str] = []
    call = CompiledCall(way("eager"), way("graphs"), [part], clock=clock)  # type: ignore[list-item]
    train(call, clock, 8)
    part.disturbed, seconds["graphs"] = True, 0.5
    ran.clear()
    train(call, clock, 100)
    assert set(ran) == {"eager"}
    part.disturbed, seconds["graphs"] = False, 0.005
    train(call, clock)
    assert set(ran[-20:]) == {"graphs"}
    assert not call.measuring


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
    call = CompiledCall(way["eager"], NeverShort(way["graphs"]), [Part(0)], clock=clock)  # type: ignore[list-item]
    train(call, clock)
    assert way["ran"][:6] == ["graphs"] * 4 + ["eager"] * 2
    assert not call.measuring


def test_calls_of_equal_sizes_are_compared_and_the_verdict_is_for_all() -> None:
    clock, ran = Clock(), []

    def taking(name: str, seconds: float) -> Any:
        def call(size: int, x: Tensor) -> Tensor:
            ran.append((name, size))
            clock.pass_(seconds * (100.0 if size == 9 else 1.0))
            return x

        return call

    call = CompiledCall(taking("eager", 0.01), taking("graphs", 0.02), [Part(0)], clock=clock)  # type: ignore[list-item]
    for number in range(120):
        call(9 if number % 3 == 2 else 4, torch.ones(3))
    assert {name for name, size in ran[:12] if size == 9} == {"graphs"}
    assert {name for name, _ in ran[-10:]} == {"eager"}


def test_sizes_that_come_ten_times_in_a_row_are_compared_instead() -> None:
    clock, ran = Clock(), []

    def taking(name: str, seconds: float) -> Any:
        def call(size: int, x: Tensor) -> Tensor:
            ran.append(name)
            clock.pass_(seconds)
            return x

        return call

    call = CompiledCall(taking("eager", 0.01), taking("graphs", 0.02), [Part(0)], clock=clock)  # type: ignore[list-item]
    for number in range(120):
        call(4 if number == 0 else 5, torch.ones(3))
    assert ran[1:10] == ["graphs"] * 9
    assert ran[-1] == "eager"


def test_a_call_that_raises_is_not_counted() -> None:
    clock = Clock()

    def failing(x: Tensor) -> Tensor:
        raise RuntimeError("the program's own")

    call = CompiledCall(failing, failing, [Part(0)], clock=clock)  # type: ignore[list-item]
    for _ in range(100):
        with pytest.raises(RuntimeError, match="own"):
            call(torch.ones(3))
    assert call.measuring


def test_graphs_that_are_left_run_as_pytorch_and_say_why() -> None:
    x = torch.randn(4, 4)
    compiled = torch.compile(lambda x: (x @ x).relu(), backend="threadcast")
    with torch.no_grad():
        compiled(x)
        graph = compiled_graphs()[-1]
        graph.leave("no reason")
        torch.testing.assert_close(compiled(x), (x @ x).relu())
    assert [report.reason for report in graph.reports] == ["no reason"]


def test_a_compiled_model_trains_as_eager_does_while_both_ways_are_compared() -> None:
    torch.manual_seed(0)
    mine = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)).double()
    eager = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)).double()
    eager.load_state_dict(mine.state_dict())
    compiled = torch.compile(mine, backend="threadcast")
    for seed in range(120):
        x = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for called, model in ((compiled, mine), (eager, eager)):
            model.zero_grad()
            called(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.05 * parameter.grad
    for one, other in zip(mine.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
