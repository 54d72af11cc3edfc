"""Programs with operators that only PyTorch can run are run as they were traced, and say so once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.compiled.running import run_until_settled, runners, seeded, trains_as_eager

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:threadcast runs a graph"),
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


WEIGHT = square(100)


def control_flow(x: Tensor) -> Any:
    first = torch.rand_like(x) @ WEIGHT
    y = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: torch.rand_like(x) + x, (x,))
    return first @ y, torch.rand_like(x) @ WEIGHT


def operators_that_write(x: Tensor) -> Tensor:
    z = doubled(x @ WEIGHT).tanh() + 1
    bump(z)
    return z @ WEIGHT


def sizes_by_values(x: Tensor) -> Any:
    y = (x @ WEIGHT).relu()
    found = y[y > 0] * 2
    return found, found.sum() + (y @ WEIGHT).tanh().sum(), y @ y


def integers_by_values(x: Tensor) -> Any:
    y = (x @ WEIGHT).relu()
    return y @ WEIGHT * int((y > 1).sum().item()) + y.sum().item()


@pytest.mark.parametrize("function", [control_flow, operators_that_write, sizes_by_values, integers_by_values])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_programs_with_operators_that_no_plan_may_run_are_run_as_traced(function: Callable[[Tensor], Any]) -> None:
    compiled = torch.compile(function, backend="threadcast")
    with torch.no_grad(), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for seed in range(5):
            torch.manual_seed(seed)
            mine = compiled(square(seed))
            torch.manual_seed(seed)
            torch.testing.assert_close(mine, function(square(seed)), rtol=1e-9, atol=1e-12)
    assert runners() == {}
    assert len([one for one in found if "threadcast runs a graph as PyTorch does: " in str(one.message)]) == 1


def test_operators_of_other_libraries_are_planned() -> None:
    def function(x: Tensor) -> Tensor:
        return (doubled(x @ WEIGHT).tanh() @ WEIGHT) @ x

    compiled = torch.compile(function, backend="threadcast")

    @torch.no_grad()
    def call(seed: int) -> None:
        torch.testing.assert_close(compiled(square(seed)), function(square(seed)), rtol=1e-9, atol=1e-12)

    run_until_settled(call)
    assert runners() == {"inference": ["plan"]}


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
    trains_as_eager(Chosen, lambda model, step: model(square(step)).square().mean(), steps=10)


@torch._dynamo.config.patch(assume_static_by_default=False)
def test_numbers_that_a_pass_saves_follow_from_sizes() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6, dtype=DTYPE), nn.Tanh(), nn.Linear(6, 6, dtype=DTYPE))

    def loss(model: Any, step: int) -> Tensor:
        y = model(square(step)[: 3 + step % 3])
        found: Tensor = (y / y.shape[0]).reshape(-1, y.shape[0]).square().mean()
        return found

    trains_as_eager(seeded(make), loss, steps=40)


LIBRARY = torch.library.Library("threadcast_first_runs", "FRAGMENT")
LIBRARY.define("itself(Tensor x) -> Tensor")
LIBRARY.impl("itself", lambda x: x, "CPU")
LIBRARY.impl("itself", torch.empty_like, "Meta")
"""An operator that returns its argument and does not say so: compiled, its result does not see later writes to that."""


@pytest.mark.parametrize("raises", [False, True])
def test_a_custom_operator_that_returns_its_input_is_told_as_by_pytorch(raises: bool) -> None:
    weight = nn.Parameter(torch.full((3,), 2.0))

    def function(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.threadcast_first_runs.itself(x + 1) * weight
        return result

    with torch.no_grad(), torch._functorch.config.patch(error_on_custom_op_aliasing=raises):
        compiled = torch.compile(function, backend="threadcast")
        if raises:
            with pytest.raises(RuntimeError, match="may not alias any inputs"):
                compiled(torch.ones(3))
        else:
            with pytest.warns(UserWarning, match="may not alias any inputs"):
                compiled(torch.ones(3))
            run_until_settled(
                lambda number: torch.testing.assert_close(
                    compiled(torch.full((3,), float(number))), torch.full((3,), 2.0 * number + 2.0)
                )
            )
