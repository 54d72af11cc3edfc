"""The dynamic engine computes what the program does, most urgent ops first, without a plan."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from tests.runtime.failing_op import Seen, at_checkpoints, checkpoint
from threadcast import networks
from threadcast.capture.capture import capture_forward
from threadcast.core import Machine
from threadcast.core.errors import InvalidInput
from threadcast.runtime.native.dynamic import TINY_S, DynamicEngine
from threadcast.scheduler.simulation.checker import check_schedule

pytestmark = needs_compiler


@pytest.mark.parametrize("tiny", [True, False])
@pytest.mark.parametrize("name", ["inception_block", "lstm", "transformer", "pathnet"])
def test_any_number_of_executors_gives_what_the_program_gives(name: str, tiny: bool, machine: Machine) -> None:
    work = networks.load(name, "tiny")
    captured = capture_forward(work.model, *work.inputs)
    torch.manual_seed(1)
    expected = captured.run()
    seconds = [TINY_S * (0.5 if tiny else 2.0)] * len(captured.graph)
    for executors in range(1, len(machine) + 1):
        with DynamicEngine(captured, seconds, machine, executors=executors) as engine:
            for _ in range(20):
                torch.manual_seed(1)
                torch.testing.assert_close(engine.run(captured.bind()), expected)


def test_a_trace_is_a_schedule_of_the_graph(machine: Machine) -> None:
    work = networks.load("inception_block", "tiny")
    captured = capture_forward(work.model, *work.inputs)
    for executors in range(1, len(machine) + 1):
        with DynamicEngine(captured, [1e-5] * len(captured.graph), machine, executors=executors) as engine:
            _, trace = engine.run_traced(captured.bind())
        check_schedule(captured.graph, trace, machine=machine)
        each = len(machine) // executors
        assert {op.threads for op in trace.ops} == {each}
        assert trace.policy == f"dynamic, {executors} x {each}"


def test_the_longest_path_goes_first(machine: Machine) -> None:
    def function(x: Tensor) -> list[Tensor]:
        short = [x + i for i in range(4)]
        long = x * 2
        for _ in range(6):
            long = long.sin()
        return [*short, long]

    captured = capture_forward(function, torch.ones(4))
    with DynamicEngine(captured, [1e-3] * len(captured.graph), machine, executors=1) as engine:
        _, trace = engine.run_traced(captured.bind())
    started = [op.id for op in sorted(trace.ops, key=lambda op: op.start_s)]
    kinds = [captured.graph.ops[captured.graph.ids.index(op_id)].kind for op_id in started]
    assert kinds[:6] == ["mul", *["sin"] * 5]


def test_values_are_freed_after_their_last_use(machine: Machine) -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(8):
            x = checkpoint(x)
        return x

    captured = capture_forward(chain, torch.ones(4))
    seen, most = Seen(), 0

    def count(_: Tensor) -> None:
        nonlocal most
        most = max(most, seen.alive())

    with (
        DynamicEngine(captured, [1e-5] * 8, machine, executors=len(machine)) as engine,
        at_checkpoints(seen),
        at_checkpoints(count),
    ):
        assert engine.run(captured.bind()).tolist() == [9.0] * 4
    assert most <= 2


@pytest.mark.parametrize(("executors", "times", "message"), [(0, 1, "executors=0"), (99, 1, "99"), (1, 2, "2 times")])
def test_what_cannot_be_is_refused(executors: int, times: int, message: str, machine: Machine) -> None:
    captured = capture_forward(lambda x: x + 1, torch.ones(1))
    with pytest.raises(InvalidInput, match=message):
        DynamicEngine(captured, [1.0] * times, machine, executors=executors)
