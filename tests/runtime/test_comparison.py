"""Contenders are timed by turns, each as if it ran alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.runtime.compiler import needs_compiler
from threadcast.capture.graph.capture import capture_forward
from threadcast.cli.comparison import FEWEST_ROUNDS, WARM_UP, compare
from threadcast.collector.busy import Load, LoadWatch
from threadcast.core import Case, Machine, Placement, Trace
from threadcast.core.errors import InvalidInput
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.sequential import sequential
from threadcast.scheduler.simulation.checker import check_schedule


class Clockwork(Engine):
    """An engine whose steps take so many seconds of a clock that all share, more in the first after another's."""

    def __init__(self, now: list[float], log: list[str], name: str, step_s: float) -> None:
        self.now, self.log, self.name, self.step_s = now, log, name, step_s

    def run(self, inputs: Sequence[Any]) -> Any:
        self.now[0] += self.step_s + (0.0 if self.log[-1:] == [self.name] else 100.0)
        self.log.append(self.name)

    def run_traced(self, inputs: Sequence[Any]) -> tuple[Any, Trace]:
        return None, Trace(1, self.name, (Placement("op", (0,), 1, 0.0, self.step_s),))

    def close(self) -> None:
        pass

    prepare = change = None  # type: ignore[assignment]


def test_only_steps_that_follow_their_own_are_timed() -> None:
    now, log, told = [0.0], [], []
    engines = {name: Clockwork(now, log, name, s) for name, s in (("plan", 1.0), ("sequential", 3.0), ("eager", 2.0))}
    result = compare(
        engines["plan"], [], lambda: engines["eager"].run([]), others={"sequential": engines["sequential"]}, steps=4,
        progress=lambda done, total: told.append((done, total)), clock=lambda: now[0],
    )  # fmt: skip
    assert result.seconds == {"default": (2.0,) * 4, "plan": (1.0,) * 4, "sequential": (3.0,) * 4}
    assert (result.verdict.kept, result.verdict.gain, result.median_s("sequential")) == ("plan", 2.0, 3.0)
    turn = ["eager", "eager", "plan", "plan", "sequential", "sequential"]
    assert log == turn * (WARM_UP + 4)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


class Others(LoadWatch):
    """A watch that says of each round whether others use the CPUs."""

    def __init__(self, busy: Iterator[bool]) -> None:
        self.busy = busy

    def recent(self) -> Load | None:
        return Load(0.5, 0.5, 0.0, 2) if next(self.busy) else Load(0.01, 0.01, 0.0, 2)


@pytest.mark.parametrize(
    ("busy", "counted", "repeated", "disturbed", "interval"),
    [
        (itertools.repeat(False), 12, 0, False, "95 % interval"),
        (itertools.cycle([False, True]), 12, 12, False, "95 % interval"),
        (itertools.repeat(True), 24, 24, True, "99.9 % interval"),
        (itertools.chain([False] * 5, itertools.repeat(True)), 24, 22, True, "99.9 % interval"),
    ],
    ids=["quiet", "every other round", "always", "but for two rounds"],
)
def test_disturbed_rounds_are_run_again_and_count_only_where_too_few_are_not(
    busy: Iterator[bool], counted: int, repeated: int, disturbed: bool, interval: str
) -> None:
    now, log = [0.0], []
    engines = {name: Clockwork(now, log, name, s) for name, s in (("plan", 1.0), ("eager", 2.0))}
    result = compare(
        engines["plan"], [], lambda: engines["eager"].run([]), steps=12, watch=Others(busy), clock=lambda: now[0]
    )
    assert (len(result.seconds["plan"]), result.repeated) == (counted, repeated)
    assert (result.disturbed, result.interval) == (disturbed, interval)


def test_no_more_rounds_than_an_interval_needs_begin_after_the_time_is_over() -> None:
    now, log = [0.0], []
    engines = {name: Clockwork(now, log, name, s) for name, s in (("plan", 1.0), ("eager", 2.0))}
    watch = Others(itertools.repeat(True))
    result = compare(
        engines["plan"], [], lambda: engines["eager"].run([]), steps=30, watch=watch, most_s=5.0, clock=lambda: now[0]
    )
    assert (len(result.seconds["plan"]), result.disturbed) == (FEWEST_ROUNDS, True)


@needs_compiler
def test_real_steps_are_compared_and_traced(machine: Machine) -> None:
    captured = capture_forward(lambda x: (x @ x).sin().sum(), torch.ones(32, 32))
    engines = [
        Engine(captured, sequential(captured.graph, machine, Case(threads)), machine) for threads in {1, len(machine)}
    ]
    result = compare(engines[0], captured.bind(), captured.run, others={"other": engines[-1]}, steps=3)
    assert {name: len(taken) for name, taken in result.seconds.items()} == {"default": 3, "plan": 3, "other": 3}
    check_schedule(captured.graph, result.trace, machine=machine)


def test_too_few_steps_are_refused_before_one_is_run() -> None:
    log: list[str] = []
    with pytest.raises(InvalidInput, match=r"steps=2: .* 3 or more"):
        compare(Clockwork([0.0], log, "plan", 1.0), [], lambda: None, steps=2)
    assert not log
