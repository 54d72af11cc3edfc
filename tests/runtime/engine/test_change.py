"""Engines that go on by another plan, on other cores, in the middle of a step or between two."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from tests.runtime.failing_op import Seen, at_checkpoints, checkpoint
from tests.runtime.random_plans import make_random_plan
from tests.waiting import eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.malleable.limits import Limits
from threadcast.malleable.thread_masks import ThreadMasks
from threadcast.runtime.engine.engine import Engine
from threadcast.threads.affinity import thread_ids
from threadcast.threads.this_process import this_process

pytestmark = needs_compiler

STAGES = 14


def ladder(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two branches that meet now and then, that write in place, with checkpoints in both."""
    left, right, kept = x, x * 2, x.clone()
    for i in range(STAGES // 2):
        left, right = checkpoint(left.sin()), checkpoint(right.cos())
        kept.add_(left)
        if i % 2:
            left = left + right + kept
    return left + right, kept


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture_forward(ladder, torch.linspace(0, 1, 16, dtype=torch.float64))


def ids(machine: Machine) -> tuple[int, ...]:
    return tuple(core.id for core in machine.cores)


class AtCheckpoint:
    """Calls `act` once, when the `number`-th checkpoint of a step is reached."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.number, self.act, self.reached, self.lock = number, act, count(), threading.Lock()

    def __call__(self, _: Tensor) -> None:
        with self.lock:
            if next(self.reached) == self.number:
                self.act()


@pytest.mark.parametrize("seed", range(4))
def test_a_step_goes_on_by_another_plan_from_any_op(captured: Captured, machine: Machine, seed: int) -> None:
    one = machine.limited_to(ids(machine)[:1])
    wide = make_random_plan(captured.graph, ids(machine), seed=seed)
    narrow = make_random_plan(captured.graph, ids(one), seed=seed + 10)
    expected = captured.run()
    with Engine(captured, wide, machine) as engine:
        for number in range(STAGES):
            core = machine.cores[number % len(machine)]
            seen = Seen()
            with (
                at_checkpoints(seen),
                at_checkpoints(AtCheckpoint(number, lambda core=core: engine.change(narrow, one, [core]))),
            ):
                found = engine.run(captured.bind())
            assert all(map(torch.equal, found, expected))
            del found
            assert seen.alive() == 0, "values are let go, whichever plan was to let them go"
            engine.change(wide, machine, machine.cores)
            assert all(map(torch.equal, engine.run(captured.bind()), expected))


def test_no_op_begins_on_a_core_that_was_given_up(captured: Captured, machine: Machine) -> None:
    one = machine.limited_to(ids(machine)[:1])
    wide, narrow = (make_random_plan(captured.graph, ids(on), seed=3) for on in (machine, one))
    last = machine.cores[-1]
    with Engine(captured, wide, machine) as engine:
        changed: list[float] = []
        cpus: list[int] = []

        def change() -> None:
            engine.change(narrow, one, [last])
            changed.append(0.0)

        def note(_: Tensor) -> None:
            if changed:
                cpus.extend(os.sched_getaffinity(0))

        with at_checkpoints(note), at_checkpoints(AtCheckpoint(4, change)):
            _, trace = engine.run_traced(captured.bind())
        later = sorted(trace.ops, key=lambda op: op.start_s)[-len(trace.ops) // 3 :]
        assert {op.cores for op in later} == {(last.id,)}
        assert len({op.id for op in trace.ops}) == len(captured.graph)
        assert set(cpus) == {last.cpus[0]}


def test_the_caller_runs_where_the_process_may_afterwards(captured: Captured, machine: Machine) -> None:
    mask = os.sched_getaffinity(0)
    last = machine.cores[-1]
    one = machine.limited_to([machine.cores[0].id])
    wide, narrow = (make_random_plan(captured.graph, ids(on), seed=3) for on in (machine, one))
    threads = ThreadMasks(cores=this_process().cores)

    def shrink() -> None:
        this_process().cores.assign(last.cpus)
        threads.restrict(last.cpus)
        engine.change(narrow, one, [last])

    try:
        threads.restrict(mask)
        with Engine(captured, wide, machine) as engine, at_checkpoints(AtCheckpoint(2, shrink)):
            engine.run(captured.bind())
            assert os.sched_getaffinity(0) == set(last.cpus)
            assert this_process().cores.mask_of(os.getpid()) == threads.mask_of(os.getpid()) == set(last.cpus)
            threads.restrict(mask)
            assert os.sched_getaffinity(0) == mask, "a pin that ended is not taken for the program's own"
            engine.run(captured.bind())
            assert os.sched_getaffinity(0) == mask
    finally:
        this_process().cores.assign(mask)
        os.sched_setaffinity(0, mask)


def test_an_engines_own_pin_is_no_limit_from_outside(captured: Captured, machine: Machine) -> None:
    limits = Limits(this_process().cores)
    cores = limits.cores()
    found: list[tuple[object, object]] = []
    plan = make_random_plan(captured.graph, ids(machine)[:1], seed=0)
    one = machine.limited_to(ids(machine)[:1])

    def look(_: Tensor) -> None:
        found.append((this_process().cores.mask_of(os.getpid()), limits.cores()))

    with Engine(captured, plan, one) as engine, at_checkpoints(look):
        engine.run(captured.bind())
    assert found
    assert all(one == (None, cores) for one in found)


def test_a_closed_engine_has_no_threads_whatever_plans_it_had(captured: Captured, machine: Machine) -> None:
    before = len(thread_ids())
    one = machine.limited_to(ids(machine)[:1])
    wide, narrow = (make_random_plan(captured.graph, ids(on), seed=3) for on in (machine, one))
    engine = Engine(captured, wide, machine)
    for core in machine.cores:
        engine.change(narrow, one, [core])
        engine.run(captured.bind())
    engine.close()
    assert eventually(lambda: len(thread_ids()) <= before)


@pytest.fixture(autouse=True)
def nothing_given() -> Iterator[None]:
    yield
    this_process().cores._cpus = None
