"""Networks that hypothesis makes up give on the native engine, by any plan, what eager PyTorch gives."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, mse_loss

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_training
from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine

pytestmark = needs_compiler

WIDTH = 6

ONE: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sin, torch.tanh, torch.relu, lambda x: x * 2 + 1, lambda x: x.t().contiguous().t(), lambda x: x.softmax(1),
    lambda x: layer_norm(x, (WIDTH,)), lambda x: torch.cat(x.split(2, dim=1)[::-1], dim=1), lambda x: x.cumsum(1) / 6,
    lambda x: dropout(x, 0.3), lambda x: x.clone().mul_(0.5), lambda x: x[:, torch.arange(WIDTH - 1, -1, -1)],
)  # fmt: skip
"""Functions of one value."""
TWO: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add, torch.mul, torch.maximum, lambda x, y: x @ (y.t() @ x) / 9,
    lambda x, y: torch.where(x > y, x * 2, y * 2),
)  # fmt: skip

"""Functions of two values. None jumps where these are equal: of two equal batch norms, one run by two threads sums in
another order, and may be the larger by rounding."""

Layer = tuple[str, int, int, int]
"""What, which function or weight of it, which earlier values it takes."""


class Network(nn.Module):
    """Layers over earlier values; weights may be used more than once."""

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = layers
        self.weights = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        values = [self.weights[0](x)]  # so that there is something to train
        for what, which, first, second in self.layers:
            a, b = values[first % len(values)], values[second % len(values)]
            if what == "one":
                values.append(ONE[which % len(ONE)](a))
            elif what == "two":
                values.append(TWO[which % len(TWO)](a, b))
            elif what == "weight":
                values.append(self.weights[which % len(self.weights)](a))
            else:
                values.append(self.norm(a))
        result = values[-1]
        for value in values[:-1]:
            result = result + value * 0.1
        return result


numbers = st.integers(0, 100)
layers = st.lists(
    st.tuples(st.sampled_from(["one", "two", "weight", "weight", "norm"]), numbers, numbers, numbers),
    min_size=1, max_size=14,
)  # fmt: skip


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=layers, seed=st.integers(0, 1000))
def test_two_training_steps_of_a_random_network_are_eagers(layers: list[Layer], seed: int, machine: Machine) -> None:
    model = Network(layers).double()
    eager = copy.deepcopy(model)
    x, y = torch.linspace(-1, 1, 4 * WIDTH, dtype=torch.float64).reshape(4, WIDTH).sin(), torch.ones(4, WIDTH).double()
    mine, theirs = (torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9) for one in (model, eager))
    captured = capture_training(model, mse_loss, mine, (x,), y)
    cores = tuple(core.id for core in machine.cores)
    with Engine(captured, make_random_plan(captured.graph, cores, seed=seed), machine) as engine:
        for step in range(2):
            torch.manual_seed(step)
            found = engine.run(captured.bind())["loss"]
            torch.manual_seed(step)
            theirs.zero_grad()
            wanted = mse_loss(eager(x), y)
            torch.autograd.backward(wanted)
            theirs.step()
            torch.testing.assert_close(found, wanted.detach(), rtol=1e-9, atol=1e-12)
    for (name, value), other in zip(model.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-8, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")
