"""An engine does what the captured program does: outputs, parameters, optimizer state, running statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import make_random_plan
from threadcast import networks
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, Placement, Plan
from threadcast.runtime.engine.engine import Engine
from threadcast.scheduler.simulation.checker import check_schedule

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def equal(found: Any, expected: Any) -> bool:
    """Whether two nested results are equal to the last bit."""
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    return all(torch.equal(a, b) if isinstance(b, Tensor) else a == b for a, b in pairs)


def in_turn(captured: Captured, cores: tuple[int, ...]) -> Plan:
    """One op after the other, each on all of `cores`."""
    graph = captured.graph
    ops = tuple(
        Placement(graph.ids[op], cores, len(cores), float(i), i + 1.0) for i, op in enumerate(graph.topological_order)
    )
    return Plan(len(cores), "sequential", ops)


def plans(captured: Captured, machine: Machine) -> list[Plan]:
    """One thread an op; one or two cores an op; one to three threads a core; all cores for every op."""
    cores = tuple(core.id for core in machine.cores)
    graph = captured.graph
    return [
        make_random_plan(graph, cores, seed=1, max_width=1), make_random_plan(graph, cores, seed=2),
        make_random_plan(graph, cores, seed=3, max_factor=3), in_turn(captured, cores),
    ]  # fmt: skip


def run_in_program_order(captured: Captured, plan: Plan) -> Any:
    """What the program gives when each op runs by itself with as many threads as the plan gives it.

    Kernels add up in another order on another number of threads: two runs are only comparable with equal ones.
    """
    by_id = plan.by_id()
    return captured.run(threads=[by_id[op].threads for op in captured.graph.ids])


def step(captured: Captured, run: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    """What a run returns and the parameters, buffers and optimizer state after it; those before are restored."""
    state = [value for value in captured.held.values() if isinstance(value, Tensor)]
    before = [value.clone() for value in state]
    torch.manual_seed(3)
    outputs = pytree.tree_map_only(Tensor, torch.clone, run())
    after = [value.clone() for value in state]
    for value, old in zip(state, before, strict=True):
        value.data.copy_(old)
    return outputs, after


def training(name: str) -> Captured:
    work = networks.load(name, "tiny")
    optimizer = torch.optim.SGD(work.model.parameters(), lr=0.01, momentum=0.9)
    return capture_training(work.model, work.loss, optimizer, work.inputs, work.target)


def forward(name: str) -> Captured:
    work = networks.load(name, "tiny")
    return capture_forward(work.model, *work.inputs)


@pytest.mark.parametrize(
    ("name", "capture"),
    [
        *((name, training) for name in networks.names()),
        *((name, forward) for name in ("lenet", "lstm", "inception_block")),
    ],
)
def test_every_plan_gives_what_the_program_gives(
    name: str,
    capture: Callable[[str], Captured],
    machine: Machine,
) -> None:
    captured = capture(name)
    narrow, *wider = plans(captured, machine)[:3]
    engine = Engine(captured, narrow, machine)
    assert equal(step(captured, lambda: engine.run(captured.bind())), step(captured, captured.run))
    for plan in wider:
        engine = Engine(captured, plan, machine)
        expected = step(captured, lambda p=plan: run_in_program_order(captured, p))
        assert equal(step(captured, lambda e=engine: e.run(captured.bind())), expected)


def dropouts(x: Tensor) -> list[Tensor]:
    return [torch.nn.functional.dropout(x * i, 0.5) + torch.rand_like(x) for i in range(1, 6)]


def test_random_numbers_are_drawn_in_the_programs_order(machine: Machine) -> None:
    captured = capture_forward(dropouts, torch.ones(33))
    torch.manual_seed(11)
    expected = captured.run()
    state = torch.get_rng_state()
    for plan in plans(captured, machine):
        engine = Engine(captured, plan, machine)
        torch.manual_seed(11)
        assert equal(engine.run(captured.bind()), expected)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_trace_is_a_schedule_of_the_graph_on_the_plans_cores(machine: Machine) -> None:
    captured = training("inception_block")
    for plan in plans(captured, machine):
        engine = Engine(captured, plan, machine)
        outputs, trace = engine.run_traced(captured.bind())
        check_schedule(captured.graph, trace, machine=machine, oversubscribed=True)
        planned = plan.by_id()
        assert all(
            (set(op.cores), op.threads) == (set(planned[op.id].cores), planned[op.id].threads) for op in trace.ops
        )
        assert (trace.cores, trace.policy, trace.simulated) == (plan.cores, plan.policy, False)
        assert set(outputs) == {"loss", "outputs"}


def test_run_takes_changed_data(machine: Machine) -> None:
    captured = capture_forward(lambda x, y: {"sum": x + y, "list": [x * 2, y]}, torch.ones(4), torch.ones(4))
    engine = Engine(captured, plans(captured, machine)[1], machine)
    result = engine.run(captured.bind(torch.full((4,), 3.0), torch.zeros(4)))
    assert result["sum"].tolist() == [3.0] * 4
    assert [part.tolist() for part in result["list"]] == [[6.0] * 4, [0.0] * 4]


@pytest.mark.parametrize("enabled", [False, True])
def test_an_lstm_without_gradients_has_the_bits_of_no_grad(machine: Machine, enabled: bool) -> None:
    """Its kernels look at whether gradients are enabled: they find what they find in eager PyTorch, whoever calls."""
    torch.manual_seed(0)
    model, x = torch.nn.LSTM(8, 8, batch_first=True).eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        wanted = model(x)[0]
        captured = capture_forward(lambda x: model(x)[0], x)
    with Engine(captured, plans(captured, machine)[1], machine) as engine, torch.set_grad_enabled(enabled):
        assert torch.equal(engine.run(captured.bind(x)), wanted)
        assert torch.equal(captured.run(x), wanted)
        assert torch.is_grad_enabled() is enabled
