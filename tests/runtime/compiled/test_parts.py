"""Operators that only PyTorch can run divide a graph; the parts around them run by plans."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.runtime.compiled.running import run_until_settled, runners, trains_as_eager
from threadcast.runtime.compiled.graph_parts import PartsInTurn, parts_of

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:threadcast runs a part of a graph"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]

DTYPE = torch.float64


@torch.library.custom_op("threadcast_tests::bump", mutates_args=("x",))
def bump(x: Tensor) -> None:
    """Add 1 in place."""
    x.add_(1)


@torch.library.custom_op("threadcast_tests::planned_double", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """Return twice `x`."""
    return 2 * x


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def square(seed: int) -> Tensor:
    return torch.randn(6, 6, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


def compare(function: Callable[[Tensor], Any]) -> dict[str, list[str]]:
    """Run a compiled function until its graphs have settled; results are compared with eager's."""
    compiled = torch.compile(function, backend="threadcast")

    @torch.no_grad()
    def call(seed: int) -> None:
        torch.manual_seed(seed)
        found = compiled(square(seed))
        torch.manual_seed(seed)
        torch.testing.assert_close(found, function(square(seed)), rtol=1e-9, atol=1e-12)

    run_until_settled(call)
    return runners()


WEIGHT = square(100)


def test_the_parts_around_control_flow_run_by_plans() -> None:
    def chosen(x: Tensor) -> Any:
        y = (x @ WEIGHT).tanh() @ WEIGHT
        y = torch.cond(y.sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos(), (y,))
        return (y @ WEIGHT).tanh() @ WEIGHT

    assert compare(chosen) == {"inference": ["plan", "plan"]}


def test_operators_of_other_libraries_are_planned_and_those_that_write_are_not() -> None:
    def function(x: Tensor) -> Tensor:
        y = doubled(x @ WEIGHT).tanh() @ WEIGHT
        z = y + 1
        bump(z)
        return (z @ WEIGHT).tanh() @ y

    assert compare(function) == {"inference": ["plan", "plan"]}


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_depend_on_values_do_not_hold_up_the_rest() -> None:
    def function(x: Tensor) -> Any:
        y = (x @ WEIGHT).relu()
        found = y[y > 0] * 2
        return found, found.sum() + (y @ WEIGHT).tanh().sum(), y @ y

    found = compare(function)
    assert set(found) == {"inference"}
    assert "plan" in found["inference"]


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_integers_that_depend_on_values_are_read_in_each_call() -> None:
    def function(x: Tensor) -> Any:
        y = (x @ WEIGHT).relu()
        return y @ WEIGHT * int((y > 1).sum().item()) + y.sum().item()

    assert "plan" in compare(function)["inference"]


def test_draws_come_in_the_order_of_the_program() -> None:
    def function(x: Tensor) -> Any:
        first = torch.rand_like(x) @ WEIGHT
        y = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))
        second = torch.rand_like(x) @ WEIGHT
        return first @ y, second

    compare(function)


def test_draws_within_control_flow_come_in_the_order_of_the_program() -> None:
    def function(x: Tensor) -> Any:
        def branches(y: Tensor) -> Any:
            return torch.cond(x.sum() > -100, lambda y: torch.rand_like(y) + y, lambda y: y.cos(), (y,))

        late = branches(branches(x @ WEIGHT) @ WEIGHT)
        return late, branches(x)

    compare(function)


class Chosen(nn.Module):
    """Control flow between two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6, dtype=DTYPE), nn.Linear(6, 6, dtype=DTYPE)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        y = torch.cond(x.sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos(), (y,))
        found: Tensor = self.second(y)
        return found


def test_a_model_with_control_flow_is_trained() -> None:
    trains_as_eager(Chosen, lambda model, step: model(square(step)).square().mean(), steps=30)


def test_one_warning_says_what_runs_as_pytorch() -> None:
    compiled = torch.compile(Chosen().eval(), backend="threadcast")
    with warnings.catch_warnings(record=True) as found, torch.no_grad():
        warnings.simplefilter("always")
        for seed in range(5):
            compiled(square(seed))
    messages = [str(one.message) for one in found if "threadcast" in str(one.message)]
    assert messages == ["threadcast runs a part of a graph as PyTorch does: cond calls graphs or functions of its own"]


def test_values_are_dropped_after_the_last_part_that_needs_them() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return [torch.nonzero(x @ y), x, None]

    graph = make_fx(function, tracing_mode="symbolic")(square(0), square(1))
    divided = parts_of(graph)
    assert [part.refused is None for part in divided] == [True, False]
    run = PartsInTurn(graph, divided, [part.graph.forward for part in divided])
    found = run(square(2), square(3))
    torch.testing.assert_close(found[0], torch.nonzero(square(2) @ square(3)))
    torch.testing.assert_close(found[1], square(2))
    assert found[2] is None
