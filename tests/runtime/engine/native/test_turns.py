"""Steps on different cores run at the same time, and those on the same cores one after the other."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, closing

import pytest
import torch

from tests.runtime.failing_op import at_checkpoints, checkpoint
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Case, read_machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.sequential import sequential

LONG_S = 60.0
CPUS = sorted(os.sched_getaffinity(0))


def engine_on(cpus: list[int]) -> Engine:
    captured = capture_forward(lambda x: checkpoint(x * 2), torch.ones(3))
    machine = read_machine(affinity=cpus)
    return Engine(captured, sequential(captured.graph, machine, Case(1)), machine)


def ended(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(LONG_S)
    return not any(thread.is_alive() for thread in threads)


def test_steps_on_the_same_core_run_one_after_the_other_in_the_order_of_asking() -> None:
    began, may_go_on, order = threading.Event(), threading.Event(), []
    with ExitStack() as ends:
        engines = [ends.enter_context(closing(engine_on(CPUS[:1]))) for _ in range(3)]

        def at_checkpoint(value: torch.Tensor) -> None:
            order.append(value[0].item())
            began.set()
            assert may_go_on.wait(LONG_S)

        def run(number: int) -> None:
            engines[number].run(engines[number].captured.bind(torch.full((3,), float(number))))

        with at_checkpoints(at_checkpoint):
            threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
            threads[0].start()
            assert began.wait(LONG_S)
            for thread in threads[1:]:
                thread.start()
            assert order == [0.0], "the others wait"
            may_go_on.set()
            assert ended(threads)
    assert sorted(order) == [0.0, 2.0, 4.0]


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_a_step_on_all_cores_is_not_starved_by_steps_on_single_ones() -> None:
    stop = threading.Event()
    with ExitStack() as ends:
        engines = [ends.enter_context(closing(engine_on([cpu]))) for cpu in CPUS[:2]]
        captured = capture_forward(lambda x: checkpoint(x.mm(x)), torch.ones(64, 64))
        machine = read_machine(affinity=CPUS[:2])
        whole = ends.enter_context(
            closing(Engine(captured, sequential(captured.graph, machine, Case(len(machine))), machine))
        )

        def run(engine: Engine) -> None:
            inputs = engine.captured.arguments
            while not stop.is_set():
                engine.run(engine.captured.bind(*inputs))

        threads = [threading.Thread(target=run, args=(engine,)) for engine in engines]
        for thread in threads:
            thread.start()
        for _ in range(50):
            assert whole.run(captured.bind(torch.ones(64, 64)))[0, 0] == 65.0
        stop.set()
        assert ended(threads)
